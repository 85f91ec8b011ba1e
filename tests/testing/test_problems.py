"""Random problems: live data where they should be, poison everywhere else, the same data in every shape of memory."""

import itertools
import math

import pytest
import torch

from tle_attn.testing import make_decode_problem, make_prefill_problem

FORMATS = [("bf16", None), ("fp8", 0), ("fp8", 1), ("fp8", "kv_per_token")]
KV_LENS = [0, 1, 64, 65, 130]


def live_slots(problem):
    """(sequence, token, page id, slot) of every live key, from the lengths and the page table alone."""
    page = problem.k_cache.shape[1]
    for b, length in enumerate(problem.kv_lens.tolist()):
        for t in range(length):
            yield b, t, int(problem.block_ids[b, t // page]), t % page


def live_mask(problem):
    live = torch.zeros(problem.k_cache.shape[:2], dtype=torch.bool)
    for _, _, page_id, slot in live_slots(problem):
        assert not live[page_id, slot], "two tokens share a slot"
        live[page_id, slot] = True
    return live


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "quant"), FORMATS)
def test_everything_without_a_key_is_nan(dtype, quant, layout):
    problem = make_decode_problem(KV_LENS, heads=(4, 2), dtype=dtype, quant=quant, layout=layout, seed=3)
    live = live_mask(problem)
    assert (~live).sum() > 64 * 3
    for cache in (problem.k_cache, problem.v_cache):
        assert torch.isfinite(cache[live].double()).all() and torch.isnan(cache[~live].double()).all()
    for scales in {0: [problem.k_scale], "kv_per_token": [problem.k_scale, problem.v_scale]}.get(quant, []):
        scale = scales.view(torch.float32).permute(0, 1, 3, 2).flatten(1, 2)
        assert torch.isfinite(scale[live]).all() and torch.isnan(scale[~live]).all()
    for b, length in enumerate(KV_LENS):
        spare = problem.block_ids[b, -(-length // 64) :]
        assert len(spare) >= 3 and set(spare.tolist()) == {-1, 2**31 - 1}


def test_pages_are_shuffled_and_some_are_nobodys():
    problem = make_decode_problem([640, 640], seed=1, extra_pages=5)
    used = problem.block_ids[:, :10].flatten().tolist()
    assert len(set(used)) == 20 and len(problem.k_cache) == 25 and used != sorted(used)


@pytest.mark.parametrize(("dtype", "quant"), FORMATS)
def test_live_data_depend_on_the_seed_alone(dtype, quant):
    """Equal in every layout, poisoned or not; the reference is equal to the bit."""
    make = [{"layout": layout, "poison": poison} for layout, poison in itertools.product(("NHD", "HND"), (True, False))]
    for maker, arguments in ((make_decode_problem, (KV_LENS,)), (make_prefill_problem, ([0, 1, 3, 65, 70], KV_LENS))):
        problems = [maker(*arguments, heads=(4, 2), dtype=dtype, quant=quant, seed=7, **options) for options in make]
        outs = [problem.reference(lse_base="2") for problem in problems]
        assert all(torch.equal(out, outs[0][0]) and torch.equal(lse, outs[0][1]) for out, lse in outs)
        other = maker(*arguments, heads=(4, 2), dtype=dtype, quant=quant, seed=8).reference()[0]
        assert not torch.equal(other, outs[0][0])
        assert torch.isfinite(outs[0][0]).all()


def test_without_poison_the_gaps_are_zero():
    problem = make_decode_problem(KV_LENS, dtype="fp8", quant=0, poison=False)
    live = live_mask(problem)
    assert (problem.k_cache[~live].double() == 0).all() and (problem.v_cache[~live].double() == 0).all()
    assert (problem.block_ids >= 0).all() and (problem.block_ids < len(problem.k_cache)).all()


@pytest.mark.parametrize(("layout", "strides"), [("NHD", (66 * 256, 256, 128, 1)), ("HND", (66 * 256, 128, 66 * 128, 1))])
def test_decode_k_scales_lie_in_the_pages_of_the_k_cache(layout, strides):
    """The layout of the CUDA reference: two more rows a page, addressed with the K cache's own strides."""
    problem = make_decode_problem([100], heads=(4, 2), dtype="fp8", quant=0, layout=layout)
    assert problem.k_cache.stride() == strides and problem.k_scale.stride() == strides
    assert problem.k_scale.shape == (len(problem.k_cache), 2, 2, 128) and problem.k_scale.dtype == torch.float8_e4m3fn
    assert problem.k_scale.data_ptr() - problem.k_cache.data_ptr() == 64 * strides[1]
    assert problem.q_scale.shape == (1, 4) and problem.v_scale.shape == (2,)
    both = make_decode_problem([100], heads=(4, 2), dtype="fp8", quant="kv_per_token", layout=layout)
    assert both.v_cache.stride() == strides and both.v_scale.stride() == strides and both.v_scale.shape == problem.k_scale.shape
    assert both.v_scale.data_ptr() - both.v_cache.data_ptr() == 64 * strides[1]
    assert torch.equal(both.k_cache.view(torch.uint8), problem.k_cache.view(torch.uint8)), "K is that of quant 0"


def test_prefill_layouts():
    problem = make_prefill_problem([3, 0, 200], [3, 0, 300], padding_rows=4, heads=(4, 2), page=32, dtype="fp8", quant=0)
    assert problem.q.shape == (207, 4, 128) and problem.num_queries == 203 and problem.max_q_len == 200
    assert torch.isnan(problem.q[203:].double()).all() and torch.isfinite(problem.q[:203].double()).all()
    assert problem.cu_seqlens_q.tolist() == [0, 3, 3, 203] and problem.cu_seqlens_q.dtype == torch.int32
    assert problem.q_scale.shape == (3, 4, 256)
    for b, length in enumerate((3, 0, 200)):
        assert torch.isfinite(problem.q_scale[b, :, :length]).all() and torch.isnan(problem.q_scale[b, :, length:]).all()
    assert problem.k_scale.shape == (len(problem.k_cache), 1, 2, 32) and problem.k_scale.dtype == torch.float32


def test_scales_differ_enough_that_a_wrong_one_shows():
    problem = make_decode_problem([256], query_tokens=2, heads=(4, 4), dtype="fp8", quant=0, seed=5)
    scales = problem.k_scale.view(torch.float32)[problem.block_ids[0, :4].long()]
    for scale in (scales, problem.q_scale):
        assert scale.max() / scale.min() > 2
    assert problem.v_scale.unique().numel() == 4
    of_values = make_decode_problem([256], heads=(4, 4), dtype="fp8", quant="kv_per_token", seed=5)
    scales = of_values.v_scale.view(torch.float32)[of_values.block_ids[0, :4].long()]
    assert scales.max() / scales.min() > 2


@pytest.mark.parametrize(("dtype", "quant"), [("bf16", None), ("fp8", 1)])
@pytest.mark.parametrize("logit_std", [0.25, 1.0, 2.0])
def test_logit_std(dtype, quant, logit_std):
    problem = make_decode_problem([512], heads=(64, 1), dtype=dtype, quant=quant, logit_std=logit_std, seed=2)
    q, k = problem.q.double(), problem.k_cache[problem.block_ids[0, :8].long()].double().reshape(512, 128)
    if problem.is_fp8:
        q, k = q * problem.q_scale[:, :, None], k * problem.k_scale
    measured = float((q[0] @ k.T / math.sqrt(128)).std())
    assert logit_std * 0.85 < measured < logit_std * (1.4 if problem.is_fp8 else 1.15)


def test_fp8_reference_quantises_p_unless_told_otherwise():
    problem = make_decode_problem([300], dtype="fp8", quant=1)
    assert torch.equal(problem.reference()[0], problem.reference(p_quant="e4m3")[0])
    assert not torch.equal(problem.reference()[0], problem.reference(p_quant=None)[0])


@pytest.mark.parametrize("quant", [1, "kv_per_token"])
def test_what_rounded_weights_may_bring(quant):
    problem = make_decode_problem([1, 0, 3], query_tokens=2, heads=(4, 2), dtype="fp8", quant=quant)
    allowed = problem.weight_error(2.0**-17, causal=True, window=2, sigmoid_bias=-3.0)
    assert allowed.shape == problem.q.shape[:2]
    assert not allowed[:1].any() and not allowed[2:4].any()  # query 0 of a sequence of one key stands before it
    scales = problem.v_scale if quant == 1 else problem.v_scale.view(torch.float32)
    largest = float(scales[scales.isfinite()].max())
    for row, (b, keys) in {1: (0, [0]), 4: (2, [0, 1]), 5: (2, [1, 2])}.items():
        page = int(problem.block_ids[b, 0])
        for head in range(4):
            values = problem.v_cache[page, keys, head // 2].double() * largest
            assert float(allowed[row, head]) == pytest.approx(2.0**-18 * float(values.norm()))


def test_new_output_is_nan_and_rows_have_names():
    decode = make_decode_problem([7, 9], query_tokens=2)
    assert torch.isnan(decode.new_output()).all() and decode.new_output().dtype == torch.bfloat16
    assert decode.name_row(3) == "sequence 1 with kv_len 9, query 1 of 2"
    prefill = make_prefill_problem([3, 0, 2], [3, 4, 8], padding_rows=1)
    assert [prefill.name_row(row) for row in (2, 3, 5)] == [
        "sequence 0 with kv_len 3, query 2 of 3",
        "sequence 2 with kv_len 8, query 0 of 2",
        "a row of no sequence",
    ]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "quant"), FORMATS)
def test_moving_keeps_strides(dtype, quant, layout):
    """To a device without memory here: strides and shapes are what a kernel is launched with."""
    problem = make_decode_problem(KV_LENS, heads=(4, 2), dtype=dtype, quant=quant, layout=layout)
    moved = problem.to("meta")
    for name in ("q", "k_cache", "v_cache", "k_scale", "v_scale", "block_ids"):
        before, after = getattr(problem, name), getattr(moved, name)
        assert before is None or (after.is_meta and after.stride() == before.stride() and after.storage_offset() == before.storage_offset())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp8"}, "dtype, quant: 'fp8', None; allowed"),
        ({"quant": 1}, "dtype, quant: 'bf16', 1; allowed"),
        ({"dtype": "fp8", "quant": 2}, "dtype, quant: 'fp8', 2; allowed"),
        ({"layout": "DHN"}, "layout: 'DHN'; allowed"),
    ],
)
def test_formats_that_do_not_exist(options, message):
    with pytest.raises(ValueError, match=message):
        make_decode_problem([3], **options)
