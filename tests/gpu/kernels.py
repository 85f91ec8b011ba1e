"""The kernels that the GPU tests run: one list, so that `python -m tests.gpu.warm` can compile all of them ahead in parallel processes."""

from __future__ import annotations

from typing import Any

from attrs import frozen

import tle_attn
from tle_attn.runtime import Plan
from tle_attn.runtime.cascade import merge_kernel, partial_kernel, prefix_kernel
from tle_attn.spec import Kernel


@frozen
class Config:
    """A recipe with options, for one geometry."""

    recipe: str
    options: tuple[tuple[str, Any], ...] = ()
    query_tokens: int = 1
    page: int = 64
    group: int = 8
    kv_heads: int = 1

    def kernel(self) -> Kernel:
        return tle_attn.load(self.recipe).set(dict(self.options)).kernel(query_tokens=self.query_tokens, page=self.page, group=self.group)

    def plan(self, batch: int) -> Plan:
        return tle_attn.plan(self.kernel(), batch=batch, query_heads=self.heads[0], kv_heads=self.kv_heads)

    @property
    def heads(self) -> tuple[int, int]:
        return self.group * self.kv_heads, self.kv_heads

    @property
    def label(self) -> str:
        options = "".join(f" {key}={value}" for key, value in self.options)
        return f"{self.recipe} mtp{self.query_tokens} page{self.page} {self.heads[0]}x{self.kv_heads}{options}"


def config(recipe: str, query_tokens: int = 1, page: int = 64, group: int = 8, kv_heads: int = 1, **options: Any) -> Config:
    """Options with __ for the dot: ring__stages=4."""
    return Config(recipe, tuple((key.replace("__", "."), value) for key, value in options.items()), query_tokens, page, group, kv_heads)


DYNAMIC, STATIC = "hy3/decode_bf16", "hy3/decode_bf16_static"
FP8, FP8_PER_TOKEN, KV_PER_TOKEN = "hy3/decode_fp8", "hy3/decode_fp8_per_token", "variants/decode_fp8_kv_per_token"
D64, SOFT_CAP, WINDOW = "variants/decode_bf16_d64", "variants/decode_bf16_soft_cap", "variants/decode_bf16_window"

#: every point of the reference recipes' axes, and five query tokens
POINTS = tuple(config(recipe, q, page) for recipe in (DYNAMIC, STATIC) for q in (1, 2, 3) for page in (16, 32, 64, 128))
POINTS += (config(DYNAMIC, 5),)
FP8_POINTS = tuple(config(recipe, q, page) for recipe in (FP8, FP8_PER_TOKEN, KV_PER_TOKEN) for q, page in ((1, 64), (2, 64), (4, 64), (1, 16), (2, 32), (4, 128)))
#: several key/value heads, groups that leave padding rows, and the widest products
GROUPS = tuple(config(DYNAMIC, q, 64, group, 4) for q, group in (*((1, g) for g in (1, 2, 3, 4, 5, 6, 7, 16)), (3, 5), (3, 7), (5, 1), (5, 8), (4, 16))) + tuple(
    config(FP8, q, 64, group, 2) for q, group in ((1, 1), (1, 6), (5, 8), (4, 16))
)
GROUPS += (config(DYNAMIC, kv_heads=8), config(STATIC, 3, 16, 5, 2))
HEAD_DIM_64 = (config(D64), config(D64, 3, 16, 5, 2), config(D64, 2, 128))
SOFT_CAPS = (config(SOFT_CAP), config(SOFT_CAP, 2, 16, 8, 2))
WINDOWS = (config(WINDOW), config(WINDOW, 3, 16, 8, 2))
ALIBI, SINK, TREE, EXPRESSION = (tuple(f"variants/decode_{dtype}_{name}" for dtype in ("bf16", "fp8")) for name in ("alibi", "sink", "tree", "expression"))
#: blocks that take tensors of a user, or text
VARIANTS = tuple(config(recipe, q, page, group, kv_heads) for recipe in (*ALIBI, *SINK, *EXPRESSION) for q, page, group, kv_heads in ((1, 64, 8, 1), (2, 16, 5, 2)))
VARIANTS += tuple(config(recipe, q, page, 5, 2) for recipe in TREE for q, page in ((4, 64), (3, 16)))
VARIANTS += tuple(config(recipe, 2, 64, 8, 2, epilogue__lse="e") for recipe in SINK)
SIGMOID, SELECTED, CONTIGUOUS, MQA, F32_OUT, D96 = (tuple(f"variants/decode_{dtype}_{name}" for dtype in ("bf16", "fp8")) for name in ("sigmoid", "selected", "contiguous", "mqa", "f32_out", "d96"))
VARIANTS += tuple(config(recipe, q, 64, 5, 2) for recipe in (*SIGMOID, *CONTIGUOUS, *F32_OUT) for q in (1, 3))
VARIANTS += tuple(config(recipe, q, page, 5, 2) for recipe in (*SELECTED, *D96) for q, page in ((1, 64), (3, 16)))
VARIANTS += tuple(config(recipe, 1, page, group, 2) for recipe in MQA for page, group in ((64, 64), (16, 33)))
VARIANTS += tuple(config(f"variants/decode_bf16_{name}", q, page, 8, 2) for name, q, page in (("d256", 1, 64), ("d256", 3, 16), ("d192_v128", 1, 64), ("d192_v128", 2, 128), ("d192_v128", 5, 64)))
FP8_GROUPS = (config(FP8, 1, 64, 5, 4), config(FP8_PER_TOKEN, 1, 64, 5, 4), config(FP8_PER_TOKEN, 3, 16, 4, 2), config(KV_PER_TOKEN, 1, 64, 5, 4), config(KV_PER_TOKEN, 3, 16, 4, 2))
LSE = tuple(config(recipe, q, 64, 8, 2, epilogue__lse=base) for recipe in (DYNAMIC, STATIC) for q, base in ((1, "e"), (3, "2")))
LSE += (config(FP8, 2, 64, 8, 2, epilogue__lse="e"), config(KV_PER_TOKEN, 2, 64, 8, 2, epilogue__lse="e"))
STAGES = (*(config(DYNAMIC, ring__stages=stages) for stages in (1, 2)), config(DYNAMIC, ring__stages=4, mainloop__ctas_per_sm=1))
#: the running maximum followed lazily, as by default, and exactly
MAXIMA = tuple(config(recipe, **options) for recipe in (DYNAMIC, FP8, KV_PER_TOKEN) for options in ({}, {"softmax__maximum": "exact"}))
#: every split sequence is merged by slices, by rows, or by its last CTA
MERGES = (config(DYNAMIC, 2, reduce__slice_above=1), config(DYNAMIC, 2, reduce__slice_above=1000), config(DYNAMIC, 2, reduce__poll_above=0))
#: sequences that are never split, bf16 and fp8 with P as large as it may be
UNSPLIT = tuple(
    config(recipe, schedule__block="static_split", schedule__splits=1, **options) for recipe, options in ((DYNAMIC, {}), (FP8, {"softmax__maximum": "exact"}))
)
#: fp8 cut by each sequence's own length alone
STATIC_FP8 = tuple(config(recipe, schedule__block="static_split") for recipe in (FP8, FP8_PER_TOKEN, KV_PER_TOKEN))

#: clusters that merge in shared memory, every size, exchange and way to merge: all of a sequence's parts, and clusters of them
CLUSTERS = tuple(
    config("variants/decode_bf16_cluster", q, 64, 8, 2, schedule__splits=splits, reduce__size=size, reduce__exchange=exchange, reduce__merge=merge)
    for size in (2, 4, 8) for exchange in ("push", "pull") for merge in ("leader", "sharded") for q, splits in ((1, size), (2, 16))
)  # fmt: skip

#: partial sums merged by a kernel of its own, which starts early; the attention kernel beside the planner
DETACHED = tuple(config("variants/decode_bf16_detached", q, 64, group, kv_heads) for q, group, kv_heads in ((1, 8, 1), (2, 5, 2), (3, 8, 1)))
DETACHED += tuple(config(recipe, 2, reduce__block="detached_merge") for recipe in (STATIC, FP8)) + (config("variants/decode_bf16_detached", reduce__slice_above=0),)
#: the merge in the kernel, started beside the planner
EARLY = tuple(config(recipe, q, schedule__pdl=True) for recipe, q in ((DYNAMIC, 1), (DYNAMIC, 3), (FP8, 1)))

ALL = tuple(dict.fromkeys((*POINTS, *FP8_POINTS, *GROUPS, *FP8_GROUPS, *HEAD_DIM_64, *SOFT_CAPS, *WINDOWS, *VARIANTS, *LSE, *STAGES, *MAXIMA, *MERGES, *UNSPLIT, *STATIC_FP8, *CLUSTERS, *DETACHED, *EARLY)))


def cascade_kernels() -> dict[str, Kernel]:
    """The kernels of tests/gpu/test_cascade.py, by name: recipe, query tokens, and requests of a chunk of the prefix pass."""
    made = {}
    for recipe, query_tokens, widths in (
        (DYNAMIC, 1, (1, 2, 8)), (STATIC, 1, (1, 2, 8)), (DYNAMIC, 2, (4,)), (DYNAMIC, 3, (2,)), (FP8, 1, (8,)), (FP8_PER_TOKEN, 1, (8,)),
    ):  # fmt: skip
        kernel = config(recipe, query_tokens, epilogue__lse="e").kernel()
        parts = [partial_kernel(kernel), merge_kernel(kernel), *(prefix_kernel(kernel, width) for width in widths)]
        made |= {f"{part.name} mtp{part.problem.query_tokens} of {kernel.name}": part for part in parts}
    return made
