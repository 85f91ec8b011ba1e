"""FP8 scales: Q, K and V per token and head.

V scales have the layout of K's (`per_token_head`) and may lie in extra rows of the V cache.  A weight of the softmax is multiplied by its key's V scale before the product with
V; the row sums count it as it was.  So that weights keep the range of e4m3 whatever the scales are, a tile's are divided by the largest magnitude among them, and its product is
multiplied by that where it is added to the output: the V operand adds key tiles in fp32.  The producer of V does this arithmetic, and passes ratios and divisor on in a ring
of their own that lives and dies with the V tile's slot.
"""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.components.scales.per_token_head import (  # noqa: F401  (the block's device text)
    PerTokenHead,
    fetch_key_scales,
    publish_key_scales,
    query_factor,
    read_key_scales,
    row_factor,
    scale_places,
    token_scales,
)
from tle_attn.dialect import absolute, barrier_arrive, fdiv, jit, load, maximum, reduce_max, smem_store, vec_index, where
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Constant, Function, Port, Problem
from tle_attn.spec.types import DType

TILE = 64
#: smallest normal fp32 number
LEAST = 2.0**-126


@frozen(kw_only=True)
class PerTokenHeadKV(PerTokenHead):
    """logit = (q . k) * q_scale[token, head] * k_scale[key, kv head] * scale; output = sum of weight * v * v_scale[key, kv head].  V scales of any sign, 0 included."""

    KIND = "scale"
    NAME = "per_token_head_kv"
    VALUE_SCALES = True
    HOOKS = {"tile_weights": "weigh_values", "tile_product": "in_value_units"}

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if problem.v_dim != 128:
            raise SpecError(
                f"V scales per token and head are for heads of 128 values, not {problem.v_dim}", key="problem.value_dim", value=problem.v_dim, allowed="128",
                reason="a row of scales has the bytes of a row of the V cache",
            )

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {**super().constants(problem), "LEAST_TOP": Constant(LEAST, "what V scales of a tile are divided by at least: all of them may be 0")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        k = tuple(a for a in super().arguments(problem) if a.name != "v_scale")
        return (
            *k,
            Argument("v_scale", "*f32", "scales of V [pages, rows, kv heads, 32], as those of K"),
            Argument("v_scale_page_stride", "i64", "elements from one page's scales to the next"),
            Argument("v_scale_row_stride", "i64", "elements from one row of scales to the next"),
            Argument("v_scale_head_stride", "i64", "elements from one kv head's scales to the next"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        n = problem.columns
        s = Port("s", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        return (
            Function("query_factor", (s,), (Port("factor", DType.F32, ("query",), (n,)),)), Function("fetch_key_scales"), Function("publish_key_scales"),
            Function("fetch_value_scales"), Function("publish_value_scales"), Function("row_factor"), Function("read_key_scales"), Function("read_value_scales"),
        )  # fmt: skip

    @staticmethod
    def reference(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Semantic definition of `publish_value_scales`, float64: ratios within -1 .. 1, and what they times it give `scales`."""
        top = scales.double().abs().amax().clamp(min=LEAST)
        return scales.double() / top, top


@jit
def fetch_value_scales(args, ids, lane, tile, valid, head):
    """Scales of a V tile in the producer warp's registers; 0 for pages past the end and from token `valid` on, where the sequence ends and scales may be NaN."""
    at, page = scale_places(ids, lane, tile, head, args.v_scale, args.v_scale_page_stride, args.v_scale_row_stride, args.v_scale_head_stride)
    return load(at, mask=(page >= 0) & (vec_index(TILE) < valid), other=0.0)


@jit
def read_value_scales(args, page_row, tile, kv_len, head):
    """Prefill: scales of a V tile."""
    return token_scales(page_row, tile, kv_len, head, args.v_scale, args.v_scale_page_stride, args.v_scale_row_stride, args.v_scale_head_stride)


@jit
def publish_value_scales(ratios, tops, full, i, scales):
    """Tile i's scales into its ring slot: as ratios to the largest magnitude, and that, once for each of a tile's queries."""
    top = maximum(reduce_max(absolute(scales), 0), LEAST_TOP)
    smem_store(ratios.slot(slot_of(i)), fdiv(scales, top))
    smem_store(tops.slot(slot_of(i)), where(vec_index(COLUMNS) >= 0, top, 0.0))
    barrier_arrive(full[slot_of(i)])


@jit
def weigh_values(args, p, ratio, limit):
    """Weights as they meet V.  One above the limit stays as it is, which the test of the limit sees: all of them are made anew then."""
    return where(p > limit, p, p * ratio[:, None])


@jit
def in_value_units(args, product, top):
    """A key tile's product, to be added to the output."""
    return product * top[None, :]
