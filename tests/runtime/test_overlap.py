"""Shared memory of tensors, against sets of addresses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tle_attn.errors import InputError
from tle_attn.runtime.overlap import check_same_or_apart


def addresses(tensor: torch.Tensor) -> list[int]:
    """Byte addresses of the elements, in order."""
    index = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, stride in enumerate(tensor.stride()):
        index += torch.arange(tensor.shape[dim]).view(-1, *[1] * (tensor.dim() - dim - 1)) * stride
    return (tensor.data_ptr() + index.flatten() * tensor.element_size()).tolist()


def refused(out: torch.Tensor, read: torch.Tensor) -> bool:
    try:
        check_same_or_apart(out, "out", read, "outs[1]")
    except InputError as error:
        assert str(error) == "out: shares memory with outs[1], but not element for element; it may be outs[1] itself, or memory apart from it"
        return True
    return False


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_views_of_one_tensor(data):
    """Same shapes and strides: refused exactly where an element of one is another element of the other."""
    shape = [data.draw(st.integers(1, 3)) for _ in range(3)]
    strides, reach = [], 0
    for extent in reversed(shape):
        strides.insert(0, data.draw(st.integers(reach + 1, reach + 3)))
        reach += strides[0] * (extent - 1)
    order = data.draw(st.permutations(range(3)))
    shape, strides = [shape[i] for i in order], [strides[i] for i in order]
    base = torch.zeros(400)
    out, read = (torch.as_strided(base, shape, strides, data.draw(st.integers(0, 40))) for _ in range(2))
    a, b = addresses(out), addresses(read)
    assert refused(out, read) == (a != b and bool(set(a) & set(b)))


def test_other_strides_types_and_tensors():
    base = torch.zeros(8, 4, 16)
    assert not refused(base, torch.zeros(8, 4, 16)), "memory of its own"
    assert not refused(base[:0], base), "nothing is written"
    assert not refused(base[:4], base[4:]) and not refused(base[:, :2], base[:, 2:])
    assert refused(base[:4], base[:4].transpose(0, 1)), "the same elements in another order"
    assert refused(base.view(torch.bfloat16)[..., :16], base), "other types in the same bytes"
    assert not refused(base[0].view(torch.bfloat16), base[1])


@pytest.mark.parametrize("shift,wrong", [(0, False), (1, True), (4, True), (64, False)])
def test_shifted_rows(shift, wrong):
    base = torch.zeros(200)
    assert refused(base[shift : shift + 64].view(4, 16), base[:64].view(4, 16)) == wrong
