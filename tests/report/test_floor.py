"""Time floors, against a count of every visible (query, key) pair one by one."""

from __future__ import annotations

import random

import pytest

import tle_attn
from tle_attn.errors import SpecError
from tle_attn.report.floor import DEFAULT_WORKLOADS, Machine, MergeWorkload, Workload, benchmark_workloads, work_of
from tle_attn.verify import oracle_options

MACHINE = Machine("test", 1e12, {"bf16": 1e15}, "made up")


@pytest.mark.parametrize("recipe", ["hy3/decode_bf16", "variants/decode_bf16_window", "variants/decode_bf16_d64"])
@pytest.mark.parametrize("query_tokens", [1, 3])
def test_work_is_a_count_of_visible_pairs(recipe: str, query_tokens: int) -> None:
    rng = random.Random(query_tokens)
    base = tle_attn.load(recipe)
    window = 37 if recipe.endswith("window") else None
    if window:
        base = base.set({"mask[1].window": window})
    kernel = base.kernel(query_tokens=query_tokens, group=4)
    lengths = tuple(rng.randint(query_tokens, 150) for _ in range(6))
    work = work_of(kernel, Workload("random", lengths, kv_heads=2), oracle_options(kernel), MACHINE)
    pairs, loaded = 0, 0
    for length in lengths:
        positions = range(length - query_tokens, length)
        seen = [[k <= at and (window is None or at - k < window) for k in range(length)] for at in positions]
        pairs += sum(map(sum, seen))
        loaded += sum(any(row[k] for row in seen) for k in range(length))
    d, heads = kernel.problem.head_dim, 8
    assert work.flops == pairs * heads * d * 2 * 2
    assert work.nbytes == 2 * loaded * 2 * d * 2 + len(lengths) * query_tokens * heads * d * (2 + 2)


@pytest.mark.parametrize("options,states", [({}, 8), ({"source.dtype": "f32"}, 8), ({"source.block": "list", "source.count": 3}, 3)])
def test_work_of_a_merge_is_every_state_and_the_result(options: dict, states: int) -> None:
    kernel = tle_attn.load("merge/stack").set(options).kernel()
    work = work_of(kernel, MergeWorkload("some", 8, 10, 6), oracle_options(kernel), MACHINE)
    element = 4 if "source.dtype" in options else 2
    assert work.nbytes == 60 * (states * (128 * element + 4) + 128 * 2 + 4) and work.flops == 0


@pytest.mark.parametrize("phase", ["decode", "prefill", "merge"])
def test_named_workloads_are_of_their_phase(phase: str) -> None:
    named = benchmark_workloads(phase)
    assert named and {w.phase for w in named} == {phase} and DEFAULT_WORKLOADS[phase] in {w.name for w in named}


def test_floor_is_the_larger_of_both() -> None:
    kernel = tle_attn.load("hy3/decode_bf16").kernel()
    for flops in (1e9, 1e18):
        work = work_of(kernel, Workload.named("uniform_512"), {"causal": True}, Machine("test", 1e12, {"bf16": flops}, "made up"))
        assert work.floor_us == max(work.nbytes / 1e6, work.flops / flops * 1e6) == max(work.memory_us, work.compute_us)


def test_unknown_workload() -> None:
    with pytest.raises(SpecError, match="uniform_4096"):
        Workload.named("uniform")
