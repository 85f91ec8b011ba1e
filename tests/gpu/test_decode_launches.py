"""Launches of decode kernels: CUDA graphs whose lengths change, no host synchronisation, equal bits in every run."""

import pytest
import torch
from attrs import evolve

from tests.gpu import kernels
from tests.gpu.helpers import bits, check_replays, compare_out, problem_for, run

CONFIGS = (*(kernels.config(recipe) for recipe in (kernels.DYNAMIC, kernels.STATIC, kernels.FP8, kernels.FP8_PER_TOKEN)), kernels.config(kernels.DYNAMIC, 3))
#: launches that start early: their edges in a graph are programmatic
EARLY = (*kernels.DETACHED, *kernels.EARLY)


def with_lengths(problem, lengths):
    """The same tensors, live lengths changed in place."""
    problem.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
    return problem


@pytest.mark.parametrize("config", (*CONFIGS, *EARLY), ids=lambda c: c.label)
def test_graph_with_other_lengths(config):
    """Captured with 64 keys a sequence; replayed with 5000, then with 3 live sequences of 8: equal to the oracle and, in every bit, to a call."""
    problem = problem_for(config, (5000,) * 8, seed=30, poison=False)
    plan = config.plan(8)
    out = problem.new_output()
    with_lengths(problem, (64,) * 8)
    run(plan, problem, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(plan, problem, out)
    for lengths in ((5000,) * 8, (3, 4999, 640, 0, 0, 0, 0, 0), (64,) * 8):
        with_lengths(problem, lengths)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        compare_out(plan, problem, out)
        assert torch.equal(out, run(plan, problem)[0])


@pytest.mark.parametrize("config", (*CONFIGS, *EARLY), ids=lambda c: c.label)
def test_no_host_synchronisation(config):
    problem = problem_for(config, seed=31)
    plan = config.plan(len(problem.kv_lens))
    out = problem.new_output()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(plan, problem, out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    compare_out(plan, problem, out)


@pytest.mark.parametrize("config", (*CONFIGS, *kernels.MERGES, *EARLY), ids=lambda c: c.label)
def test_runs_are_equal_in_every_bit(config):
    """Whoever arrives last, and in whatever order partial results are written."""
    problem = problem_for(config, (70_001, 4096, 0, 9000, 1), seed=32)
    check_replays(config.plan(5), problem)


@pytest.mark.parametrize("config", (kernels.config(kernels.DYNAMIC, 2), kernels.DETACHED[1], kernels.EARLY[1]), ids=lambda c: c.label)
def test_launches_overlap_in_nothing(config):
    """Launches queued without a synchronisation between them, as the layers of a step: one task map for all."""
    problems = [problem_for(config, (20_003, 300, 64, 0), seed=33 + i) for i in range(4)]
    first = problems[0]
    problems = [evolve(p, block_ids=first.block_ids, kv_lens=first.kv_lens) for p in problems]
    plan = config.plan(4)
    plan.schedule(**first.lengths)
    outs = [run(plan, problem, scheduled=True)[0] for problem in problems for _ in range(3)]
    for i, out in enumerate(outs):
        compare_out(plan, problems[i // 3], out)


@pytest.mark.parametrize("config", (kernels.config(kernels.STATIC), *kernels.STATIC_FP8), ids=lambda c: c.label)
def test_a_row_does_not_depend_on_its_batch(config):
    """The static schedule cuts a sequence by its own length alone: alone or in a batch, equal bits."""
    lengths = (7001, 64, 1, 511, 4096, 12_345)
    problem = problem_for(config, lengths, seed=37)
    together, _ = run(config.plan(len(lengths)), problem)
    alone = config.plan(1)
    for b in range(len(lengths)):
        scales = {} if problem.q_scale is None else {"q_scale": problem.q_scale[b : b + 1]}
        one = evolve(problem, q=problem.q[b : b + 1], block_ids=problem.block_ids[b : b + 1], kv_lens=problem.kv_lens[b : b + 1], **scales)
        assert torch.equal(run(alone, one)[0], together[b : b + 1]), f"sequence {b} of {lengths[b]} keys"


@pytest.mark.parametrize("config", (kernels.DETACHED[0], kernels.EARLY[0]), ids=lambda c: c.label)
def test_early_launches_read_what_the_kernel_before_them_wrote(config):
    """Queries and lengths are written right before, in a graph and out of it; a launch that started too early would see the old ones."""
    problem = problem_for(config, (5000,) * 4, seed=38, poison=False)
    plan, out = config.plan(4), problem.new_output()
    queries, lengths = torch.stack([problem.q, -problem.q]), torch.tensor([[5000, 640, 3, 0], [64, 4999, 0, 777]], dtype=torch.int32, device="cuda")
    expected = []
    for i in range(2):
        problem.q.copy_(queries[i])
        problem.kv_lens.copy_(lengths[i])
        torch.cuda.synchronize()
        expected.append(run(plan, problem)[0].clone())
        compare_out(plan, problem, expected[-1])
    graphs = []
    for i in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            problem.q.copy_(queries[i])
            problem.kv_lens.copy_(lengths[i])
            out.fill_(torch.nan)
            run(plan, problem, out)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for step in range(400):
        if step % 2:
            graphs[step // 2 % 2].replay()
        else:
            problem.q.copy_(queries[step // 2 % 2])
            problem.kv_lens.copy_(lengths[step // 2 % 2])
            out.fill_(torch.nan)
            run(plan, problem, out)
        differing += (bits(out) != bits(expected[step // 2 % 2])).any()
    assert not differing, f"{int(differing)} of 400 launches saw what was there before"
