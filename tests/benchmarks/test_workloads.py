import pytest
import torch

from benchmarks import workloads
from benchmarks.floor import live_pages, stages
from tle_attn.testing import relative_rms


@pytest.fixture
def problem(monkeypatch):
    monkeypatch.setattr(workloads, "WORKLOADS", {"small": (100, 0, 64, 200)})

    def make(**changes):
        return workloads.decode_problem("small", **({"query_tokens": 2, "layout": "NHD", "heads": (8, 2), "device": "cpu"} | changes))

    return make


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_oracle_reads_live_keys_only(problem, layout):
    """NaN is in every slot without a token, and none of it reaches the result."""
    p = problem(layout=layout)
    assert p.k_cache.shape == (2 + 1 + 4 + workloads.SPARE_PAGES, 64, 2, 128)
    assert int((~p.k_cache.isnan().any(dim=(2, 3))).sum()) == 100 + 64 + 200
    assert not p.reference()[0].isnan().any()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("quant", [0, 1, "kv_per_token"])
def test_fp8_is_the_bf16_problem_quantised(problem, quant, layout):
    """Equal but for the rounding of Q, K and V to e4m3: the scales belong to the values."""
    p = problem(layout=layout, quant=quant)
    assert int((~p.k_cache.float().isnan().any(dim=(2, 3))).sum()) == 100 + 64 + 200
    if quant != 1:
        assert p.k_scale.untyped_storage().data_ptr() == p.k_cache.untyped_storage().data_ptr()
    if quant == "kv_per_token":
        assert p.v_scale.untyped_storage().data_ptr() == p.v_cache.untyped_storage().data_ptr()
    difference = relative_rms(p.reference(p_quant=None)[0], problem(layout=layout).reference()[0])
    assert 0 < difference < 0.06


def test_layout_in_memory(problem):
    assert problem().k_cache.is_contiguous()
    hnd = problem(layout="HND").k_cache
    assert hnd.permute(0, 2, 1, 3).is_contiguous() and not hnd.is_contiguous()


def test_pages_are_used_once_and_in_no_order(problem):
    ids = live_pages(problem())
    assert len(ids) == len(set(ids.tolist())) == 7
    assert ids.tolist() != sorted(ids.tolist())


def test_live_pages_follow_the_sequences(problem):
    p = problem(page=16)
    assert live_pages(p).tolist() == [int(i) for row, n in zip(p.block_ids, (7, 0, 4, 13), strict=True) for i in row[:n]]


def test_equal_problems_each_time(problem):
    assert torch.equal(problem().q, problem().q)


def test_unknown_layout(problem):
    with pytest.raises(ValueError, match="layout: 'DHN'"):
        problem(layout="DHN")


@pytest.mark.parametrize(("page", "ctas_per_sm", "expected"), [(64, 1, 6), (64, 2, 3), (64, 3, 2), (16, 2, 12), (128, 3, 1)])
def test_floor_stages(page, ctas_per_sm, expected):
    assert stages(page * 128 * 2, ctas_per_sm) == expected
