"""Prefill plans: geometry errors, exact workspaces, grids and arguments of launches, and every rule for the tensors of a run."""

import math
import re

import pytest
import torch
from attrs import evolve

from tle_attn.errors import InputError, InputTypeError, TleAttnError
from tle_attn.spec.tasks import most_units, unit_capacity
from tle_attn.testing import make_contiguous_problem, make_prefill_problem

BF16, FP8 = "hy3/prefill_bf16", "hy3/prefill_fp8"
MASK = {"tiles.block": "block_mask"}
PAIRS = ((130, 200), (0, 64), (5, 70))


@pytest.fixture
def make(make_plan):
    """make(recipe, options, **geometry): a plan of 3 sequences with 8 query heads over one and up to 135 rows."""
    return lambda name=BF16, options=None, **geometry: make_plan(name, options, **{"max_query_rows": 135, **geometry})


@pytest.fixture
def problem():
    return make_prefill_problem(*zip(*PAIRS))


@pytest.fixture
def fp8_problem():
    return make_prefill_problem(*zip(*PAIRS), dtype="fp8", quant=1)


class TestPlan:
    @pytest.mark.parametrize("rows", [None, -1, 1.5, True])
    def test_wants_a_number_of_rows(self, make, rows):
        with pytest.raises(InputError, match=re.escape(f"max_query_rows: {rows!r} where an integer from 0 up is wanted; hy3/prefill_bf16 is a prefill kernel")):
            make(max_query_rows=rows)

    @pytest.mark.parametrize("rows,batch", [(135, 3), (0, 3), (1, 1), (1000, 1), (64, 64), (128, 0)])
    def test_workspace(self, make, rows, batch):
        plan = make(max_query_rows=rows, batch=batch)
        assert plan.max_units == -(-rows // 128) + batch
        assert {name: (t.dtype, t.numel()) for name, t in plan.workspace.items()} == {"units": (torch.int32, 8 * (1 + plan.max_units)), "queue": (torch.int32, 2)}
        assert not plan.workspace["queue"].any()
        plan.workspace["queue"].fill_(3)
        plan.reset()
        assert not plan.workspace["queue"].any()

    def test_bound_on_units_holds_for_all_lengths(self):
        """For 300 random batches, and met by some: a row in every sequence's last tile."""
        generator = torch.Generator().manual_seed(1)
        met = 0
        for _ in range(300):
            batch = int(torch.randint(1, 9, (1,), generator=generator))
            lens = [int(n) for n in torch.randint(0, 400, (batch,), generator=generator)]
            unit = 64 * int(torch.randint(1, 3, (1,), generator=generator))
            units, rows = sum(-(-n // unit) for n in lens), sum(lens)
            assert units <= most_units(rows, batch, unit) <= unit_capacity(rows, batch, unit)
            met += units == most_units(rows, batch, unit)
        assert met and most_units(1 + 129 + 1, 3, 128) == 4 and most_units(3, 64, 128) == 3


class TestScale:
    @pytest.mark.parametrize("scale", [0.0, -0.1])
    def test_scales_that_turn_the_order_of_scores_are_refused(self, make, executor, problem, scale):
        with pytest.raises(InputError, match="softmax_scale: .* is not above 0"):
            make().run(**problem.inputs, softmax_scale=scale)
        assert not executor.launches


class TestLaunches:
    def test_planner_then_kernel(self, make, executor, problem):
        plan = make()
        out, lse = plan.run(**problem.inputs)
        assert out.shape == problem.q.shape and out.dtype == torch.bfloat16 and lse is None
        (planner, planner_grid, planned), (kernel, grid, values) = executor.launches
        assert (planner, planner_grid, kernel, grid) == ("plan_units", (3,), "prefill", (8,))
        assert planned["units"] is plan.workspace["units"] and planned["cu_seqlens_q"] is problem.cu_seqlens_q and planned["batch"] == 3
        assert values["units"] is plan.workspace["units"] and values["queue"] is plan.workspace["queue"]
        assert values["out"] is out and (values["out_token_stride"], values["out_head_stride"]) == (8 * 128, 128)
        assert values["scale_log2"] == pytest.approx(math.log2(math.e) / math.sqrt(128))
        assert (values["batch"], values["query_heads"]) == (3, 8)

    def test_descriptors_put_heads_first(self, make, executor, problem):
        make().run(**problem.inputs)
        _, _, values = executor.launches[-1]
        assert values["q_desc"][1:] == (problem.q.data_ptr(), [8, 135, 128], [128, 8 * 128, 1])
        assert values["k_desc"][1:] == (problem.k_cache.data_ptr(), [problem.k_cache.shape[0], 1, 64, 128], [64 * 128, 128, 128, 1])

    def test_without_pages(self, make_plan, executor):
        problem = make_contiguous_problem((130, 5))
        plan = make_plan("hy3/prefill_bf16_contiguous", batch=2, max_query_rows=135)
        assert not plan.paged
        plan.run(**problem.inputs)
        _, _, values = executor.launches[-1]
        assert values["k_desc"][2:] == ([1, 135, 128], [128, 128, 1]) and "block_ids" not in values

    def test_one_sequence_is_not_planned(self, make, executor):
        problem = make_prefill_problem((130,), (200,))
        plan = make(batch=1)
        plan.schedule(**problem.lengths)
        plan.run(**problem.inputs, scheduled=True)
        plan.run(**problem.inputs)
        assert [entry for entry, _, _ in executor.launches] == ["prefill", "prefill"]

    def test_planned_before(self, make, executor, problem):
        plan = make()
        with pytest.raises(InputError, match="scheduled: schedule.. has not filled this plan's units"):
            plan.run(**problem.inputs, scheduled=True)
        assert not executor.launches
        plan.schedule(**problem.lengths)
        plan.run(**problem.inputs, scheduled=True)
        assert [entry for entry, _, _ in executor.launches] == ["plan_units", "prefill"]

    @pytest.mark.parametrize("ctas,grid", [(1, 1), (8, 8), (1000, 8 * 3)])
    def test_grid_is_no_larger_than_the_work_can_be(self, make, executor, problem, ctas, grid):
        """135 rows in 3 sequences are 4 tiles at most: 1 + 1 + 133 rows make 4, and none make more."""
        executor.ctas = ctas
        make().run(**problem.inputs)
        assert executor.launches[-1][1] == (min(ctas, 8 * most_units(135, 3, 128)),)
        assert grid <= executor.launches[-1][1][0]

    def test_nothing_to_do(self, make, executor, problem):
        make(batch=0).run(**make_prefill_problem((), (), padding_rows=3).inputs)
        make().run(**evolve(problem, q=problem.q[:0]).inputs)
        assert not executor.launches

    def test_block_mask(self, make, executor):
        problem = make_prefill_problem(*zip(*PAIRS), mask_density=0.5)
        make(options=MASK).run(**problem.inputs)
        _, _, values = executor.launches[-1]
        assert values["block_mask"] is problem.block_mask and values["block_mask_columns"] == 2
        assert [values[f"block_mask_{axis}_stride"] for axis in ("batch", "head", "row")] == [8 * 2 * 2, 2 * 2, 2]

    def test_scales(self, make, executor, fp8_problem):
        make(FP8).run(**fp8_problem.inputs)
        _, _, values = executor.launches[-1]
        assert values["q_scale"] is fp8_problem.q_scale
        assert (values["q_scale_batch_stride"], values["q_scale_head_stride"]) == (8 * 256, 256)

    def test_log_sum_exp(self, make, executor, problem):
        _, lse = make(options={"epilogue.lse": "e"}).run(**problem.inputs)
        assert lse.shape == (135, 8) and executor.launches[-1][2]["lse"] is lse

    def test_memory_of_the_caller(self, make_plan, executor, problem):
        from tle_attn.runtime.prefill import plan_prefill

        kernel = make_plan(BF16, max_query_rows=1).kernel
        bare = plan_prefill(kernel, batch=3, query_heads=8, kv_heads=1, max_query_rows=200, device="cpu", target="cpu", executor=executor, owns_workspace=False)
        assert bare.workspace == {} and bare.workspace_bytes == 0
        given = {name: torch.zeros(count, dtype=torch.int32) for name, (_, count) in bare.needs.items()}
        with pytest.raises(InputError, match="workspace: units, queue missing; this plan owns no workspace"):
            bare.run(**problem.inputs)
        assert not executor.launches
        bare.run(**problem.inputs, workspace=given)
        assert executor.launches[0][2]["units"] is given["units"] and executor.launches[1][2]["queue"] is given["queue"]


def wide(tensor: torch.Tensor, dim: int, by: int) -> torch.Tensor:
    """The same values in a tensor that is wider by `by` elements in `dim`."""
    shape = list(tensor.shape)
    shape[dim] += by
    view = torch.zeros(shape, dtype=tensor.dtype).narrow(dim, 0, tensor.shape[dim])
    view.copy_(tensor)
    return view


REFUSED = {
    "q rows": (BF16, "q", lambda t: torch.cat([t, t]), "q: 270 rows, but the plan is for 135 at most; make it with max_query_rows=270"),
    "q heads": (BF16, "q", lambda t: t[:, :4], "q: shape (135, 4, 128) where [rows, query_heads, head_dim] = (any, 8, 128) is wanted"),
    "q dtype": (BF16, "q", lambda t: t.float(), "q: dtype float32 where bfloat16 is wanted"),
    "q last stride": (BF16, "q", lambda t: torch.stack([t, t], -1)[..., 0], "q: stride 2 in the last dimension where 1 is wanted (TMA)"),
    "q row stride": (BF16, "q", lambda t: wide(t.view(135, 1024), 1, 4).view(135, 8, 128), "q: row stride in bytes 2056 is not a multiple of 16 (TMA)"),
    "q head stride": (BF16, "q", lambda t: wide(t, 2, 4), "q: head stride in bytes 264 is not a multiple of 16 (TMA)"),
    "v pages": (BF16, "v_cache", lambda t: t[1:], "v_cache: "),
    "no block ids": (BF16, "block_ids", lambda t: None, "block_ids: a torch.Tensor is wanted, not NoneType"),
    "starts length": (BF16, "cu_seqlens_q", lambda t: t[:-1], "cu_seqlens_q: shape (3,) where [batch + 1] = (4) is wanted"),
    "starts dtype": (BF16, "cu_seqlens_q", lambda t: t.long(), "cu_seqlens_q: dtype int64 where int32 is wanted"),
    "starts stride": (BF16, "cu_seqlens_q", lambda t: torch.stack([t, t], 1)[:, 0], "cu_seqlens_q: stride 2 where 1 is wanted"),
    "lengths": (BF16, "kv_lens", lambda t: t[:2], "kv_lens: shape (2,) where [batch] = (3) is wanted"),
    "scales of bf16": (BF16, "q_scale", lambda t: torch.ones(3, 8, 256), "q_scale: hy3/prefill_bf16 takes bf16 tensors, which have no scales"),
    "no scale": (FP8, "k_scale", lambda t: None, "k_scale: missing; hy3/prefill_fp8 takes fp8 tensors"),
    "q scale by row": (FP8, "q_scale", lambda t: torch.ones(135, 8), "q_scale: shape (135, 8) where [batch, query_heads, queries of the longest sequence or more] = (3, 8, any)"),
    "q scale stride": (FP8, "q_scale", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "q_scale: stride 8 in the last dimension where 1 is wanted"),
    "v scale": (FP8, "v_scale", lambda t: torch.ones(2), "v_scale: shape (2,) where [1] = (1) is wanted"),
    "mask of a dense kernel": (BF16, "block_mask", lambda t: torch.ones(3, 8, 2, 2, dtype=torch.uint8), "block_mask: hy3/prefill_bf16 takes none; use a recipe with one"),
    "out rows": (BF16, "out", lambda t: torch.zeros(134, 8, 128, dtype=torch.bfloat16), "out: shape (134, 8, 128) where [rows of q, query_heads, head_dim] = (135, 8, 128)"),
    "lse": (BF16, "lse", lambda t: torch.zeros(135, 8), "lse: this kernel writes none"),
    "softmax scale": (BF16, "softmax_scale", lambda t: float("inf"), "softmax_scale: inf is not finite"),
    "unknown": (BF16, "slopes", lambda t: torch.zeros(8), "slopes: hy3/prefill_bf16 has no such argument"),
    "queue": (BF16, "queue", lambda t: torch.zeros(2), "queue: not to be given"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_a_launch(case, make, executor, problem, fp8_problem):
    recipe, name, change, message = REFUSED[case]
    given = (problem if recipe == BF16 else fp8_problem).inputs
    given[name] = change(given.get(name))
    with pytest.raises((InputError, InputTypeError), match=re.escape(message)):
        make(recipe).run(**given)
    assert not executor.launches


MASKS = {
    "missing": (lambda m: None, "block_mask: missing; hy3/prefill_bf16 takes one"),
    "dtype": (lambda m: m.bool(), "block_mask: dtype bool where uint8 is wanted"),
    "heads": (lambda m: m[:, :4], "block_mask: shape (3, 4, 2, 2) where [batch, query_heads, query tiles of 128, key tiles of 128] = (3, 8, any, any)"),
    "no columns": (lambda m: m[..., :0], "block_mask: shape (3, 8, 2, 0) has no key tiles"),
    "stride": (lambda m: m.transpose(2, 3).contiguous().transpose(2, 3), "block_mask: stride 2 in the last dimension where 1 is wanted"),
    "device": (lambda m: m.to("meta"), "block_mask: on meta, but the plan is for cpu"),
}


@pytest.mark.parametrize("case", MASKS)
def test_refused_masks(case, make, executor):
    change, message = MASKS[case]
    problem = make_prefill_problem(*zip(*PAIRS), mask_density=0.5)
    with pytest.raises((InputError, InputTypeError), match=re.escape(message)):
        make(options=MASK).run(**{**problem.inputs, "block_mask": change(problem.block_mask)})
    assert not executor.launches


class TestDebug:
    """Values, which are read on the host when it was asked for, and then before a launch."""

    @pytest.mark.parametrize("name,value,message", [
        ("cu_seqlens_q", [1, 130, 130, 135], "cu_seqlens_q: [1, 130, 130, 135]; must start at 0 and never decrease"),
        ("cu_seqlens_q", [0, 130, 120, 135], "cu_seqlens_q: [0, 130, 120, 135]; must start at 0 and never decrease"),
        ("cu_seqlens_q", [0, 130, 130, 136], "cu_seqlens_q[3]: 136 query rows, but q has 135"),
        ("kv_lens", [200, 64, -1], "kv_lens[2]: -1 tokens, but block_ids has 7 pages of 64 a sequence"),
        ("kv_lens", [449, 64, 70], "kv_lens[0]: 449 tokens, but block_ids has 7 pages of 64 a sequence"),
        ("kv_lens", [257, 64, 70], "page -1 is in use"),
    ])  # fmt: skip
    def test_lengths(self, make, executor, problem, name, value, message):
        problem.block_ids[0, 4] = -1
        wrong = evolve(problem, **{name: torch.tensor(value, dtype=torch.int32)})
        with pytest.raises(InputError, match=re.escape(message)):
            make().run(**wrong.inputs, debug=True)
        assert not executor.launches
        make().run(**wrong.inputs)
        assert executor.launches, "without debug, no value is read"

    def test_pages_before_every_window_may_be_gone(self, make, executor):
        """The first of 64 queries at the end of 700 keys sees 100 of them from key 537 on, which is in page 8."""
        problem = make_prefill_problem((10, 64), (300, 700))
        plan = make("variants/prefill_bf16_window", {"mask[1].window": 100}, batch=2)
        problem.block_ids[1, :8] = -1
        plan.run(**problem.inputs, debug=True)
        problem.block_ids[1, 8] = -1
        with pytest.raises(InputError, match=re.escape("block_ids[1, 8]: page -1 is in use")):
            plan.run(**problem.inputs, debug=True)

    def test_right_values_pass(self, make, executor, problem, fp8_problem):
        make().run(**problem.inputs, debug=True)
        make(FP8).run(**fp8_problem.inputs, debug=True)
        masked = make_prefill_problem(*zip(*PAIRS), mask_density=0.5, mask_columns=1)
        make(options=MASK).run(**masked.inputs, debug=True)
        assert len(executor.launches) == 6

    def test_q_scales_of_the_longest_sequence(self, make, fp8_problem):
        with pytest.raises(InputError, match="q_scale: 129 in the last dimension, but the longest sequence has 130 queries"):
            make(FP8).run(**evolve(fp8_problem, q_scale=fp8_problem.q_scale[:, :, :129]).inputs, debug=True)

    def test_rows_of_a_mask(self, make):
        problem = make_prefill_problem(*zip(*PAIRS), mask_density=0.5)
        with pytest.raises(InputError, match="block_mask: 1 query tiles, but the longest sequence has 130 queries, 2 tiles of 128"):
            make(options=MASK).run(**evolve(problem, block_mask=problem.block_mask[:, :, :1]).inputs, debug=True)

    def test_strict_mode_needs_debug(self, make, problem):
        masked = make_prefill_problem(*zip(*PAIRS), mask_density=0.5)
        for options, given in ((MASK, {"strict_block_mask": True}), (None, {"strict_block_mask": True, "debug": True})):
            with pytest.raises(InputError, match="strict_block_mask: needs debug=True"):
                make(options=options).run(**(masked if options else problem).inputs, **given)

    def test_keys_without_pages(self, make_plan):
        problem = make_contiguous_problem((130, 5))
        plan = make_plan("hy3/prefill_bf16_contiguous", batch=2, max_query_rows=135)
        with pytest.raises(InputError, match=re.escape("kv_lens[1]: 6 keys from row 130 on, but k_cache has 135 rows")):
            plan.run(**evolve(problem, kv_lens=torch.tensor([130, 6], dtype=torch.int32)).inputs, debug=True)
        with pytest.raises(InputError, match="block_ids: hy3/prefill_bf16_contiguous takes K and V without pages; None is wanted"):
            plan.run(**{**problem.inputs, "block_ids": problem.block_ids})


def test_what_plans_nothing_says_so(make, executor, problem, monkeypatch):
    plan = make()
    monkeypatch.setattr(type(plan.kernel.mainloop.schedule), "PLANNED", False)
    with pytest.raises(TleAttnError, match="which plans nothing"):
        plan.schedule(**problem.lengths)
    with pytest.raises(InputError, match="scheduled: .* which plans nothing"):
        plan.run(**problem.inputs, scheduled=True)
    plan.run(**problem.inputs)
    assert [entry for entry, _, _ in executor.launches] == ["prefill"]
