"""Random problems of requests that share prefixes, and what a cascade should give for them."""

from __future__ import annotations

import math
from typing import Any

import torch
from attrs import frozen

import tle_attn
from tle_attn.oracle import attention, merge_states
from tle_attn.runtime.cascade import CascadePlan
from tle_attn.testing import DecodeProblem, compare, compare_lse, make_decode_problem
from tle_attn.verify import LSE_TOLERANCE, tolerance


@frozen(kw_only=True)
class Shared:
    """Requests and prefixes in one cache; `problem` has the prefixes' sequences before those of the suffixes."""

    problem: DecodeProblem
    groups: tuple[int, ...]
    query_tokens: int

    @property
    def tensors(self) -> dict:
        p, n = self.problem, len(self.groups)
        scales = {k: v for k, v in p.scales.items() if k != "q_scale"}
        rows = slice(n * self.query_tokens, None)
        if p.is_fp8:
            scales["q_scale"] = p.q_scale[rows]
        return {
            "q": p.q[rows], "k_cache": p.k_cache, "v_cache": p.v_cache, "prefix_ids": p.block_ids[:n], "prefix_lens": p.kv_lens[:n],
            "suffix_ids": p.block_ids[n:], "suffix_lens": p.kv_lens[n:], **scales,
        }  # fmt: skip

    def reference(self, lse_base: str = "e", **options):
        """Float64: attention over the prefix, of which every query sees all, merged with causal attention over the suffix."""
        p, n = self.problem, len(self.groups)
        group_of = [g for g, count in enumerate(self.groups) for _ in range(count)]
        q, q_scale = self.tensors["q"], self.tensors.get("q_scale")
        scales = {"q_scale": q_scale, "k_scale": p.k_scale, "v_scale": p.v_scale}
        common = {"query_tokens": self.query_tokens, "lse_base": lse_base, "p_quant": None, **scales, **options}
        first = attention(q, p.k_cache, p.v_cache, p.block_ids[group_of], p.kv_lens[group_of], causal=False, **common)
        last = attention(q, p.k_cache, p.v_cache, p.block_ids[n:], p.kv_lens[n:], causal=True, **common)
        return merge_states([first[0], last[0]], [first[1], last[1]], lse_base=lse_base)


def shared(prefixes, suffixes, *, query_tokens: int = 1, **options) -> Shared:
    """prefixes: tokens of each group's prefix; suffixes: the suffix lengths of each group's requests."""
    problem = make_decode_problem([*prefixes, *(n for group in suffixes for n in group)], query_tokens=query_tokens, **options)
    return Shared(problem=problem, groups=tuple(map(len, suffixes)), query_tokens=query_tokens)


def plan_for(name: str, case: Shared, options: dict[str, Any] | None = None) -> CascadePlan:
    """A cascade of the recipe with options, with log-sum-exp; on the GPU where the problem is there."""
    recipe = tle_attn.load(name).set({"epilogue.lse": "e", **(options or {})})
    p = case.problem
    geometry = {"query_heads": p.q.shape[1], "kv_heads": p.k_cache.shape[2], "page": p.k_cache.shape[1], "query_tokens": case.query_tokens}
    return tle_attn.cascade(recipe, groups=case.groups, **geometry, target="gluon" if p.q.is_cuda else "cpu")


def launch(plan: CascadePlan, case: Shared, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a run into poisoned outputs."""
    q = case.tensors["q"]
    out = torch.full(q.shape, math.nan, dtype=torch.bfloat16, device=q.device)
    lse = torch.full(out.shape[:2], math.nan, device=q.device)
    plan.run(**case.tensors, out=out, lse=lse, **more)
    return out, lse


def run(name: str, case: Shared, options: dict[str, Any] | None = None, **more: Any) -> tuple[CascadePlan, torch.Tensor, torch.Tensor]:
    plan = plan_for(name, case, options)
    return plan, *launch(plan, case, **more)


def check(name: str, case: Shared, options: dict[str, Any] | None = None, oracle: dict[str, Any] | None = None, **more: Any) -> CascadePlan:
    """Run and compare with the oracle; `oracle`: its options beyond what a cascade says."""
    plan, out, lse = run(name, case, options, **more)
    expected, expected_lse = case.reference(**(oracle or {}))
    compare(out, expected, rms=tolerance(plan.kernel)[0])
    compare_lse(lse, expected_lse, atol=LSE_TOLERANCE[plan.kernel.problem.dtype])
    return plan
