"""Cascades on the GPU: against the oracle, beside the recipe over whole sequences, in graphs."""

import secrets

import pytest
import torch

import tle_attn
from tests.runtime.shared_prefixes import check, launch, plan_for, shared
from tle_attn.testing import compare, compare_lse

BF16, FP8, FP8_PER_TOKEN, STATIC = "hy3/decode_bf16", "hy3/decode_fp8", "hy3/decode_fp8_per_token", "hy3/decode_bf16_static"


@pytest.fixture
def seed() -> int:
    value = secrets.randbelow(2**31)
    print(f"seed {value}")
    return value


@pytest.mark.parametrize("prefixes,suffixes", [
    ((20_000,), ((5, 1, 130, 64, 65, 0, 4000, 7, 9, 11),)),
    ((3000, 0, 65), ((3, 70), (1,), tuple(range(1, 40)))),
    ((9000,), ((7,),)),
    ((4096, 64), ((0, 5), (0,))),
])  # fmt: skip
@pytest.mark.parametrize("recipe", [BF16, STATIC])
def test_ragged(recipe, prefixes, suffixes, seed):
    check(recipe, shared(prefixes, suffixes, seed=seed, device="cuda"))


@pytest.mark.parametrize("query_tokens", [2, 3])
def test_several_query_tokens(query_tokens, seed):
    check(BF16, shared((5000,), (tuple(range(5, 300, 20)),), query_tokens=query_tokens, heads=(16, 2), seed=seed, device="cuda"))


@pytest.mark.parametrize("quant,recipe", [(1, FP8), (0, FP8_PER_TOKEN)])
def test_fp8(quant, recipe, seed):
    check(recipe, shared((5000, 64), ((5, 70, 1), tuple(range(9, 200, 10))), dtype="fp8", quant=quant, seed=seed, device="cuda"))


def test_large_and_in_a_graph(seed):
    """64 requests behind one prefix: captured once, replayed with other lengths; equal to a call, and to the recipe over whole sequences."""
    case = shared((32_768,), ((2000,) * 64,), heads=(32, 4), poison=False, seed=seed, device="cuda")
    plan = plan_for(BF16, case)
    tensors = case.tensors
    out, lse = launch(plan, case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(**tensors, out=out, lse=lse)
    p = case.problem
    pages = 32_768 // 64
    whole = tle_attn.plan(tle_attn.load(BF16).set({"epilogue.lse": "e"}), batch=64, query_heads=32, kv_heads=4)
    table = torch.cat([tensors["prefix_ids"][:, :pages].expand(64, -1), tensors["suffix_ids"]], 1).contiguous()
    for prefix, suffixes in ((32_768, [2000] * 64), (32_768, list(range(64))), (32_768, [1] * 64)):
        tensors["prefix_lens"].fill_(prefix)
        tensors["suffix_lens"].copy_(torch.tensor(suffixes, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        again, _ = launch(plan, case)
        assert torch.equal(out, again)
        expected, expected_lse = whole.run(tensors["q"], p.k_cache, p.v_cache, table, tensors["suffix_lens"] + prefix)
        compare(out, expected.double(), rms=5e-3)
        compare_lse(lse, expected_lse, atol=1e-3)


def test_scheduled_once_without_host_synchronisation(seed):
    case = shared((9000, 300), (tuple(range(1, 30)), (5, 900)), seed=seed, device="cuda")
    plan = plan_for(BF16, case)
    launch(plan, case)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        plan.schedule(*(case.tensors[name] for name in ("prefix_lens", "suffix_lens")), **{name: case.tensors[name] for name in ("prefix_ids", "suffix_ids")})
        out, _ = launch(plan, case, scheduled=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    compare(out, case.reference()[0], rms=4e-3)
