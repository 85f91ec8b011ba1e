"""Attention over a paged KV cache in float64."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tle_attn.oracle.batch import check_tensors, query_starts, sequences
from tle_attn.oracle.quantise import round_weights_e4m3
from tle_attn.oracle.scales import check_cache_scale, check_q_scale, query_factors, token_factors
from tle_attn.oracle.states import logarithm_unit
from tle_attn.oracle.steps import Alibi, MaskStep, ScoreStep, SoftCap
from tle_attn.oracle.visibility import check_block_mask, check_tree_mask, visible_keys

_LOWEST_FINITE = torch.finfo(torch.float64).min
#: Scores held at once (float64): bounds the memory that long sequences need.
_SCORES_AT_ONCE = 1 << 24


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_ids: Tensor,
    kv_lens: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    query_tokens: int | None = None,
    causal: bool = True,
    softmax_scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    score_steps: Sequence[ScoreStep] = (),
    mask_steps: Sequence[MaskStep] = (),
    sink: Tensor | None = None,
    sigmoid_bias: float | None = None,
    block_mask: Tensor | None = None,
    strict_block_mask: bool = False,
    tree_mask: Tensor | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    p_quant: str | None = None,
    empty_row: str = "zero",
    lse_base: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of each query over the keys of its sequence.

    Shapes: q [T, Hq, D]; k_cache [pages, page, Hkv, D] and v_cache [pages, page, Hkv, Dv], of any strides; block_ids int32
    [B, columns]; kv_lens int32 [B], the tokens of this step included.  Query head h reads kv head h // (Hq / Hkv).
    Sequence b owns query rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1 (int32 [B + 1]), or query_tokens rows each.
    Query i of n stands at position kv_len - n + i.  Slots, pages and block ids that hold no key in reach are never read.

    A score, for a query at position p and a key at position t, is made in this order:

    1. s = (q q_scale) . (k k_scale) softmax_scale; softmax_scale defaults to 1 / sqrt(D)
    2. soft_cap: s = soft_cap tanh(s / soft_cap), soft_cap > 0
    3. alibi_slopes [Hq] or [B, Hq]: s = s - slope |p - t|
       score_steps: any further changes, in this order (`tle_attn.oracle.steps`)
    4. masks: the key counts only if every given mask lets it through
       - causal: t <= p, so a query at a negative position sees nothing
       - window: p - t < window, that is `window` keys with its own
       - tree_mask (bool or uint8 [B, n, n], n the longest): among this step's tokens, query i sees token j if
         tree_mask[b, i, j], in place of the causal rule; positions stay slot numbers
       - block_mask (uint8 [B, Hq, >= ceil(n / 128), Kb]): byte (i // 128, t // 128) not 0; tile Kb counts as kept and
         later ones as dropped, unless strict_block_mask, which makes a mask that is too short an error
       - mask_steps: any further rules (`tle_attn.oracle.steps`)
    5. softmax over the keys that count and, if given, sink [Hq]: one more score per head (-inf: none), without a value
       sigmoid_bias: sigmoid(s + sigmoid_bias) in place of the softmax; the weights are not normalised, and have no log-sum-exp and no sink

    Scales: see `tle_attn.oracle.scales`.  p_quant "e4m3" rounds exp(s - max), with max over the keys that count (the
    sink left out), times 256 to e4m3 before it meets V; the sum in the denominator is of the unrounded ones.

    Returns out, float64 [T, Hq, Dv], and, if lse_base is "e" or "2", lse, float64 [T, Hq]: the logarithm to that base of the
    denominator, sink included (None without lse_base).  A row that sees no key has out 0, or NaN with empty_row "nan"
    (a sink makes it 0 again: the denominator is not zero), and lse -inf, or the sink.  Rows of q that no sequence owns
    are NaN in both.

    TypeError or ValueError, naming the argument and the rule, for arguments that do not fit together.
    """
    check_tensors(q, k_cache, v_cache, block_ids, kv_lens)
    num_rows, num_heads, dim = q.shape
    num_kv_heads, value_dim = v_cache.shape[2:]
    group = num_heads // num_kv_heads
    starts = query_starts(num_rows, len(kv_lens), cu_seqlens_q, query_tokens)
    lengths = kv_lens.tolist()
    _check_options(softmax_scale, window, soft_cap, p_quant, empty_row)
    check_tree_mask(tree_mask, starts, causal)
    check_block_mask(block_mask, starts, num_heads, lengths, strict_block_mask)
    check_q_scale(q_scale, q, starts)
    k_scale, v_scale = check_cache_scale("k_scale", k_scale, k_cache), check_cache_scale("v_scale", v_scale, v_cache)
    if sigmoid_bias is not None and (sink is not None or p_quant is not None or lse_base is not None):
        raise ValueError("sigmoid_bias: sigmoid weights are not normalised: no sink, p_quant or lse_base beside it")
    slopes = _per_head("alibi_slopes", alibi_slopes, ((num_heads,), (len(lengths), num_heads)), _LOWEST_FINITE, q.device)
    sink = _per_head("sink", sink, ((num_heads,),), -math.inf, q.device)
    scale = 1.0 / math.sqrt(dim) if softmax_scale is None else softmax_scale
    steps: list[ScoreStep] = [SoftCap(soft_cap)] if soft_cap is not None else []
    steps += [Alibi(slopes)] if slopes is not None else []
    steps += score_steps
    lse_unit = None if lse_base is None else logarithm_unit(lse_base)

    out = torch.full((num_rows, num_heads, value_dim), math.nan, dtype=torch.float64, device=q.device)
    lse = torch.full((num_rows, num_heads), math.nan, dtype=torch.float64, device=q.device)
    for sequence in sequences(starts, lengths, block_ids, k_cache, window):
        for kv_head in range(num_kv_heads):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            queries = q[sequence.rows, heads].double().transpose(0, 1) * _as_column(query_factors(q_scale, sequence, heads))
            keys = sequence.live(k_cache[sequence.pages, :, kv_head]).double() * _as_column(token_factors(k_scale, sequence, kv_head))
            values = sequence.live(v_cache[sequence.pages, :, kv_head]).double() * _as_column(token_factors(v_scale, sequence, kv_head))
            at_once = max(1, _SCORES_AT_ONCE // max(1, group * sequence.num_keys))
            for first in range(0, sequence.num_queries, at_once):
                numbers = torch.arange(first, min(first + at_once, sequence.num_queries), device=q.device)
                scores = queries[:, numbers] @ keys.T * scale
                where = (sequence.keys(), sequence.positions(numbers)[:, None], torch.arange(num_heads, device=q.device)[heads, None, None], sequence.index)
                for step in steps:
                    scores = step(scores, *where)
                seen = visible_keys(sequence, numbers, heads, causal=causal, window=window, block_mask=block_mask, tree_mask=tree_mask)
                for rule in mask_steps:
                    seen = seen & rule(*where)
                scores = scores.masked_fill(~seen, -math.inf)
                if sigmoid_bias is not None:
                    out[sequence.rows.start + numbers, heads] = (torch.sigmoid(scores + sigmoid_bias) @ values).transpose(0, 1)
                    continue
                block_out, block_lse = _softmax_times_values(scores, values, None if sink is None else sink[heads], p_quant, empty_row)
                rows = sequence.rows.start + numbers
                out[rows, heads] = block_out.transpose(0, 1)
                lse[rows, heads] = block_lse.transpose(0, 1)
    return out, None if lse_unit is None else lse / lse_unit


def _softmax_times_values(scores: Tensor, values: Tensor, sink: Tensor | None, p_quant: str | None, empty_row: str) -> tuple[Tensor, Tensor]:
    """scores [heads, queries, keys] (-inf: masked) and values [keys, Dv] to out [heads, queries, Dv] and natural lse [heads, queries]."""
    largest = scores.amax(dim=2) if scores.shape[2] else scores.new_full(scores.shape[:2], -math.inf)
    empty = largest == -math.inf
    p = torch.exp(scores - largest.masked_fill(empty, 0.0)[..., None])
    total = p.sum(dim=2)
    weighted = (round_weights_e4m3(p) if p_quant else p) @ values
    lse = (largest + torch.log(total)).masked_fill(empty, -math.inf)
    out = weighted / total.masked_fill(empty, 1.0)[..., None]
    if sink is not None:
        with_sink = torch.logaddexp(lse, sink[:, None].expand_as(lse))
        empty = with_sink == -math.inf
        out = out * torch.exp(lse - with_sink.masked_fill(empty, 0.0))[..., None]
        lse = with_sink
    return out.masked_fill(empty[..., None], math.nan if empty_row == "nan" else 0.0), lse


def _as_column(factor: Tensor | float) -> Tensor | float:
    return factor[..., None] if isinstance(factor, Tensor) else factor


def _per_head(name: str, tensor: Tensor | None, shapes: tuple[tuple[int, ...], ...], lowest: float, device: torch.device) -> Tensor | None:
    if tensor is None:
        return None
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: {tensor.dtype}; must be a floating-point type")
    if tuple(tensor.shape) not in shapes:
        raise ValueError(f"{name}: shape {list(tensor.shape)}; must be {' or '.join(str(list(shape)) for shape in shapes)}")
    wide = tensor.to(device).double()
    if not ((wide >= lowest) & (wide < math.inf)).all():
        raise ValueError(f"{name}: must be finite{' or -inf' if lowest == -math.inf else ''}, but is {tensor.tolist()}")
    return wide


def _check_options(softmax_scale: float | None, window: int | None, soft_cap: float | None, p_quant: str | None, empty_row: str) -> None:
    for name, value in (("softmax_scale", softmax_scale), ("soft_cap", soft_cap)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}: {value}; must be finite and above 0 (None: {'1 / sqrt(dim)' if name == 'softmax_scale' else 'no cap'})")
    if window is not None and window < 1:
        raise ValueError(f"window: {window}; must be at least 1, the query's own key (None: no window)")
    if p_quant not in (None, "e4m3"):
        raise ValueError(f'p_quant: {p_quant!r}; allowed: None, "e4m3"')
    if empty_row not in ("zero", "nan"):
        raise ValueError(f'empty_row: {empty_row!r}; allowed: "zero", "nan"')
