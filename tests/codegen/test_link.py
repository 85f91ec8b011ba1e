"""The linker on small blocks of our own: what is copied, what vanishes, how arguments and constants arrive, and every error."""

import ast

import pytest

from tle_attn.codegen import MARK, generate
from tle_attn.errors import LinkError, LintError
from tle_attn.spec import Argument, BoxDescriptor, Constant, DType

POINTER = Argument("out", "*i32", "results")
COUNT = Argument("count", "i32", "elements", divisible=16)


def body_of(kernel, target: str = "cpu") -> str:
    return generate(kernel, target).text.split(MARK + "\n")[1]


def fails(kernel_or_call, *parts: str) -> None:
    with pytest.raises(LinkError) as caught:
        kernel_or_call() if callable(kernel_or_call) else generate(kernel_or_call, "cpu")
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_module(library):
    part = library.block(
        """
        @jit
        def helper(args, i):
            # a comment that stays
            store(args.out + i, SIZE)


        @jit
        def unused(x):
            return x
        """,
        constants={"SIZE": Constant(4, "elements"), "OTHER": Constant(5)}, arguments=(POINTER, Argument("unused", "f32", "not used")),
    )  # fmt: skip
    kernel = library.kernel(
        """
        @jit
        def kernel(args):
            \"\"\"The kernel.\"\"\"
            for i in range(args.count):
                helper(args, i)
        """,
        part, arguments=(COUNT,),
    )  # fmt: skip
    generated = generate(kernel, "cpu")
    assert body_of(kernel) == (
        "SIZE = constexpr(4)  # elements\n"
        "\n\n# ---- pieces[0]: part/part\n@jit\ndef helper(out, i):\n    # a comment that stays\n    store(out + i, SIZE)\n"
        '\n\n# ---- mainloop: mainloop/loop\n@jit\ndef kernel(out, count):\n    """The kernel."""\n    for i in range(count):\n        helper(out, i)\n'
    )
    head = ast.get_docstring(ast.parse(generated.text))
    assert head.startswith("test/kernel-1 for target cpu: A test.\n")
    assert "Kernel kernel, how kernel is launched; arguments in order:\n    out: *i32 - results\n    count: i32 - elements; a multiple of 16" in head
    assert generated.entry("kernel").arguments == (POINTER, COUNT)
    assert generated.module_name == f"test_kernel_1_cpu_{generated.digest}"


@pytest.mark.parametrize("target", ["gluon", "tle", "cpu"])
def test_the_text_below_the_mark_is_the_same_for_every_target(library, target):
    kernel = library.kernel("@jit\ndef kernel(args):\n    store(args.out, program_id(0))\n", arguments=(POINTER,))
    assert body_of(kernel, target) == body_of(kernel, "cpu")
    assert f"for target {target}" in generate(kernel, target).text


class TestArguments:
    def test_only_what_a_function_and_its_callees_use(self, library):
        kernel = library.kernel(
            """
            @jit
            def deep(args, x):
                return x + args.a


            @jit
            def both(args):
                return deep(args, args.b)


            @jit
            def none(args, x):
                return x


            @jit
            def kernel(args):
                store(args.out, both(args) + none(args, 1))
            """,
            arguments=(Argument("b", "i32", ""), POINTER, Argument("c", "i32", ""), Argument("a", "i32", "")),
        )  # fmt: skip
        text = body_of(kernel)
        for line in ("def deep(a, x):", "def both(b, a):", "return deep(a, b)", "def none(x):", "def kernel(b, out, a):", "store(out, both(b, a) + none(1))"):
            assert line in text, text
        assert [a.name for a in generate(kernel, "cpu").entry("kernel").arguments] == ["b", "out", "a"], "in the order of declaration"

    def test_roles(self, library):
        kernel = library.kernel(
            """
            @jit
            def idle(args, x):
                named_wait(x)


            @jit
            def work(args):
                store(args.out, 1)


            @jit
            def kernel(args):
                barriers = alloc_named(8, 1, 64)
                warp_specialize([(work, (args,)), (idle, (args, barriers))], [1], [24])
            """,
            arguments=(POINTER,),
        )  # fmt: skip
        assert "warp_specialize([(work, (out,)), (idle, (barriers,))], [1], [24])" in body_of(kernel)

    def test_undeclared(self, library):
        fails(library.kernel("@jit\ndef kernel(args):\n    store(args.out, 1)\n"), "loop_1.py:15: kernel uses args.out, which no block of the kernel declares")

    def test_two_blocks_may_declare_one_argument_the_same_way(self, library):
        parts = [library.block(f"@jit\ndef {n}(args):\n    store(args.out, 1)\n", arguments=(POINTER,)) for n in ("f", "g")]
        assert "def kernel(out):" in body_of(library.kernel("@jit\ndef kernel(args):\n    f(args)\n    g(args)\n", *parts))

    def test_two_types_for_one_argument(self, library):
        one = library.block("@jit\ndef f(args):\n    store(args.out, 1)\n", arguments=(POINTER,))
        other = library.block("@jit\ndef g(args):\n    store(args.out, 1)\n", arguments=(Argument("out", "*f32", ""),))
        fails(library.kernel("@jit\ndef kernel(args):\n    f(args)\n    g(args)\n", one, other), "argument out is *i32 and, in pieces[1], *f32")

    def test_descriptor(self, library):
        box = Argument("desc", BoxDescriptor(DType.BF16, (64, 64)), "a tensor")
        kernel = library.kernel("@jit\ndef kernel(args):\n    tma_store(args.desc, alloc([64, 64], BF16), [64, 64], [0, 0])\n", arguments=(box,))
        assert "desc: tensor descriptor bf16[64, 64] - a tensor" in generate(kernel, "cpu").text


class TestConstants:
    def test_kinds_and_use(self, library):
        constants = {"A": Constant(2), "B": Constant(0.5, "half"), "C": Constant(DType.BF16), "D": Constant(7)}
        kernel = library.kernel(
            "@jit\ndef kernel(args):\n    x = load(args.out) * B + A\n    store(args.out, x.to(C))\n", constants=constants, arguments=(POINTER,)
        )
        assert body_of(kernel).startswith("A = constexpr(2)\nB = constexpr(0.5)  # half\nC = constexpr(BF16)\n\n\n")
        for target in ("gluon", "tle", "cpu"):
            assert "BF16 = " in generate(kernel, target).text.split(MARK)[0], "the element type is in the prelude"

    def test_equal_constants_of_two_blocks(self, library):
        parts = [library.block(f"@jit\ndef {n}(x):\n    return x + A\n", constants={"A": Constant(2)}) for n in ("f", "g")]
        assert body_of(library.kernel("@jit\ndef kernel(args):\n    store(args.out, f(g(1)))\n", *parts, arguments=(POINTER,))).count("A = ") == 1

    def test_different_constants_of_one_name(self, library):
        parts = [library.block(f"@jit\ndef {n}(x):\n    return x + A\n", constants={"A": Constant(v)}) for n, v in (("f", 1), ("g", 2))]
        kernel = library.kernel("@jit\ndef kernel(args):\n    store(args.out, f(g(1)))\n", *parts, arguments=(POINTER,))
        fails(kernel, "constant A is 1 in pieces[0] and 2 in pieces[1]")

    def test_off_features_leave_nothing(self, library):
        part = library.block(
            "@jit\ndef extra(args, x):\n    return x + args.bias + BIAS\n", arguments=(Argument("bias", "i32", ""),), constants={"BIAS": Constant(3)}
        )
        text = "@jit\ndef kernel(args):\n    x = load(args.out)\n    if ON:\n        x = extra(args, x)\n    store(args.out, x)\n"
        on = library.kernel(text, part, arguments=(POINTER,), constants={"ON": Constant(True)})
        assert "x = extra(bias, x)" in body_of(on) and "ON" not in body_of(on) and "BIAS = constexpr(3)" in body_of(on)
        off = library.kernel(text, arguments=(POINTER,), constants={"ON": Constant(False)})
        assert body_of(off).endswith("def kernel(out):\n    x = load(out)\n    store(out, x)\n")


class TestImports:
    """Device functions that a block's module imports from another block's are part of its text."""

    IMPORT = "from tle_attn.components.reducers.split_merge import SplitMerge, merge_states\n"

    def test_what_is_called_is_linked_once(self, library):
        part = library.block(f"{self.IMPORT}@jit\ndef used(x):\n    return merge_states(x, x, x, (x,), (x,), (x,))[0]\n")
        other = library.block(f"{self.IMPORT}@jit\ndef also(x):\n    return merge_states(x, x, x, (x,), (x,), (x,))[1]\n")
        text = body_of(library.kernel("@jit\ndef kernel(args):\n    store(args.out, also(used(load(args.out))))\n", part, other, arguments=(POINTER,)))
        assert text.count("def merge_states(m, l, acc, more_m, more_l, more_o):") == 1 and "merge_slice" not in text and "SplitMerge" not in text

    def test_an_import_of_two_functions_by_one_name(self, library):
        part = library.block(f"{self.IMPORT}@jit\ndef used(x):\n    return merge_states(x, x, x, (x,), (x,), (x,))[0]\n")
        kernel = library.kernel("@jit\ndef merge_states(x):\n    return x\n\n\n@jit\ndef kernel(args):\n    store(args.out, used(load(args.out)))\n", part, arguments=(POINTER,))
        fails(kernel, "merge_states is defined by pieces[0] and by mainloop")


class TestChains:
    LOOP = "@jit\ndef kernel(args):\n    x = load(args.out)\n    x = change(args, x)\n    store(args.out, x)\n"

    def link_block(self, library, name: str, argument: str):
        text = f"@jit\ndef {name}(args, x):\n    return x + args.{argument}\n"
        return library.block(text, name=name, HOOKS={"change": name}, arguments=(Argument(argument, "i32", ""),))

    def test_links_in_recipe_order(self, library):
        kernel = library.kernel(self.LOOP, self.link_block(library, "second", "s"), self.link_block(library, "first", "f"), arguments=(POINTER,))
        text = body_of(kernel)
        assert "# ---- chain change\n@jit\ndef change(s, f, x):" in text
        assert '"""Chain of second, first, in recipe order."""\n    x = second(s, x)\n    x = first(f, x)\n    return x' in text
        assert "x = change(s, f, x)" in text and text.index("def first") < text.index("def change") < text.index("def kernel")

    @pytest.mark.parametrize("takes,passed,values", [("args, x, b", "x, b", "x, 2"), ("args, x, a, b", "x, a, b", "x, 1, 2"), ("args, x", "x", "x")])
    def test_a_link_takes_what_it_needs(self, library, takes, passed, values):
        """What no link takes is not passed to the chain either."""
        loop = self.LOOP.replace("change(args, x)", "change(args, x, 1, 2)")
        part = library.block(f"@jit\ndef add({takes}):\n    return {passed.replace(',', ' +')}\n", HOOKS={"change": "add"})
        text = body_of(library.kernel(loop, part, arguments=(POINTER,), CHAINS={"change": ("args", "x", "a", "b")}))
        assert f"def change({passed}):" in text and f"x = add({passed})" in text
        assert f"x = change({values})" in text

    @pytest.mark.parametrize("takes", ["args, x, b, a", "args, x, c", "args, y", "x"])
    def test_a_link_that_takes_something_else(self, library, takes):
        part = library.block(f"@jit\ndef add({takes}):\n    return x\n", HOOKS={"change": "add"})
        kernel = library.kernel(self.LOOP, part, arguments=(POINTER,), CHAINS={"change": ("args", "x", "a", "b")})
        fails(kernel, f"part_1.py:14: add takes ({takes}), but a link of change takes args, x and any of a, b, in this order")

    def test_a_link_that_its_block_does_not_define(self, library):
        kernel = library.kernel(self.LOOP, library.block("@jit\ndef add(x):\n    return x\n", HOOKS={"change": "sum"}), arguments=(POINTER,))
        fails(kernel, "sum, which joins the chain change, is not defined by its block")

    def test_an_empty_chain_vanishes(self, library):
        assert "change" not in body_of(library.kernel(self.LOOP, arguments=(POINTER,)))

    @pytest.mark.parametrize(
        ("call", "left"),
        [
            ("x = change(args, x + 1)", "x = x + 1"), ("x = 2 * change(args, x + 1)", "x = 2 * (x + 1)"), ("x = abs_of(change(args, x + 1))", "x = abs_of(x + 1)"),
            ("x = change(args, change(args, x + 1))", "x = x + 1"),
        ],
    )  # fmt: skip
    def test_a_call_of_an_empty_chain_is_the_value_it_was_given(self, library, call, left):
        text = self.LOOP.replace("x = change(args, x)", call) + "\n\n@jit\ndef abs_of(x):\n    return maximum(x, -x)\n"
        assert f"    {left}\n" in body_of(library.kernel(text, arguments=(POINTER,)))

    def test_calls_of_empty_functions_vanish_with_their_branches(self, library):
        part = library.block(
            "@jit\ndef trace(args, x):\n    if ON:\n        store(args.out, x)\n\n\n@jit\ndef used(x):\n    return x\n", constants={"ON": Constant(False)}
        )
        text = "@jit\ndef kernel(args):\n    x = used(load(args.out))\n    if x > 1:\n        if x > 2:\n            trace(args, x)\n    store(args.out, x)\n"
        kernel = library.kernel(text, part, arguments=(POINTER,))
        assert body_of(kernel).endswith("def kernel(out):\n    x = used(load(out))\n    store(out, x)\n") and "trace" not in body_of(kernel)

    def test_a_block_that_only_empty_functions_use_is_unused(self, library):
        part = library.block("@jit\ndef trace(args, x):\n    if ON:\n        store(args.out, x)\n", constants={"ON": Constant(False)})
        user = library.block("@jit\ndef wrap(args, x):\n    trace(args, x)\n")
        text = (
            self.LOOP.replace("x = change(args, x)", "wrap(args, x)").replace("store(", "z = other(x)\n    store(") + "\n\n@jit\ndef other(x):\n    return x\n"
        )
        with pytest.raises(LinkError, match=r"pieces\[0\]: the kernel would not use the block part/part; take it out of the recipe"):
            generate(library.kernel(text, part, user, arguments=(POINTER,)), "cpu")


def test_parameters_that_nothing_reads_are_not_passed_around(library):
    part = library.block("@jit\ndef f(args, x, y):\n    if ON:\n        x = x + y\n    return x\n", constants={"ON": Constant(False)})
    text = body_of(library.kernel("@jit\ndef kernel(args):\n    store(args.out, f(args, 1, load(args.out)))\n", part, arguments=(POINTER,)))
    assert "def f(x):\n    return x" in text and "store(out, f(1))" in text


class TestErrors:
    def test_undefined_name(self, library):
        fails(
            library.kernel("@jit\ndef kernel(args):\n    nothing(1)\n"),
            "loop_1.py:15: kernel uses nothing, which is no operation of the dialect, constant or function",
        )

    def test_function_defined_twice(self, library):
        parts = [library.block("@jit\ndef f(x):\n    return x\n") for _ in range(2)]
        fails(library.kernel("@jit\ndef kernel(args):\n    f(1)\n", *parts), "f is defined by pieces[0] and by pieces[1]")

    def test_unused_block(self, library):
        part = library.block("@jit\ndef f(x):\n    return x\n", name="spare")
        fails(
            library.kernel("@jit\ndef kernel(args):\n    role_sync()\n", part),
            "pieces[0]: the kernel would not use the block part/spare; take it out of the recipe",
        )

    def test_a_block_whose_microkernel_alone_is_used(self, library):
        part = library.block("@jit\ndef f(x):\n    return x\n", name="micro")
        part.source_file().with_suffix(".cpu.py").write_text("def publish(x):\n    return x\n")
        assert "publish(1)" in body_of(library.kernel("@jit\ndef kernel(args):\n    publish(1)\n", part))

    def test_a_local_variable_does_not_use_a_block(self, library):
        part = library.block("@jit\ndef f(x):\n    return x\n")
        fails(library.kernel("@jit\ndef kernel(args):\n    f = 1\n    store(args.out, f)\n", part, arguments=(POINTER,)), "would not use")

    def test_missing_entry(self, library):
        fails(library.kernel("@jit\ndef other(args):\n    role_sync()\n"), "entry kernel is not defined by its block")

    def test_unknown_target(self, library):
        kernel = library.kernel("@jit\ndef kernel(args):\n    role_sync()\n")
        fails(lambda: generate(kernel, "cuda"), "no target is called 'cuda'; there are gluon, tle, cpu")

    def test_text_is_linted(self, library):
        with pytest.raises(LintError, match=r"loop_1\.py:18: `break`"):
            generate(library.kernel("@jit\ndef kernel(args):\n    for i in range(3):\n        break\n"), "cpu")

    def test_calls_are_linted(self, library):
        with pytest.raises(LintError, match="recursion: f -> kernel -> f"):
            part = library.block("@jit\ndef f(x):\n    kernel(x)\n")
            generate(library.kernel("@jit\ndef kernel(args):\n    f(1)\n", part), "cpu")


def test_origin_traces_a_line_to_its_block(library):
    part = library.block("@jit\ndef f(args):\n    store(args.out, 1)\n", arguments=(POINTER,))
    generated = generate(library.kernel("@jit\ndef kernel(args):\n    f(args)\n", part), "cpu")
    lines = generated.text.splitlines()
    at = next(i for i, line in enumerate(lines, 1) if "store(out, 1)" in line)
    assert generated.origin(at) == f"pieces[0] ({part.source_file()}:16 or nearby)"
    assert part.source_file().read_text().splitlines()[15].strip() == "store(args.out, 1)"
    assert generated.origin(1) == "prelude"


def test_kernels_come_last_and_functions_of_a_block_stay_together(library):
    parts = [library.block(f"@jit\ndef {n}2(x):\n    return x\n\n\n@jit\ndef {n}1(x):\n    return {n}2(x)\n") for n in ("f", "g")]
    kernel = library.kernel("@jit\ndef kernel(args):\n    after(f1(g1(1)))\n\n\n@jit\ndef after(x):\n    assert x > 0\n", *parts)
    names = [n.name for n in ast.parse(body_of(kernel)).body if isinstance(n, ast.FunctionDef)]
    assert names == ["f2", "f1", "g2", "g1", "after", "kernel"]
