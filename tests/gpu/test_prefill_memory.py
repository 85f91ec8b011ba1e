"""What prefill kernels read and write on the GPU: poison, rows of no sequence, offsets past 2**31, memory and launches of graphs."""

import pytest
import torch
from attrs import evolve

from benchmarks.prefill_cases import Case
from benchmarks.prefill_problems import make_problem, sampled_error
from tests.gpu import prefill_kernels as kernels
from tests.gpu.helpers import bits, check_replays
from tests.gpu.prefill_kernels import alone, check, compare_out, run
from tle_attn.errors import InputError
from tle_attn.verify import tolerance

PAIRS = ((1, 1), (13, 13), (5, 63), (65, 65), (127, 127), (3, 129), (700, 1000))
by_label = pytest.mark.parametrize("config", kernels.MAIN, ids=lambda c: c.label)


@by_label
def test_poisoned_slots_change_nothing(config):
    poisoned, zeros = (config.problem(PAIRS, seed=20, poison=poison) for poison in (True, False))
    plan = config.plan(poisoned)
    one, two = run(plan, poisoned)[0], run(plan, zeros)[0]
    assert torch.equal(bits(one), bits(two))
    compare_out(plan, poisoned, one)


@by_label
def test_rows_of_no_sequence_stay_as_they_are(config):
    problem = config.problem(PAIRS, seed=21, padding_rows=200)
    out = torch.full(problem.q.shape, 7.0, dtype=torch.bfloat16, device="cuda")
    run(config.plan(problem), problem, out)
    assert (out[problem.num_queries :] == 7.0).all() and out[: problem.num_queries].isfinite().all()


@by_label
def test_poisoned_workspace_changes_nothing(config):
    problem = config.problem(PAIRS, seed=22)
    plan = config.plan(problem)
    outs = []
    for fill in (0x00, 0xFF):
        for name in set(plan.workspace) - set(plan.ZEROED):
            plan.workspace[name].view(torch.uint8).fill_(fill)
        outs.append(run(plan, problem)[0])
    assert torch.equal(bits(outs[0]), bits(outs[1]))


@pytest.mark.parametrize("config", [c for c in kernels.MAIN if "block_ids" in c.kernel().arguments], ids=lambda c: c.label)
def test_pages_past_2_31_elements(config):
    """K, V (and K scales, in float32) start and end beyond 2**31 elements of their own types."""
    small = config.problem(((2, 65), (130, 128)), seed=23, extra_pages=0)
    per_token = small.k_scale is not None and small.k_scale.dim() == 4
    pages = 2**31 // (small.k_scale[0].numel() if per_token else small.k_cache[0].numel()) + 3
    if per_token:  # 8.6 GB of scales; caches of as many pages would be 275 GB, so theirs are the small ones, many times over
        pages_of_cache = len(small.k_cache)
        table = small.block_ids
        scales = torch.empty(pages, *small.k_scale.shape[1:], device="cuda")
        scales[:pages_of_cache] = small.k_scale
        strided = scales.as_strided(small.k_scale.shape, ((pages - 1) // (pages_of_cache - 1) * scales.stride(0), *scales.stride()[1:]))
        strided.copy_(small.k_scale)
        far = evolve(small, k_scale=strided, block_ids=table)
    else:
        used = torch.tensor([pages - 3, pages - 2, 0, pages - 1], device="cuda")
        bytes_ = [torch.empty(pages, *small.k_cache.shape[1:], dtype=small.k_cache.dtype, device="cuda") for _ in range(2)]
        for cache, live in zip(bytes_, (small.k_cache, small.v_cache), strict=True):
            cache[used] = live
        block_ids = small.block_ids.clone()
        block_ids[:, :2] = used[small.block_ids[:, :2].clamp(0, 3).long()].int()
        far = evolve(small, k_cache=bytes_[0], v_cache=bytes_[1], block_ids=block_ids)
    plan = config.plan(small)
    assert torch.equal(bits(run(plan, far)[0]), bits(run(plan, small)[0]))


def test_rows_past_2_31_elements():
    """q and out of 600,000 rows x 32 heads x 128: offsets of rows pass 2**31."""
    case = Case(group="ragged", name="", pairs=((1000, 1000),) * 600)
    problem = make_problem(case)
    assert problem.q.numel() > 2**31
    config = kernels.config(kernels.BF16)
    out = problem.new_output()
    plan = config.plan(problem)
    plan.run(**problem.inputs, out=out)
    assert sampled_error(problem, out) <= tolerance(config.kernel())[0]
    last = alone(problem, 599)
    assert torch.equal(bits(run(config.plan(last), last)[0]), bits(out[-1000:]))


def test_used_page_out_of_range_in_debug_mode():
    config = kernels.config(kernels.BF16)
    problem = config.problem(((5, 5), (20, 200)), seed=24)
    problem.block_ids[1, 2] = 2**31 - 1
    with pytest.raises(InputError, match=r"block_ids\[1, 2\]: page 2147483647 is in use"):
        run(config.plan(problem), problem, debug=True)


class TestLaunches:
    @by_label
    def test_graph_with_other_lengths(self, config):
        """Captured with short sequences; replayed with long ones, and with few of 8: equal to the oracle and, in every bit, to a call."""
        most = [(700, 700)] * 8
        problem = config.problem(most, seed=30, poison=False)
        plan, out = config.plan(problem), problem.new_output()

        def set_lengths(q_lens):
            starts = torch.tensor([0, *q_lens]).cumsum(0).int()
            problem.cu_seqlens_q.copy_(starts)
            problem.kv_lens.copy_(torch.tensor(q_lens, dtype=torch.int32))
            if not plan.paged:  # K and V lie where the queries do, and the pages that the oracle reads there are tokens
                problem.block_ids.copy_(problem.cu_seqlens_q[:-1, None] + torch.arange(problem.block_ids.shape[1], device="cuda"))

        set_lengths((64,) * 8)
        run(plan, problem, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(plan, problem, out)
        for q_lens in ((700,) * 8, (3, 699, 128, 0, 0, 0, 0, 0), (0,) * 8, (64,) * 8):
            set_lengths(q_lens)
            out.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            compare_out(plan, problem, out)
            assert torch.equal(bits(out), bits(run(plan, problem)[0]))

    @by_label
    def test_no_host_synchronisation(self, config):
        problem = config.problem(PAIRS, seed=31)
        plan, out = config.plan(problem), problem.new_output()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            run(plan, problem, out)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        compare_out(plan, problem, out)

    @by_label
    def test_runs_are_equal_in_every_bit(self, config):
        """Whichever CTA takes which unit."""
        problem = config.problem(((3000, 3000), (0, 0), (5, 5), (900, 900)), seed=32)
        check_replays(config.plan(problem), problem)

    @pytest.mark.parametrize("config", [c for c in kernels.MAIN if "block_ids" in c.kernel().arguments], ids=lambda c: c.label)
    def test_a_row_does_not_depend_on_its_batch(self, config):
        problem = config.problem(((700, 900), (3, 64), (129, 129), (64, 3000)), seed=33)
        together, _ = run(config.plan(problem), problem)
        for b in range(4):
            one = alone(problem, b)
            start, end = problem.cu_seqlens_q[b : b + 2].tolist()
            assert torch.equal(bits(run(config.plan(one), one)[0]), bits(together[start:end])), f"sequence {b}"

    def test_layers_of_a_step_share_a_schedule(self):
        config = kernels.MAIN[0]
        problems = [config.problem(((700, 900), (3, 64), (129, 129)), seed=34 + i) for i in range(3)]
        problems = [evolve(p, block_ids=problems[0].block_ids) for p in problems]
        plan = config.plan(problems[0])
        plan.schedule(**problems[0].lengths)
        outs = [run(plan, p, scheduled=True)[0] for p in problems for _ in range(2)]
        for i, out in enumerate(outs):
            compare_out(plan, problems[i // 2], out)

    def test_a_queue_that_was_left_is_reset(self):
        config = kernels.MAIN[0]
        problem = config.problem(seed=35)
        plan = check(config, problem)
        plan.workspace["queue"].fill_(1)
        plan.reset()
        compare_out(plan, problem, run(plan, problem)[0])
