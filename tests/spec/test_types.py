"""Ports: every way in which two do not fit is named; element types."""

import pytest
import torch
from attrs import evolve

from tle_attn.spec import BoxDescriptor, DType, Place, Port

WANTED = Port("v", DType.BF16, ("key", "dim"), (64, 128), Place.SHARED, "swizzled", "dim")


@pytest.mark.parametrize("change,trouble", [
    ({"dtype": DType.FP8}, "dtype fp8 where bf16 is wanted"),
    ({"place": Place.REGISTER}, "place register where shared is wanted"),
    ({"axes": ("dim", "key")}, "axes ('dim', 'key') where ('key', 'dim') is wanted"),
    ({"shape": (64, 64)}, "shape (64, 64) where (64, 128) is wanted"),
    ({"layout": "plain"}, "layout plain where swizzled is wanted"),
    ({"major": "key"}, "key-major where dim-major is wanted"),
])  # fmt: skip
def test_mismatch(change, trouble):
    assert WANTED.mismatch(evolve(WANTED, **change)) == trouble


@pytest.mark.parametrize("change", [{}, {"name": "v_tile"}, {"layout": "any"}, {"major": None}])
def test_fits(change):
    other = evolve(WANTED, **change)
    assert WANTED.mismatch(other) is None and other.mismatch(WANTED) is None


def test_text_of_a_port():
    assert str(WANTED) == "v: bf16[key 64, dim 128] shared swizzled"
    assert str(Port("m", DType.F32, ("query",), (8,))) == "m: f32[query 8] register"


@pytest.mark.parametrize("dtype", DType)
def test_sizes_and_torch_names(dtype):
    assert dtype.nbytes == getattr(torch, dtype.torch_name).itemsize
    assert DType(dtype.value) is dtype


def test_descriptor_text():
    assert str(BoxDescriptor(DType.BF16, (1, 1, 64, 128))) == "tensor descriptor bf16[1, 1, 64, 128]"
