"""FP8 scales: Q per token and head, K and V per tensor (quant type 1 of hpc-ops)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from tle_attn.dialect import as_int64, jit, load
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType

TILE = 64


def q_scale_arguments() -> tuple[Argument, ...]:
    return (
        Argument("scale_log2", "f32", "softmax scale * log2(e)"),
        Argument("q_scale", "*f32", "scale of each query token and head: decode [batch * query tokens, query heads], prefill [batch, query heads, tokens of a sequence]"),
        Argument("q_scale_stride", "i64", "elements from one token's scales to the next"),
        Argument("q_scale_batch_stride", "i64", "elements from one sequence's scales to the next"),
        Argument("q_scale_head_stride", "i64", "elements from one head's scales to the next"),
    )


def check_fp8(block: Block, problem: Problem) -> None:
    if problem.dtype is not DType.FP8:
        raise SpecError(f"{block.NAME} scales are for fp8 tensors", key="block", value=block.NAME, allowed="softmax, for " + problem.dtype.value, reason="bf16 values need no scale")


@frozen(kw_only=True)
class PerTensor(Block):
    """logit = (q . k) * q_scale[token, head] * k_scale * scale; output * v_scale.  All positive or not: the scales fold into one factor a query column."""

    KIND = "scale"
    NAME = "per_tensor"
    KEY_SCALES = False
    VALUE_SCALES = False
    ROW_FACTORS = True
    HOOKS = {"value_unit": "value_scale"}

    def check(self, problem: Problem) -> None:
        check_fp8(self, problem)

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"KEY_SCALES": Constant(False, "every key has a scale of its own"), "ROW_FACTORS": Constant(True, "query rows have factors of their own")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (*q_scale_arguments(), Argument("k_scale", "*f32", "scale of K [1]"), Argument("v_scale", "*f32", "scale of V [1]"))

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, float]:
        return {}  # scales come with the tensors of a problem

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        s = Port("s", DType.F32, ("key", "query"), (TILE, problem.columns), layout="mma")
        return (Function("query_factor", (s,), (Port("factor", DType.F32, ("query",), (problem.columns,)),)), Function("row_factor"), Function("value_factor"))


@jit
def value_factor(args, head):
    """What rows of the output are multiplied by to be in units of V."""
    return load(args.v_scale)


@jit
def row_factor(args, seq, row, q_len, q_head):
    """Prefill: what the dot products of each query row are multiplied by to become base-2 logits; rows past the sequence's end have no scale to read."""
    q_scale = load(args.q_scale + seq * args.q_scale_batch_stride + q_head * args.q_scale_head_stride + row, mask=row < q_len, other=0.0)
    return q_scale * (load(args.k_scale) * args.scale_log2)


@jit
def query_factor(args, s, column, seq, head):
    """What the dot products of each query column are multiplied by to become base-2 logits; padding columns have no scale to read."""
    token = as_int64(seq * QUERY_TOKENS + column // GROUP)
    q_scale = load(args.q_scale + token * args.q_scale_stride + head * GROUP + column % GROUP, mask=column < ROWS, other=0.0)
    return q_scale * (load(args.k_scale) * args.scale_log2)


@jit
def value_scale(args, unit, head):
    """Decode: the factor of the output's rows with that of V in it."""
    return unit * value_factor(args, head)
