"""Random problems of a kernel's geometry and types, of its phase."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .spec import DType, Kernel

if TYPE_CHECKING:
    from .testing import DecodeProblem, PrefillProblem, StatesProblem
    from .testing.paged import Quant


def quant_type(kernel: Kernel) -> Quant:
    """How the tensors of a problem are quantised, in the terms of `tle_attn.testing`: None (bf16), 0 (K scale per token and head), 1 (per tensor), "kv_per_token"."""
    from .testing.paged import KV_PER_TOKEN

    if kernel.problem.dtype is not DType.FP8:
        return None
    scale = kernel.mainloop.scale
    return KV_PER_TOKEN if scale.VALUE_SCALES else 0 if scale.KEY_SCALES else 1


def problem_for(kernel: Kernel, kv_lens: Iterable[int], kv_heads: int = 1, **options: Any) -> DecodeProblem:
    """A decode problem, without pages for a kernel that has none; `options` are those of `make_decode_problem`."""
    from .testing import make_contiguous_decode_problem, make_decode_problem

    if "block_ids" not in kernel.arguments:
        return make_contiguous_decode_problem(kv_lens, query_tokens=kernel.problem.query_tokens, **_format(kernel, kv_heads), **options)
    return make_decode_problem(kv_lens, query_tokens=kernel.problem.query_tokens, **_format(kernel, kv_heads), **options)


def prefill_problem_for(kernel: Kernel, lengths: Iterable[tuple[int, int]], kv_heads: int = 1, **options: Any) -> PrefillProblem:
    """A prefill problem of (queries, keys) for each sequence; `options` are those of `make_prefill_problem`.

    A kernel that takes a block mask gets one that keeps half of the tiles, unless `mask_density` says another share.  For a kernel without pages
    a sequence has as many keys as queries, and `layout`, which it has none, is not looked at.
    """
    from .testing import make_contiguous_problem, make_prefill_problem

    pairs = list(lengths)
    q_lens = [q for q, _ in pairs]
    if "block_mask" in kernel.arguments:
        options.setdefault("mask_density", 0.5)
    if "block_ids" not in kernel.arguments:
        options.pop("layout", None)
        return make_contiguous_problem(q_lens, **{name: value for name, value in _format(kernel, kv_heads).items() if name != "page"}, **options)
    return make_prefill_problem(q_lens, [kv for _, kv in pairs], **_format(kernel, kv_heads), **options)


def states_problem_for(kernel: Kernel, tokens: int, heads: int, states: int, **options: Any) -> StatesProblem:
    """States for a merge kernel, `states` of them unless the kernel says how many; `options` are those of `make_states_problem`."""
    import torch

    from .testing import make_states_problem

    source = kernel.mainloop.source
    dtype = getattr(torch, source.dtype.torch_name)
    fixed = source.STATES is not None
    return make_states_problem(
        source.STATES or states, tokens, heads, head_dim=kernel.problem.head_dim, dtype=dtype, base=kernel.mainloop.base, listed=fixed, **options
    )


def problems(kernel: Kernel, *, seed: int, emulated: bool) -> list[tuple[str, DecodeProblem | PrefillProblem | StatesProblem]]:
    """Problems for verification, with names; both cache layouts."""
    made = {"decode": _decode_problems, "prefill": _prefill_problems, "merge": _states_problems}
    return made[kernel.mainloop.PHASE](kernel, random.Random(seed), seed, emulated)


def _decode_problems(kernel: Kernel, rng: random.Random, seed: int, emulated: bool) -> list[tuple[str, Any]]:
    """A few long sequences that are split and merged, and many short ones."""
    from .verify import oracle_options

    window = oracle_options(kernel).get("window", 0)
    scale = 1 if emulated else 8
    shapes = (("long", 6, 1600 * scale + rng.randint(0, 64) + window, 1, "NHD"), ("short", 12 * scale, 300, 2, "HND"))
    made = []
    for name, batch, longest, kv_heads, layout in shapes:
        lengths = ragged_lengths(rng, kernel, batch=batch, longest=longest)
        problem = problem_for(kernel, lengths, kv_heads, layout=layout, seed=rng.randint(0, 2**31))
        made.append((f"{name} sequences, {layout}, seed {seed}", problem))
    return made


def _prefill_problems(kernel: Kernel, rng: random.Random, seed: int, emulated: bool) -> list[tuple[str, Any]]:
    """A ragged batch with the edges that matter, and one sequence with a long cache, longer than a window."""
    from .verify import oracle_options

    window = oracle_options(kernel).get("window", 0)
    scale = 1 if emulated else 8
    ragged = ragged_pairs(rng, kernel, longest=150 * scale)
    alone = [(129 * scale + rng.randint(0, 32), 500 * scale + rng.randint(0, 128) + window)]
    made = []
    for name, pairs, kv_heads, layout in (("ragged", ragged, 1, "NHD"), ("one", alone, 2, "HND")):
        options: dict[str, Any] = {"padding_rows": rng.randint(1, 9)}
        if "block_mask" in kernel.arguments and name == "one":  # shorter than the causal range: the tile behind it is kept, later ones are not
            options["mask_columns"] = 2
        problem = prefill_problem_for(kernel, pairs, kv_heads, layout=layout, seed=rng.randint(0, 2**31), **options)
        made.append((f"{name} ({', '.join(f'{q}/{kv}' for q, kv in pairs)} queries/keys), {layout}, seed {seed}", problem))
    return made


def _states_problems(kernel: Kernel, rng: random.Random, seed: int, emulated: bool) -> list[tuple[str, Any]]:
    """Rows that fill no whole tile, few and many states, and one head."""
    scale = 1 if emulated else 100
    made = []
    for tokens, heads, states in ((rng.randint(3, 40) * scale, 3, rng.randint(2, 7)), (rng.randint(1, 20), 1, 1)):
        problem = states_problem_for(kernel, tokens, heads, states, seed=rng.randint(0, 2**31))
        made.append((f"{len(problem.outs)} states of {tokens} tokens and {heads} heads, seed {seed}", problem))
    return made


def ragged_lengths(rng: random.Random, kernel: Kernel, *, batch: int, longest: int) -> list[int]:
    """Random lengths with the edges that matter: none, one token, around a page, around a key tile, and one long sequence."""
    page = kernel.problem.page
    edges = [0, 1, rng.choice((page - 1, page, page + 1)), rng.choice((63, 64, 65, 127, 128, 129)), longest]
    lengths = edges[:batch] if batch < len(edges) else edges + [rng.randint(0, longest) for _ in range(batch - len(edges))]
    rng.shuffle(lengths)
    return lengths


def ragged_pairs(rng: random.Random, kernel: Kernel, *, longest: int) -> list[tuple[int, int]]:
    """Random (queries, keys): no query, one query, fewer keys than queries, no key, around a query tile, around a page, and a long sequence."""
    page = kernel.problem.page
    pairs = [
        (0, rng.randint(0, 300)), (1, rng.choice((1, page - 1, page, page + 1))), (rng.randint(33, 127), rng.randint(1, 32)), (3, 0),
        (rng.choice((127, 128, 129)), rng.choice((127, 128, 129, 255, 257))), (longest, longest), (rng.randint(1, 64), longest + rng.randint(0, page)),
    ]  # fmt: skip
    rng.shuffle(pairs)
    return pairs


def _format(kernel: Kernel, kv_heads: int) -> dict[str, Any]:
    p = kernel.problem
    return {"heads": (p.group * kv_heads, kv_heads), "head_dim": p.head_dim, "value_dim": p.value_dim, "page": p.page, "dtype": p.dtype.value, "quant": quant_type(kernel)}
