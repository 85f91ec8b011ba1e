"""Plans: geometry errors, exact workspaces, grids and arguments of launches."""

import math
import re

import pytest
import torch

import tle_attn
from tle_attn.errors import InputError, SpecError, TleAttnError
from tle_attn.spec.tasks import RECORD, RECORD_PAGES
from tle_attn.testing import make_decode_problem


class TestGeometry:
    @pytest.mark.parametrize("geometry,message", [
        ({"batch": -1}, "batch: -1 where an integer from 0 up is wanted"),
        ({"batch": 2.0}, "batch: 2.0 where an integer from 0 up is wanted"),
        ({"batch": True}, "batch: True where an integer from 0 up is wanted"),
        ({"kv_heads": 0}, "kv_heads: 0 where an integer from 1 up is wanted"),
        ({"query_heads": 0}, "query_heads: 0 where an integer from 1 up is wanted"),
        ({"query_heads": "8"}, "query_heads: '8' where an integer from 1 up is wanted"),
        ({"query_heads": 9, "kv_heads": 2}, "query_heads: 9 is no multiple of kv_heads 2"),
    ])  # fmt: skip
    def test_refused(self, make_plan, geometry, message):
        with pytest.raises(InputError, match=re.escape(message)):
            make_plan(**geometry)

    def test_what_no_kernel_serves_names_the_recipe_key(self, make_plan):
        with pytest.raises(SpecError, match=r"decode_bf16\.toml with .*problem\.page = 48: problem\.page: page cannot be 48"):
            make_plan(page=48)
        with pytest.raises(SpecError, match="problem.pages: Problem has no option 'pages'"):
            make_plan(pages=64)
        with pytest.raises(InputError, match="tuend: plan has no such parameter; did you mean 'tuned'?"):
            make_plan(tuend=True)
        with pytest.raises(SpecError, match="3 query tokens x 32 heads are 96 query rows"):
            make_plan(query_tokens=3, query_heads=32)

    def test_heads_choose_the_group(self, make_plan):
        assert make_plan(query_heads=32, kv_heads=8).kernel.problem.group == 4

    def test_a_kernel_has_its_problem(self, executor):
        kernel = tle_attn.load("hy3/decode_bf16").kernel(group=4)
        assert tle_attn.plan(kernel, batch=1, query_heads=8, kv_heads=2, target="cpu").kernel is kernel
        with pytest.raises(InputError, match="page: a Kernel's problem is fixed; give a recipe to choose it"):
            tle_attn.plan(kernel, batch=1, query_heads=8, kv_heads=2, target="cpu", page=64)
        with pytest.raises(InputError, match="query_heads: 8 for 1 kv heads, but hy3/decode_bf16 is for 4 query heads per kv head"):
            tle_attn.plan(kernel, batch=1, query_heads=8, kv_heads=1, target="cpu")

    def test_a_recipe_by_name(self, executor):
        assert tle_attn.plan("hy3/decode_bf16", batch=1, query_heads=8, kv_heads=1, target="cpu").kernel.name == "hy3/decode_bf16"

#: a task and its first page ids
RECORD_WORDS = RECORD + RECORD_PAGES


class TestWorkspace:
    @pytest.mark.parametrize("batch,kv_heads,ctas,tasks", [
        (3, 1, 8, 8),  # fewer sequences than CTAs: one task a CTA at most
        (8, 1, 8, 4 * 8 + 8),  # half as many or more: a few tasks for every CTA, and one for every sequence
        (1, 2, 8, 8),  # 4 CTAs a head
        (3, 16, 8, 16 * (4 + 3)),  # more heads than CTAs: at least one a head
        (0, 1, 8, 8),
    ])  # fmt: skip
    def test_of_the_task_map(self, make_plan, executor, batch, kv_heads, ctas, tasks):
        executor.ctas = ctas
        plan = make_plan(batch=batch, query_heads=8 * kv_heads, kv_heads=kv_heads)
        assert (plan.slots, plan.tasks) == (ctas, tasks)
        sizes = {name: (t.dtype, t.numel()) for name, t in plan.workspace.items()}
        assert sizes == {
            "partial_o": (torch.float32, tasks * 8 * 128), "partial_ml": (torch.float32, tasks * 2 * 8),
            "counters": (torch.int32, 2 * max(1, batch * kv_heads)), "tasks": (torch.int32, tasks * RECORD_WORDS),
        }  # fmt: skip
        assert plan.workspace_bytes == sum(4 * n for _, n in sizes.values())
        assert not plan.workspace["counters"].any()

    def test_of_the_static_split(self, make_plan):
        plan = make_plan("hy3/decode_bf16_static", {"schedule.splits": 5}, query_heads=16, kv_heads=2)
        assert plan.tasks == 3 * 2 * 5 and "tasks" not in plan.workspace
        assert plan.workspace["partial_o"].numel() == 30 * 8 * 128
        alone = make_plan("hy3/decode_bf16_static", {"schedule.splits": 1})
        assert alone.workspace["partial_o"].numel() == 0

    def test_padded_query_rows_have_room(self, make_plan):
        plan = make_plan(query_tokens=3)  # 24 rows in 32 columns
        assert plan.workspace["partial_o"].numel() == plan.tasks * 32 * 128

    def test_reset(self, make_plan):
        plan = make_plan()
        plan.workspace["counters"].fill_(3)
        plan.reset()
        assert not plan.workspace["counters"].any()

    def test_nothing_is_allocated_by_a_run_that_is_given_its_output(self, make_plan, arguments, monkeypatch):
        plan, out = make_plan(), torch.zeros(3, 8, 128, dtype=torch.bfloat16)
        for name in ("empty", "zeros", "full", "empty_like", "zeros_like", "tensor"):
            monkeypatch.setattr(torch, name, lambda *_, name=name, **__: pytest.fail(f"torch.{name} was called"))
        assert plan.run(**arguments, out=out)[0] is out


class TestLaunches:
    def test_planner_then_kernel(self, make_plan, executor, arguments, problem):
        plan = make_plan()
        plan.run(**arguments)
        (planner, grid, planned), (kernel, tasks, values) = executor.launches
        assert (planner, kernel, grid, tasks) == ("plan_tasks", "decode", (plan.tasks,), (plan.tasks,))
        assert planned["kv_lens"] is problem.kv_lens and planned["tasks"] is values["tasks"] is plan.workspace["tasks"]
        assert (planned["batch"], planned["kv_heads"], planned["slots"], planned["new_tokens"]) == (3, 1, 8, 0)
        assert values["q"] is problem.q and values["scale_log2"] == pytest.approx(math.log2(math.e) / math.sqrt(128))

    def test_scheduled_once_for_many_layers(self, make_plan, executor, arguments):
        plan = make_plan()
        plan.schedule(arguments["kv_lens"], block_ids=arguments["block_ids"], new_kv_included=False)
        for _ in range(3):
            plan.run(**arguments, scheduled=True, new_kv_included=False)
        assert [entry for entry, *_ in executor.launches] == ["plan_tasks", "decode", "decode", "decode"]
        assert executor.launches[0][2]["new_tokens"] == 1, "the step's own token is added"

    def test_static_split_plans_nothing(self, make_plan, executor, arguments):
        plan = make_plan("hy3/decode_bf16_static")
        plan.run(**arguments)
        assert [(entry, grid) for entry, grid, _ in executor.launches] == [("decode", (16, 3))]
        with pytest.raises(TleAttnError, match="uses schedule/static_split, which plans nothing"):
            plan.schedule(arguments["kv_lens"])

    def test_schedule_checks_lengths(self, make_plan, executor, arguments):
        with pytest.raises(InputError, match=r"kv_lens: shape \(2,\)"):
            make_plan().schedule(arguments["kv_lens"][:2], block_ids=arguments["block_ids"])
        assert not executor.launches

    def test_softmax_scale(self, make_plan, executor, arguments):
        make_plan().run(**arguments, softmax_scale=0.5)
        assert executor.launches[-1][2]["scale_log2"] == pytest.approx(0.5 * math.log2(math.e))

    def test_output_is_made_in_the_epilogues_type(self, make_plan, arguments):
        out, _ = make_plan(options={"epilogue.dtype": "f32"}).run(**arguments)
        assert out.dtype == torch.float32 and out.shape == (3, 8, 128)

    def test_a_missing_argument_is_found_before_the_planner_runs(self, make_plan, executor, arguments):
        from tle_attn.codegen import Entry
        from tle_attn.spec import Argument

        plan = make_plan()
        slopes = plan.arguments["slopes"] = Argument("slopes", "*f32", "ALiBi slopes")
        plan.entries["decode"] = Entry("decode", (*plan.entries["decode"].arguments, slopes))
        with pytest.raises(InputError, match=re.escape("slopes: this kernel needs it (ALiBi slopes); pass slopes= to run")):
            plan.run(**arguments)
        assert not executor.launches
        slopes = torch.zeros(8)
        plan.run(**arguments, slopes=slopes)
        assert executor.launches[-1][2]["slopes"] is slopes

    def test_each_mtp_depth_has_its_kernel(self, make_plan, executor):
        for tokens in (1, 2, 3):
            problem = make_decode_problem([9, 70], query_tokens=tokens)
            plan = make_plan(batch=2, query_tokens=tokens)
            out, _ = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
            assert plan.kernel.problem.query_tokens == tokens and out.shape == (2 * tokens, 8, 128)
