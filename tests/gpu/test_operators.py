"""Operators on the GPU: CUDA graphs, streams, no host synchronisation, no memory kept."""

import pytest
import torch

from tests.compat.hpc_cases import attend
from tle_attn.compat import hpc_ops as hpc
from tle_attn.ops import plans
from tle_attn.testing import DecodeProblem, compare, make_decode_problem

LENGTHS = (5000, 3, 640, 0, 64, 1, 4999, 129)
KINDS = pytest.mark.parametrize("dtype,quant", [("bf16", None), ("fp8", 1), ("fp8", 0)])
RMS = {"bf16": 4e-3, "fp8": 4e-2}


def problem_of(dtype: str, quant: int | None, lengths=LENGTHS, **options) -> DecodeProblem:
    return make_decode_problem(lengths, dtype=dtype, quant=quant, device="cuda", **options)


def workspace(problem: DecodeProblem) -> torch.Tensor:
    return hpc.get_attention_decode_task_workspace(len(problem.kv_lens), 1 << 17, problem.k_cache.shape[2])


def assign(problem: DecodeProblem, task_map: torch.Tensor) -> torch.Tensor:
    return hpc.assign_attention_decode_task(problem.kv_lens, task_map, problem.k_cache.shape[2], problem.query_tokens, True)


def check(out: torch.Tensor, problem: DecodeProblem) -> None:
    compare(out, problem.reference(p_quant=None)[0], rms=RMS["fp8" if problem.is_fp8 else "bf16"], name_row=problem.name_row)


def set_lengths(problem: DecodeProblem, lengths) -> None:
    problem.kv_lens.copy_(torch.tensor(lengths, dtype=torch.int32))


@KINDS
@pytest.mark.parametrize("dynamic", [False, True])
def test_graph_with_other_lengths(dtype, quant, dynamic):
    """Warmed up on the default stream, captured on another, assignment and two layers in one graph, replayed with other lengths."""
    problem = problem_of(dtype, quant, (5000,) * 8, poison=False)
    task_map = workspace(problem) if dynamic else None
    outs = [problem.new_output(), problem.new_output()]

    def step():
        if dynamic:
            assign(problem, task_map)
        for out in outs:
            attend(problem, task_map=task_map, output=out)

    set_lengths(problem, (64,) * 8)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ((5000,) * 8, LENGTHS, (64,) * 8):
        set_lengths(problem, lengths)
        for out in outs:
            out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(outs[0], problem)
        assert torch.equal(outs[0], outs[1])
        if dynamic:
            assign(problem, task_map)
        assert torch.equal(outs[0], attend(problem, task_map=task_map))


def test_a_graph_outlives_later_calls():
    """Memory that a graph uses is nobody else's: larger batches, other streams and freed outputs come between its replays."""
    problem = problem_of("bf16", None)
    task_map, out = assign(problem, workspace(problem)), problem.new_output()
    attend(problem, task_map=task_map, output=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(problem, task_map=task_map, output=out)
    large = make_decode_problem([700] * 600, heads=(32, 4), device="cuda", seed=1)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            check(attend(large, task_map=assign(large, workspace(large))), large)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(out, problem)


def test_streams_do_not_disturb_each_other():
    """The same geometry on two streams at once."""
    problems = [problem_of("bf16", None, (9000, 3, 640, 4097), seed=i) for i in range(2)]
    maps = [assign(p, workspace(p)) for p in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    outs = [[p.new_output() for _ in range(20)] for p in problems]
    torch.cuda.synchronize()
    for i in range(20):
        for problem, task_map, stream, out in zip(problems, maps, streams, outs, strict=True):
            with torch.cuda.stream(stream):
                attend(problem, task_map=task_map, output=out[i])
    torch.cuda.synchronize()
    for problem, out in zip(problems, outs, strict=True):
        check(out[0], problem)
        assert all(torch.equal(other, out[0]) for other in out[1:])


@KINDS
def test_no_host_synchronisation_and_no_memory_kept(dtype, quant):
    problem = problem_of(dtype, quant)
    task_map, out = workspace(problem), problem.new_output()

    def step():
        assign(problem, task_map)
        attend(problem, task_map=task_map, output=out)
        attend(problem, output=out)

    step()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_allocated() == held
    check(out, problem)
    assert not any(chunk.any() for chunk in plans.counters_of(problem.q.device).chunks)


def test_lengths_on_the_host_give_the_same_map():
    problem = problem_of("bf16", None)
    there, here = workspace(problem), workspace(problem)
    assign(problem, there)
    hpc.assign_attention_decode_task(problem.kv_lens.cpu(), here, 1, 1, True)
    assert torch.equal(there, here)


def test_compiled_into_a_cuda_graph_by_torch():
    problem = problem_of("bf16", None)
    q, *rest = problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens
    torch.ops.tle_attn.attention_decode_bf16(q, *rest)
    layer = torch.compile(lambda q: torch.ops.tle_attn.attention_decode_bf16(q * 2, *rest, softmax_scale=128**-0.5 / 2) + 0, fullgraph=True, backend="cudagraphs")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        out = layer(q).clone()
        check(out, problem)
