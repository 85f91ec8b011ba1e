"""Verification of prefill kernels: its problems hold the edges, and wrong kernels fail."""

import pytest
import torch

import tle_attn
from tle_attn import verify
from tle_attn.checks.batches import batches_of, key_tile, ring_edges
from tle_attn.errors import SpecError
from tle_attn.report.floor import Machine, Workload, require_phase, work_of

RECIPES = [name for name in tle_attn.list_recipes() if name.startswith("hy3/prefill")]
BF16, MASKED = "hy3/prefill_bf16", "hy3/prefill_bf16_block_mask"


def pairs_of(problem) -> set[tuple[int, int]]:
    return set(zip(problem.cu_seqlens_q.diff().tolist(), problem.kv_lens.tolist(), strict=True))


def test_problems_cover_the_edges():
    for name in (BF16, MASKED):
        kernel = tle_attn.load(name).kernel(page=32)
        for seed in range(5):
            (_, ragged), (_, one) = verify.problems(kernel, seed=seed, emulated=True)
            pairs = pairs_of(ragged)
            q_lens = {q for q, _ in pairs}
            assert 0 in q_lens and 1 in q_lens and {127, 128, 129} & q_lens
            assert any(kv == 0 < q for q, kv in pairs) and any(0 < kv < q for q, kv in pairs) and any(kv % 32 for _, kv in pairs)
            assert len(ragged.q) > ragged.num_queries and len(one.kv_lens) == 1 and len(one.q) > 128
            assert ragged.k_cache.is_contiguous() != one.k_cache.is_contiguous()
            assert (ragged.block_mask is not None) == (name == MASKED)
            if name == MASKED:
                assert not ragged.block_mask[0, 0, 0].any() and one.block_mask.shape[3] * 128 < int(one.kv_lens[0])


@pytest.mark.parametrize("wrong", [{"causal": False}, {"causal": True, "window": 50}, {"causal": True, "soft_cap": 2.0}])
def test_a_kernel_that_computes_something_else_fails(wrong, monkeypatch):
    """The oracle is told of an option that the kernel has not."""
    kernel = tle_attn.load(BF16).kernel(group=1)
    monkeypatch.setattr(verify, "oracle_options", lambda *_: wrong)
    result = verify.verify_kernel(kernel, "cpu")
    assert not result.ok and result.error > result.tolerance and "sequence" in result.failure


def test_a_kernel_that_ignores_its_mask_fails(monkeypatch):
    kernel = tle_attn.load(MASKED).kernel(group=1)
    from tle_attn.testing import PrefillProblem

    reference = PrefillProblem.reference
    monkeypatch.setattr(PrefillProblem, "reference", lambda self, **options: reference(self, **options, block_mask=None))
    assert not verify.verify_kernel(kernel, "cpu").ok


@pytest.mark.parametrize("name", RECIPES)
def test_batches_of_the_protocol_reach_the_edges_of_the_ring(name):
    kernel = tle_attn.load(name).kernel()
    tile, found = key_tile(kernel), set()
    for batch in batches_of(kernel):
        problem = batch.problem(kernel)
        assert len(problem.kv_lens) == len(batch.pairs)
        if "block_ids" in kernel.arguments:
            assert pairs_of(problem) == set(batch.pairs)
        for q, kv in pairs_of(problem):
            found |= {min(-(-kv // tile), max(0, -(-(kv - q + min(row + 128, q)) // tile))) for row in range(0, q, 128)}
    wanted = set(ring_edges(kernel)) if "block_ids" in kernel.arguments else {1, 2, 3}
    assert wanted <= found
    assert any(len(b.pairs) == 1 for b in batches_of(kernel)) and any(len(b.pairs) > 1 for b in batches_of(kernel))


def test_floor_counts_visible_pairs_and_bytes():
    kernel = tle_attn.load(BF16).kernel(group=4)
    workload = Workload("two", (300, 40), kv_heads=2, q_lens=(130, 64))
    work = work_of(kernel, workload, verify.oracle_options(kernel), Machine("test", 1e12, {"bf16": 1e15}, "made up"))
    pairs = sum(k <= 300 - 130 + i for i in range(130) for k in range(300)) + sum(k <= 40 - 64 + i for i in range(64) for k in range(40))
    assert work.flops == pairs * 8 * 128 * 4
    assert work.nbytes == (300 + 40) * 2 * 2 * 128 * 2 + (130 + 64) * 8 * 128 * 4
    assert str(workload) == "two (1 x 130 queries on 300 keys, 1 x 64 queries on 40 keys, 2 kv heads)"


def test_a_workload_of_another_phase_is_refused():
    kernel = tle_attn.load(BF16).kernel()
    with pytest.raises(SpecError, match="workload uniform_512 is for decode, and hy3/prefill_bf16 is a prefill kernel"):
        require_phase(kernel, Workload.named("uniform_512"))
    require_phase(kernel, Workload.named("prefill_8k"))


@pytest.mark.parametrize("name", RECIPES)
def test_commands_work_for_prefill(name, tmp_path, capsys):
    """explain, new, generate; verify is what the other tests do."""
    from tle_attn.cli import main

    assert main(["explain", name, "--no-protocol"]) == 0
    shown = capsys.readouterr().out
    assert "Time floor of prefill_512_4k" in shown and "query_tokens" not in shown and "cu_seqlens_q" in shown
    assert main(["new", "mine", "--from", name, "--out", str(tmp_path)]) == 0
    assert "query_tokens" not in (tmp_path / "mine.toml").read_text()
    assert main(["generate", str(tmp_path / "mine.toml"), "--target", "gluon", "--out", str(tmp_path)]) == 0
    assert main(["explain", name, "--workload", "uniform_512", "--no-protocol"]) == 2


@pytest.mark.parametrize("dtype,quant,value_dim", [("bf16", None, None), ("bf16", None, 64), ("fp8", 1, None)])
def test_oracle_takes_a_token_for_a_page(dtype, quant, value_dim):
    """Problems without pages are to the oracle what the same rows in pages are."""
    from tle_attn.testing import make_contiguous_problem

    problem = make_contiguous_problem((130, 0, 7), heads=(4, 2), padding_rows=3, dtype=dtype, quant=quant, value_dim=value_dim)
    out, _ = problem.reference(p_quant=None)
    for b, (start, end) in enumerate(((0, 130), (130, 130), (130, 137))):
        for h in range(4):
            q, k, v = (t[start:end, i].double() for t, i in ((problem.q, h), (problem.inputs["k_cache"], h // 2), (problem.inputs["v_cache"], h // 2)))
            if quant:
                q, k, v = q * problem.q_scale[b, h, : end - start, None].double(), k * problem.k_scale.double(), v * problem.v_scale.double()
            scores = (q @ k.T / 128**0.5).masked_fill(torch.ones(end - start, end - start).triu(1).bool(), float("-inf"))
            torch.testing.assert_close(torch.softmax(scores, 1) @ v, out[start:end, h])
    assert out[137:].isnan().all() and all(t[137:].float().isnan().all() for t in (problem.q, problem.k_cache, problem.v_cache))


def test_scales_per_token_need_pages():
    from tle_attn.testing import make_contiguous_problem

    for quant in (0, None, "kv_per_token"):
        with pytest.raises(ValueError, match=r'allowed without pages: "bf16" with None, "fp8" with 1'):
            make_contiguous_problem((5,), dtype="fp8", quant=quant)
