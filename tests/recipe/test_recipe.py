"""Recipe files: extends, axes, set, points, and errors that name file, key, value, what is allowed and why."""

import textwrap

import pytest

from tle_attn.errors import ResourceError, SpecError
from tle_attn.recipe import Recipe, list_recipes, load
from tle_attn.spec import DType, Kernel


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> path of a recipe file."""

    def make(name: str, text: str) -> str:
        path = tmp_path / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return make


def fails(action, *parts: str) -> SpecError:
    """`action` raises a SpecError whose text holds every part."""
    with pytest.raises(SpecError) as caught:
        action()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    return caught.value


class TestLibrary:
    def test_names_are_paths_below_the_library(self):
        names = list_recipes()
        assert "hy3/decode_bf16" in names and names == sorted(names)
        assert not any(n.startswith("tuned/") for n in names)

    @pytest.mark.parametrize("name", list_recipes())
    def test_every_recipe_makes_checked_kernels_at_its_default_point(self, name):
        recipe = load(name)
        assert recipe.name == name and recipe.summary
        kernel = recipe.kernel()
        assert isinstance(kernel, Kernel) and kernel.name == name

    def test_unknown_name_lists_the_library(self):
        fails(lambda: load("hy3/decode"), "no recipe is called 'hy3/decode'", "hy3/decode_bf16", "  because  ")

    def test_missing_file(self, tmp_path):
        fails(lambda: load(tmp_path / "none.toml"), "there is no recipe file", "none.toml")


class TestFile:
    def test_summary_is_text(self, write):
        fails(lambda: load(write("mine", 'summary = 7\nextends = "hy3/decode_bf16"')), "mine.toml: summary: summary is one line of text", "value    7")

    def test_one_of_everything(self, write):
        recipe = load(write("mine", """
            summary = "Mine"
            [axes]
            "problem.page" = [32, 16]
            [problem]
            group = 4
            [mainloop]
            block = "decode"
            [ring]
            stages = 2
            [[score]]
            block = "soft_cap"
            cap = 30
            [epilogue]
            dtype = "f32"
            lse = "e"
        """))  # fmt: skip
        kernel = recipe.kernel()
        assert (recipe.name, recipe.summary, recipe.parents) == ("mine", "Mine", ())
        assert (kernel.problem.page, kernel.problem.group, kernel.mainloop.ring.stages) == (32, 4, 2)
        assert kernel.mainloop.score[0].cap == 30.0 and isinstance(kernel.mainloop.score[0].cap, float)
        assert kernel.mainloop.epilogue.dtype is DType.F32
        assert kernel.file == recipe.file

    @pytest.mark.parametrize("text", ["[problem", 'x = "\\q"', "a = 1\na = 2"])
    def test_no_toml(self, write, text):
        file = write("broken", text)
        assert fails(lambda: load(file), "broken.toml: not valid TOML: ").file == file

    def test_no_text(self, tmp_path):
        (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
        fails(lambda: load(tmp_path / "binary.toml"), "binary.toml: not valid TOML: ")

    def test_a_key_outside_of_tables(self, write):
        fails(lambda: load(write("a", "page = 64")), "a.toml: page: page is no table", "value    64", "[problem]")

    def test_no_mainloop(self, write):
        fails(load(write("a", "[ring]\nstages = 3")).kernel, "a.toml: mainloop.block: the recipe does not name its mainloop", "allowed  decode")

    def test_unknown_mainloop(self, write):
        fails(load(write("a", '[mainloop]\nblock = "decoder"')).kernel, "a.toml: mainloop.block: no mainloop block is called 'decoder'", "allowed  decode")

    @pytest.mark.parametrize("text,parts", [
        ("[rings]\nstages = 3", ("rings: mainloop decode has no slot 'rings'; did you mean 'ring'?", "allowed  problem, mainloop, loader, ring")),
        ("[tiles]\nblock = \"block_mask\"", ("tiles: mainloop decode has no slot 'tiles'", "because  it is a slot of prefill")),
        ("[ring]\nstage = 3", ("ring.stage: mbarrier has no option 'stage'; did you mean 'stages'?", "value    3", "allowed  stages", "would not use is an error")),
        ("[ring]\nreaders = 2", ("ring.readers: mbarrier has no option 'readers'",)),  # for tests only
        ("[ring]\nstages = 0", ("ring.stages: stages cannot be 0", "allowed  an integer from 1 to 16", "because  tiles in flight")),
        ('[ring]\nstages = "3"', ('ring.stages: "3" is not an integer',)),
        ("[ring]\nstages = true", ("ring.stages: true is not an integer",)),
        ("[ring]\nstages = 3.0", ("ring.stages: 3.0 is not an integer",)),
        ('[ring]\nblock = "mbarier"', ("ring.block: no ring block is called 'mbarier'", "allowed  mbarrier")),
        ("ring = [1]", ("ring: ring must be a table", '[ring] with block = "..."')),
        ("[score]\nblock = 'soft_cap'", ("score: score holds several blocks", "[[score]] tables")),
        ("[[score]]\ncap = 3.0", ("score[0].block: score[0] does not say which block it is", "allowed ", "soft_cap")),
        ('[[score]]\nblock = "soft_cap"', ("score[0].cap: soft_cap needs the option 'cap'", "because  Soft cap of the logits")),
        ('[[score]]\nblock = "soft_cap"\ncap = "big"', ('score[0].cap: "big" is not a number',)),
        ('[[score]]\nblock = "soft_cap"\ncap = 1.0\n[[score]]\nblock = "soft_cap"\ncap = -1', ("score[1].cap: cap cannot be -1",)),
        ("[problem]\npage = 48", ("problem.page: page cannot be 48", "allowed  16, 32, 64, 128", "because  a key tile has 64 tokens")),
        ('[problem]\ndtype = "bf17"', ('problem.dtype: no element type is called "bf17"', "bf16, f16, f32, fp8")),
        ("[problem]\npages = 64", ("problem.pages: Problem has no option 'pages'; did you mean 'page'?",)),
        ("[problem]\nquery_tokens = 3\ngroup = 32", ("problem.query_tokens: 3 query tokens x 32 heads are 96 query rows", "query_tokens * group <= 64")),
        ("[epilogue]\nlse = 2", ("epilogue.lse: 2 is not a string", 'allowed  a string: "2", with its quotes')),
        ("[mainloop]\nblock = 'decode'\nring = 3", ("mainloop.ring: decode has no option 'ring'",)),
    ])  # fmt: skip
    def test_errors_name_file_key_value_allowed_and_reason(self, write, text, parts):
        file = write("wrong", text if "[mainloop]" in text else text + '\n[mainloop]\nblock = "decode"')
        assert fails(load(file).kernel, f"{file}: ", *parts).file == file

    def test_a_kernel_that_does_not_fit_names_the_file_and_the_table(self, write):
        file = write("large", '[mainloop]\nblock = "decode"\n[ring]\nstages = 8')
        error = fails(load(file).kernel, "large.toml: mainloop: ", "bytes of shared memory", "k_ring bf16[8, 64, 128] 131,072 B")
        assert isinstance(error, ResourceError) and error.file == file


class TestExtends:
    def test_child_over_parent_key_by_key(self, write):
        write("base", 'summary = "Base"\n[problem]\ngroup = 4\npage = 32\n[mainloop]\nblock = "decode"\n[ring]\nstages = 2')
        child = load(write("child", 'extends = "base.toml"\n[problem]\npage = 64\n[epilogue]\nlse = "2"'))
        assert (child.name, child.parents, child.summary) == ("child", ("base",), "")
        assert child.tables["problem"] == {"group": 4, "page": 64}
        assert child.kernel().mainloop.ring.stages == 2

    def test_a_library_recipe_as_parent(self, write):
        child = load(write("child", 'extends = "variants/decode_bf16_window"\n[[mask]]\nblock = "causal"'))
        assert child.parents == ("variants/decode_bf16_window", "hy3/decode_bf16")
        assert [b.NAME for b in child.kernel().mainloop.mask] == ["causal"], "arrays of tables are replaced, not merged"

    def test_another_block_in_a_slot_starts_afresh(self, write):
        write("base", '[mainloop]\nblock = "decode"\n[schedule]\nblock = "task_map"\nmin_tokens = 1024')
        other = load(write("other", 'extends = "base.toml"\n[schedule]\nblock = "static_split"'))
        assert other.kernel().mainloop.schedule.min_tokens == 512
        same = load(write("same", 'extends = "base.toml"\n[schedule]\nblock = "task_map"'))
        assert same.kernel().mainloop.schedule.min_tokens == 1024

    def test_axes(self, write):
        write("base", '[axes]\n"problem.page" = [64, 16]\n"problem.query_tokens" = [1, 2]\n[mainloop]\nblock = "decode"')
        child = load(write("child", 'extends = "base.toml"\n[axes]\n"ring.stages" = [2, 3]\n[problem]\npage = 32'))
        assert child.axes == {"problem.query_tokens": (1, 2), "ring.stages": (2, 3)}, "a key that the child fixes is an axis no more"
        again = load(write("again", 'extends = "base.toml"\n[axes]\n"problem.page" = [128]\n[problem]\npage = 32'))
        assert again.axes["problem.page"] == (128,) and again.kernel().problem.page == 128

    def test_missing_parent(self, write):
        error = fails(lambda: load(write("child", 'extends = "hy3/nothing"')), "child.toml: extends: no recipe is called 'hy3/nothing'")
        assert error.file.endswith("child.toml")

    def test_broken_parent_names_the_parent(self, write):
        write("base", "[ring")
        fails(lambda: load(write("child", 'extends = "base.toml"')), "base.toml: not valid TOML")

    def test_not_a_name(self, write):
        fails(lambda: load(write("child", "extends = 3")), "child.toml: extends: extends names one recipe", "value    3")

    def test_a_cycle(self, write):
        write("a", 'extends = "b.toml"')
        file = write("b", 'extends = "a.toml"')
        fails(lambda: load(file), "extends: the recipe extends itself", "b -> a -> b")


class TestAxes:
    def test_points_default_first(self):
        recipe = load("hy3/decode_bf16")
        points = list(recipe.points())
        assert len(points) == len({tuple(p.items()) for p in points}) == 12
        assert points[0] == {"problem.query_tokens": 1, "problem.page": 64}
        assert recipe.kernel() == recipe.kernel(points[0])
        assert recipe.kernel(points[-1]).problem.page == 128

    def test_a_recipe_without_axes_has_one_point(self, write):
        assert list(load(write("a", '[mainloop]\nblock = "decode"')).points()) == [{}]

    def test_problem_arguments_win_over_the_point(self):
        assert load("hy3/decode_bf16").kernel({"problem.page": 16}, page=32).problem.page == 32

    @pytest.mark.parametrize("text,parts", [
        ("axes = 3", ("axes: axes must be a table",)),
        ('[axes]\n"problem.page" = 64', ("axes.problem.page: axis problem.page needs a list of values", '"problem.page" = [64, 16]')),
        ('[axes]\n"problem.page" = []', ("axes.problem.page: axis problem.page needs a list of values",)),
        ("[axes]\npage = [64]", ("axes.page: axis 'page' is no option", "a quoted dotted key")),
        ("[axes]\nproblem.page = [64]", ("axes.problem: axis problem needs a list of values",)),  # unquoted: a table inside a table
    ])  # fmt: skip
    def test_errors(self, write, text, parts):
        fails(lambda: load(write("a", text)), "a.toml: ", *parts)

    def test_a_wrong_value_is_found_at_its_point(self, write):
        recipe = load(write("a", '[axes]\n"problem.page" = [64, 48]\n[mainloop]\nblock = "decode"'))
        recipe.kernel()
        fails(lambda: recipe.kernel({"problem.page": 48}), "a.toml with problem.page = 48: problem.page: page cannot be 48")


class TestSet:
    def test_replaces_options_and_keeps_the_original(self):
        recipe = load("variants/decode_bf16_soft_cap")
        changed = recipe.set({"ring.stages": 2, "score[0].cap": 30.0, "problem.page": 128})
        kernel = changed.kernel()
        assert (kernel.mainloop.ring.stages, kernel.mainloop.score[0].cap, kernel.problem.page) == (2, 30.0, 128)
        assert "problem.page" not in changed.axes and "problem.page" in recipe.axes
        assert recipe.kernel().mainloop.score[0].cap == 50.0

    def test_names_another_block(self):
        assert load("hy3/decode_bf16").set({"schedule.block": "static_split"}).kernel().mainloop.schedule.NAME == "static_split"

    def test_another_block_keeps_no_option_of_the_one_before(self, write):
        """As in a file; options given with it are its own, in whichever order."""
        recipe = load(write("a", 'extends = "hy3/decode_bf16"\n[schedule]\nmin_tokens = 1024\n[[score]]\nblock = "soft_cap"\ncap = 3.0'))
        changed = recipe.set({"schedule.splits": 4, "schedule.block": "static_split"}).kernel().mainloop.schedule
        assert (changed.splits, changed.min_tokens) == (4, type(changed)().min_tokens)
        assert recipe.set({"schedule.block": "task_map"}).kernel().mainloop.schedule.min_tokens == 1024, "the block it had"
        assert recipe.set({"score[0].block": "sink"}).kernel().mainloop.score[0].NAME == "sink"

    def test_naming_the_default_block_is_naming_the_same(self, write):
        assert load("hy3/decode_bf16").set({"reduce.poll_above": 64}).set({"reduce.block": "split_merge"}).kernel().mainloop.reduce.poll_above == 64
        parent = write("parent", 'extends = "hy3/decode_bf16"\n[ring]\nstages = 2')
        assert load(write("child", f'extends = "{parent}"\n[ring]\nblock = "mbarrier"')).kernel().mainloop.ring.stages == 2

    def test_an_axis_of_a_replaced_block_goes_with_it(self, write):
        parent = write("parent", 'extends = "hy3/decode_bf16"\n[axes]\n"reduce.poll_above" = [1, 4]')
        child = write("child", f'extends = "{parent}"\n[reduce]\nblock = "detached_merge"')
        for recipe in (load(child), load(parent).set({"reduce.block": "detached_merge"})):
            assert "reduce.poll_above" not in recipe.axes and "problem.page" in recipe.axes
            assert recipe.kernel().mainloop.reduce.NAME == "detached_merge"
        changed = load("hy3/decode_bf16").set({"schedule.min_tokens": 64}).set({"schedule.block": "static_split"})
        assert "min_tokens" not in changed.origin, "an option that was dropped is not told as set"

    @pytest.mark.parametrize("key,parts", [
        ("stages", ("'stages' is no option", "SLOT.OPTION")),
        ("ring.", ("'ring.' is no option",)),
        ("ring.3x", ("'ring.3x' is no option",)),
        ("score[1].cap", ("the recipe has no score[1]", "1 block(s) in score")),
        ("ring[0].stages", ("the recipe has no ring[0]", "0 block(s) in ring")),
        ("score.cap", ("score.cap: score is not a table", "allowed  score[0].cap: score holds several blocks")),
    ])  # fmt: skip
    def test_keys_that_reach_nothing(self, key, parts):
        fails(lambda: load("variants/decode_bf16_soft_cap").set({key: 3}), *parts)

    @pytest.mark.parametrize("key,parts", [
        ("ring.stages", ('decode_bf16.toml with ring.stages = "x": ring.stages: "x" is not an integer',)),
        ("ring.stage", ('decode_bf16.toml with ring.stage = "x": ring.stage: mbarrier has no option',)),
        ("rings.stages", ('decode_bf16.toml with rings.stages = "x": rings: mainloop decode has no slot',)),
    ])  # fmt: skip
    def test_values_are_checked_when_the_kernel_is_made(self, key, parts):
        fails(load("hy3/decode_bf16").set({key: "x"}).kernel, *parts)


def test_recipes_compare_by_content():
    assert load("hy3/decode_bf16") == load("hy3/decode_bf16")
    assert load("hy3/decode_bf16") != load("hy3/decode_bf16_static")
    assert isinstance(load("hy3/decode_bf16"), Recipe)


class TestWhereAnErrorComesFrom:
    """The file alone is named for what it says itself; what was set since it was read is told with it."""

    def test_the_file(self, write):
        path = write("mine", 'extends = "hy3/decode_bf16"\n[ring]\nstages = 99')
        assert str(fails(lambda: load(path).kernel(), "99")).startswith(f"{path}: ring.stages: ")

    def test_what_was_set(self, write):
        path = write("mine", 'extends = "hy3/decode_bf16"')
        fails(lambda: load(path).set({"ring.stages": 99, "score": []}).kernel(), "is no option")
        error = fails(lambda: load(path).set({"ring.stages": 99}).kernel(page=16), "99")
        assert str(error).startswith(f"{path} with ring.stages = 99, problem.page = 16: ring.stages: ")

    def test_checks_of_a_whole_kernel(self, write):
        error = fails(lambda: load("hy3/decode_bf16").set({"ring.stages": 9}).kernel(), "bytes of shared memory")
        assert "decode_bf16.toml with ring.stages = 9: " in str(error)

    def test_values_are_written_as_in_a_recipe(self):
        text = str(fails(lambda: load("hy3/decode_bf16").set({"problem.dtype": "f32"}).kernel()))
        assert 'dtype cannot be "f32"' in text and "DType." not in text and "allowed  bf16, fp8" in text
