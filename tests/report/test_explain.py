"""What `explain` says, against the specs and against sums made here."""

from __future__ import annotations

from pathlib import Path

import pytest

import tle_attn
from tle_attn.report import Table, Workload, explain

RECIPES = tle_attn.list_recipes()


def table(tables: list[Table], start: str) -> Table:
    (found,) = [t for t in tables if t.title.startswith(start)]
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_every_block_with_every_option(name: str) -> None:
    recipe = tle_attn.load(name)
    shown = table(explain(recipe, protocol=False), "Blocks")
    kernel = recipe.kernel()
    assert [(row[0], row[1]) for row in shown.rows] == [(where, block.NAME) for where, block in kernel.blocks]
    if "ring" in dict(kernel.blocks):
        assert {r[0]: r[2] for r in shown.rows}["ring"] == f"stages = {kernel.mainloop.ring.stages}"


def test_shared_memory_adds_up() -> None:
    recipe = tle_attn.load("hy3/decode_bf16").set({"ring.stages": 2, "problem.page": 16})
    shown = table(explain(recipe, protocol=False), "Shared memory")
    sizes = {row[0]: int(row[3].replace(",", "")) for row in shown.rows}
    total = sizes.pop("sum")
    assert total == sum(sizes.values())
    assert sizes["k_ring"] == sizes["v_ring"] == 2 * 64 * 128 * 2
    # a 64-token tile of pages of 16 is 4 pages x 2 column blocks: as many full barriers for K and for V, and one empty barrier each
    assert sizes["mbarriers"] == 8 * (2 * 2 * 8 + 2 * 2)


def test_barriers_say_who_arrives_and_who_waits() -> None:
    recipe = tle_attn.load("hy3/decode_bf16")
    rows = {r[0]: r for r in table(explain(recipe, protocol=False), "Barriers").rows}
    resources = recipe.kernel().resources
    roles = {r.name for r in resources.roles}
    assert set(rows) == {b.name for b in (*resources.barriers, *resources.named)}
    assert rows["k_full"][2] == "1 arrival + 16,384 B" and rows["k_full"][5] == "in use"  # a TMA box of 64 x 128 bf16
    assert rows["k_empty"][5] == "free" and {rows["k_empty"][3], rows["k_empty"][4]} <= roles


def test_protocol_is_explored_around_the_ring() -> None:
    recipe = tle_attn.load("hy3/decode_bf16_static").set({"ring.stages": 2})
    rows = dict(table(explain(recipe), "Barrier protocol").rows)
    assert rows["key tiles"] == "around 0, 1, 2, 3, 7" and rows["result"] == "no fault"
    assert not [t for t in explain(recipe, protocol=False) if t.title == "Barrier protocol"]


def test_registers_of_roles_fit_what_is_launched() -> None:
    shown = table(explain(tle_attn.load("hy3/decode_bf16"), protocol=False), "Roles")
    assert sum(int(r[4].replace(",", "")) for r in shown.rows) <= 65536 // 2
    assert "65,536 of 65,536" in shown.note


def test_arguments_are_those_of_the_module() -> None:
    recipe = tle_attn.load("hy3/decode_bf16")
    tables = explain(recipe, protocol=False)
    for entry in tle_attn.generate(recipe.kernel(), "tle").entries:
        assert [r[0] for r in table(tables, f"Kernel {entry.name}").rows] == [a.name for a in entry.arguments]


def test_floor_is_for_the_stated_workload() -> None:
    shown = table(explain(tle_attn.load("hy3/decode_bf16"), Workload.named("one_64k_7x4k"), protocol=False), "Time floor")
    assert shown.title == "Time floor of one_64k_7x4k (1 x 65536 tokens, 7 x 4096 tokens, 1 kv head)"
    tokens = 65536 + 7 * 4096
    assert float(shown.rows[0][3]) == pytest.approx((tokens * 2 * 128 * 2 + 8 * 8 * 128 * 4) / 4.27e12 * 1e6, abs=0.01)


def test_differences_against_the_parent_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "hy3/decode_bf16"\n[ring]\nstages = 2\n')
    (tmp_path / "child.toml").write_text('extends = "base.toml"\n[epilogue]\nlse = "2"\n')
    shown = table(explain(tle_attn.load(tmp_path / "child.toml"), protocol=False), "Differences against base")
    assert shown.rows == (("epilogue.lse", "none", "2"),)


def test_a_recipe_without_a_parent_has_no_such_table() -> None:
    assert not [t for t in explain(tle_attn.load("hy3/decode_bf16"), protocol=False) if t.title.startswith("Differences")]
