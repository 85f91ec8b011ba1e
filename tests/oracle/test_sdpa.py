"""The oracle against torch's scaled_dot_product_attention in float64, on keys gathered one by one and with explicit masks."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tle_attn.oracle import attention
from tle_attn.testing import compare, compare_lse, make_decode_problem, make_prefill_problem


def dense(problem, b, rows):
    """Real-valued q [Hq, n, D], k and v [Hq, kv_len, D] of one sequence, each number dequantised by itself."""
    kv_len, page, group = int(problem.kv_lens[b]), problem.k_cache.shape[1], problem.q.shape[1] // problem.k_cache.shape[2]
    places = [(int(problem.block_ids[b, t // page]), t % page) for t in range(kv_len)]
    heads, dim = problem.k_cache.shape[2:]
    q = problem.q[rows].double()
    k = torch.stack([problem.k_cache[place] for place in places]).double() if places else torch.zeros(0, heads, dim).double()
    v = torch.stack([problem.v_cache[place] for place in places]).double() if places else torch.zeros(0, heads, dim).double()
    if problem.q_scale is not None:
        factors = problem.q_scale[rows] if problem.q_scale.dim() == 2 else problem.q_scale[b, :, : rows.stop - rows.start].T
        q = q * factors[:, :, None]
        k = k * (problem.k_scale if problem.k_scale.dim() == 1 else _token_scales(problem.k_scale, places))
        v = v * problem.v_scale[:, None]
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return q, k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)


def _token_scales(k_scale, places):
    """[kv_len, Hkv, 1]: slot t of a page has its float32 at row t // W, column t % W, as such or as four bytes."""
    as_bytes = k_scale.dtype == torch.float8_e4m3fn
    width = k_scale.shape[3] // 4 if as_bytes else k_scale.shape[3]
    rows = []
    for page_id, slot in places:
        row, column = divmod(slot, width)
        for head in range(k_scale.shape[2]):
            if as_bytes:
                rows.append(k_scale[page_id, row, head, 4 * column : 4 * column + 4].clone().view(torch.float32).item())
            else:
                rows.append(float(k_scale[page_id, row, head, column]))
    return torch.tensor(rows, dtype=torch.float64).view(len(places), k_scale.shape[2], 1)


def sdpa(problem, b, rows, *, causal=True, window=None, alibi_slopes=None, sink=None, tree_mask=None):
    """out [n, Hq, D] and natural lse [n, Hq] of one sequence; rows without a key are (0, -inf)."""
    q, k, v = dense(problem, b, rows)
    heads, n, dim = q.shape
    kv_len = k.shape[1]
    positions = torch.arange(n)[:, None] + kv_len - n
    keys = torch.arange(kv_len)[None, :]
    seen = torch.ones(n, kv_len, dtype=torch.bool)
    if causal:
        seen = keys <= positions
    if tree_mask is not None:
        seen[:, kv_len - n :] = tree_mask[b].bool()
    if window is not None:
        seen &= keys > positions - window
    bias = torch.zeros(heads, n, kv_len, dtype=torch.float64).masked_fill(~seen, -math.inf)
    if alibi_slopes is not None:
        bias -= alibi_slopes.double()[:, None, None] * (positions - keys).abs()
    if sink is not None:
        # The sink as one more key: a score that is all bias, and no value.
        k = torch.cat([k, torch.zeros(heads, 1, dim).double()], 1)
        v = torch.cat([v, torch.zeros(heads, 1, dim).double()], 1)
        bias = torch.cat([bias, sink.double()[:, None, None].expand(heads, n, 1)], 2)
    if k.shape[1] == 0:
        return torch.zeros(n, heads, dim).double(), torch.full((n, heads), -math.inf)
    lse = torch.logsumexp(q @ k.transpose(1, 2) / math.sqrt(dim) + bias, dim=2)
    out = scaled_dot_product_attention(q, k, v, attn_mask=bias)
    out = torch.where((lse == -math.inf)[..., None], 0.0, out)
    return out.transpose(0, 1), lse.transpose(0, 1)


def assert_equal(problem, starts, **options):
    exact = {} if not problem.is_fp8 else {"p_quant": None}
    out, lse = problem.reference(lse_base="e", **options, **exact)
    for b, (start, stop) in enumerate(itertools.pairwise(starts)):
        want, want_lse = sdpa(problem, b, slice(start, stop), **options)
        compare(out[start:stop], want, rms=1e-12, name_row=lambda row, start=start: problem.name_row(start + row))
        compare_lse(lse[start:stop], want_lse, atol=1e-12)


FORMATS = [("bf16", None), ("fp8", 0), ("fp8", 1)]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "quant"), FORMATS)
@pytest.mark.parametrize("heads", [(8, 1), (6, 2)])
def test_decode(fresh_seed, heads, dtype, quant, layout):
    lens = [1, 0, 64, 65, 2, 130]
    problem = make_decode_problem(lens, query_tokens=3, heads=heads, dtype=dtype, quant=quant, layout=layout, seed=fresh_seed)
    assert_equal(problem, list(range(0, 21, 3)))


@pytest.mark.parametrize("page", [1, 16, 32, 48])
@pytest.mark.parametrize("quant", [0, 1])
def test_decode_pages(fresh_seed, page, quant):
    problem = make_decode_problem([50, 97], query_tokens=2, heads=(4, 2), head_dim=64, page=page, dtype="fp8", quant=quant, seed=fresh_seed)
    assert_equal(problem, [0, 2, 4])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "quant"), FORMATS)
def test_prefill(fresh_seed, dtype, quant, layout):
    q_lens, kv_lens = [5, 0, 129, 70], [5, 9, 200, 31]
    problem = make_prefill_problem(q_lens, kv_lens, padding_rows=2, heads=(4, 2), page=32, dtype=dtype, quant=quant, layout=layout, seed=fresh_seed)
    assert_equal(problem, [0, 5, 5, 134, 204])


SLOPES, SINK = torch.tensor([0.5, 0.25, 0.125, 0.0625]), torch.tensor([0.0, 2.0, -4.0, 6.0])
TREE = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool).expand(3, 3, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"window": 1},
        {"window": 33},
        {"alibi_slopes": SLOPES},
        {"sink": SINK},
        {"tree_mask": TREE},
        {"window": 20, "alibi_slopes": SLOPES, "sink": SINK, "tree_mask": TREE},
    ],
    ids=lambda options: "+".join(options),
)
def test_options(fresh_seed, options):
    problem = make_decode_problem([3, 64, 101], query_tokens=3, heads=(4, 2), page=16, seed=fresh_seed)
    assert_equal(problem, [0, 3, 6, 9], **options)


def test_key_and_value_dimensions_may_differ(fresh_seed):
    problem = make_decode_problem([3, 64, 101], heads=(4, 2), seed=fresh_seed)
    whole, _ = problem.reference()
    part, _ = attention(problem.q, problem.k_cache, problem.v_cache[..., :80], problem.block_ids, problem.kv_lens, query_tokens=1)
    assert torch.equal(part, whole[..., :80])
