"""Softmax scale: logits are dot products times scale * log2(e), so that the softmax works in base 2."""

from __future__ import annotations

import torch
from attrs import frozen

from tle_attn.dialect import full_cols, full_rows, jit
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Port, Problem
from tle_attn.spec.types import DType

TILE = 64


@frozen(kw_only=True)
class SoftmaxScale(Block):
    """For unscaled (bf16) Q and K.  `scale_log2` = softmax scale * log2(e); the softmax scale is 1 / sqrt(head_dim) unless `run` is told otherwise."""

    KIND = "scale"
    NAME = "softmax"
    KEY_SCALES = False
    VALUE_SCALES = False
    ROW_FACTORS = False

    def check(self, problem: Problem) -> None:
        if problem.dtype is DType.FP8:
            raise SpecError("fp8 tensors come with scales", key="block", value=self.NAME, allowed=("per_tensor", "per_token_head", "per_token_head_kv"), reason="e4m3 values mean nothing without their scales")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {"KEY_SCALES": Constant(False, "every key has a scale of its own"), "ROW_FACTORS": Constant(False, "query rows have factors of their own")}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (Argument("scale_log2", "f32", "softmax scale * log2(e)"),)

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        s = Port("s", DType.F32, ("key", "query"), (TILE, problem.columns), layout="mma")
        return (Function("query_factor", (s,), (Port("factor", DType.F32, ("query",), (problem.columns,)),)), Function("whole_factor"))

    @staticmethod
    def reference(s: torch.Tensor, scale_log2: float) -> torch.Tensor:
        """Semantic definition, float64: what each query's dot products are multiplied by."""
        return torch.full((s.shape[1],), scale_log2, dtype=torch.float64)


@jit
def query_factor(args, s, column, seq, head):
    """What the dot products of each query column are multiplied by to become base-2 logits."""
    return full_cols(s, args.scale_log2)


@jit
def whole_factor(args, s):
    """Prefill: what the dot products of each row of s are multiplied by to become base-2 logits."""
    return full_rows(s, args.scale_log2)
