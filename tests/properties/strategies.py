"""Random recipes and small ragged problems."""

from typing import Any

from hypothesis import strategies as st

import tle_attn
from tle_attn.recipe import Recipe

PARENTS = ("hy3/decode_bf16", "hy3/decode_bf16_static", "hy3/decode_fp8", "hy3/decode_fp8_per_token", "variants/decode_fp8_kv_per_token")
SCORES = (
    {"block": "alibi"}, {"block": "sink"}, {"block": "soft_cap", "cap": 4.0}, {"block": "expression", "value": "s - 0.25 * abs(query - key) / (1 + head)"},
    {"block": "expression", "value": "s if key % 2 == 0 else s + 1.0"},
)  # fmt: skip
MASKS = (
    {"block": "causal"}, {"block": "length"}, {"block": "tree"}, {"block": "sliding_window", "window": 70}, {"block": "selected_tiles"},
    {"block": "expression", "value": "key % 3 != 1 or key == query"},
)  # fmt: skip
PREFILL_PARENTS = ("hy3/prefill_bf16", "hy3/prefill_fp8", "hy3/prefill_fp8_per_token", "hy3/prefill_bf16_contiguous", "hy3/prefill_bf16_block_mask", "variants/prefill_fp8_kv_per_token", "variants/prefill_fp8_contiguous")
#: values that are often right, and some that never are
OPTIONS: dict[str, tuple[Any, ...]] = {
    "problem.head_dim": (64, 96, 128, 128, 192, 256, 80),
    "problem.value_dim": (64, 128),
    "problem.group": (1, 3, 8, 33, 65),
    "problem.query_tokens": (1, 2, 5, 6),
    "problem.page": (16, 32, 64, 64, 128, 48),
    "ring.stages": (1, 2, 3, 6, 0, 40),
    "mainloop.ctas_per_sm": (1, 2, 3, "two"),
    "mainloop.producer_registers": (24, 40, 33, 240),
    "loader.block": ("paged_tma", "contiguous_tma", "paged"),
    "softmax.block": ("online", "sigmoid"),
    "softmax.maximum": ("exact", "lazy", "never"),
    "softmax.p_exponent": (0, 7, 30),
    "schedule.min_tokens": (64, 128, 512, 100),
    "schedule.page_ids": (True, True, "yes"),
    "schedule.pdl": (True, False, 2),
    "reduce.poll_above": (0, 1, 8, -1),
    "reduce.slice_above": (0, 8, -1),
    "reduce.block": ("detached_merge", "detached"),
    "epilogue.dtype": ("bf16", "f32", "fp8"),
    "epilogue.lse": ("none", "e", "2", "10"),
}


def blocks(of: tuple[dict[str, Any], ...], first: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Up to three blocks in any order, often the first ones."""
    return st.lists(st.sampled_from(of + of[:first] * 2), max_size=3)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """A recipe whose options fit together or do not."""
    recipe = tle_attn.load(draw(st.sampled_from(PARENTS)))
    recipe.tables["score"] = draw(blocks(SCORES, 0))
    recipe.tables["mask"] = draw(blocks(MASKS, 2))
    keys = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=4, unique=True))
    return recipe.set({key: draw(st.sampled_from(OPTIONS[key])) for key in keys})


PREFILL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "problem.head_dim": (64, 96, 128, 192, 192, 256),
    "problem.value_dim": (64, 128, 128),
    "problem.group": (1, 3, 33),
    "problem.page": (16, 32, 64, 64, 128),
    "ring.stages": (1, 2, 3, 40),
    "mainloop.consumers": (1, 2),
    "mainloop.exclusive_exp": (True, False),
    "qk.registers": (True, False),
    "softmax.block": ("rows", "row_sigmoid", "online"),
    "softmax.p_exponent": (0, 7, 30),
    "epilogue.dtype": ("bf16", "f32", "fp8"),
    "epilogue.lse": ("none", "e", "2"),
    "epilogue.empty_row": ("zero", "nan"),
}


@st.composite
def prefill_recipes(draw: st.DrawFn) -> Recipe:
    """The same of prefill."""
    recipe = tle_attn.load(draw(st.sampled_from(PREFILL_PARENTS)))
    recipe.tables["score"] = draw(blocks(SCORES, 0))
    recipe.tables["mask"] = draw(blocks(MASKS, 2))
    keys = draw(st.lists(st.sampled_from(sorted(PREFILL_OPTIONS)), max_size=3, unique=True))
    return recipe.set({key: draw(st.sampled_from(PREFILL_OPTIONS[key])) for key in keys})


#: (queries, keys) of each sequence
pairs = st.lists(st.tuples(st.one_of(st.sampled_from((0, 1, 64, 65, 128)), st.integers(0, 200)), st.one_of(st.sampled_from((0, 1, 127, 128, 129)), st.integers(0, 400))), min_size=1, max_size=3)
lengths = st.lists(st.one_of(st.sampled_from((0, 1, 15, 16, 17, 63, 64, 65, 128)), st.integers(0, 400)), min_size=1, max_size=4)
