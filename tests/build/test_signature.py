"""Argument types and TMA descriptors."""

import pytest
import torch

from tle_attn.build import BuildError, Descriptor, descriptor
from tle_attn.build.signature import check_signature, describe_signature, triton_signature


@pytest.mark.parametrize(("dtype", "block", "bits", "swizzle"), [
    ("bf16", (1, 1, 64, 128), 16, 128), ("bf16", (64, 32), 16, 64), ("fp8", (1, 16, 32), 8, 32), ("f32", (8, 16), 32, 64), ("fp8", (1, 1, 64, 128), 8, 128)])
def test_layout_is_swizzled_over_the_row_of_the_box(dtype, block, bits, swizzle):
    layout = Descriptor(dtype, block).layout()
    assert (layout.element_bitwidth, layout.swizzle_byte_width, layout.rank) == (bits, swizzle, len(block))


@pytest.mark.parametrize(("dtype", "block"), [("bfloat16", (64, 64)), ("bf16", ()), ("bf16", (1,) * 6)])
def test_descriptor_rules(dtype, block):
    with pytest.raises(BuildError, match="descriptor"):
        Descriptor(dtype, block)


def test_every_argument_is_named_once():
    check_signature(["a", "b", "n"], {"a": "*bf16", "b": "i64:16"}, {"n": 3}, "k")
    for signature, constants, fault in [({"a": "*bf16"}, {}, r"missing \['b'\]"), ({"a": "*bf16", "b": "i32", "c": "i32"}, {}, r"unknown \['c'\]"),
                                        ({"a": "*bf16", "b": "i32"}, {"b": 1}, r"twice \['b'\]")]:
        with pytest.raises(BuildError, match=fault):
            check_signature(["a", "b"], signature, constants, "k")


@pytest.mark.parametrize("kind", ["bf16", "*float", "i8", "**bf16", "*", "float32", "i32:8"])
def test_unknown_type(kind):
    with pytest.raises(BuildError, match="k: argument a has type"):
        check_signature(["a"], {"a": kind}, {}, "k")


def test_signature_for_triton():
    types, attributes = triton_signature(["p", "n", "m", "d", "c"], {"p": "*bf16", "n": "i32", "m": "i64:16", "d": Descriptor("fp8", (1, 16, 64))})
    assert types["c"] == "constexpr" and (types["n"], types["m"]) == ("i32", "i64")
    assert types["d"].startswith("tensordesc<fp8e4nv[1, 16, 64],NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=8, rank=3")
    assert attributes == {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}


def test_description_tells_signatures_apart():
    kinds = ["*bf16", "i32", "i32:16", Descriptor("bf16", (64, 64)), Descriptor("bf16", (64, 32)), Descriptor("fp8", (64, 64))]
    assert len({describe_signature({"a": kind}) for kind in kinds}) == len(kinds)


def test_host_descriptor():
    cache = torch.zeros(4, 64, 2, 128, dtype=torch.bfloat16)
    made = descriptor(cache, [4, 2, 64, 128], [cache.stride(0), cache.stride(2), cache.stride(1), 1], (1, 1, 64, 128), "bf16")
    assert (made.shape, made.strides, made.block_shape) == ([4, 2, 64, 128], [64 * 256, 128, 256, 1], [1, 1, 64, 128])
    assert made.base is cache and made.layout == Descriptor("bf16", (1, 1, 64, 128)).layout()


@pytest.mark.parametrize(("shape", "strides", "dtype", "rule"), [
    ([4, 64], [64, 1], "f32", "elements have 2 bytes"), ([4], [1], "bf16", "2 dimensions"), ([4, 0], [64, 1], "bf16", "empty dimension"),
    ([4, 64], [64, 2], "bf16", "last dimension"), ([4, 64], [60, 1], "bf16", "multiples of 16 bytes")])
def test_host_descriptor_rules(shape, strides, dtype, rule):
    with pytest.raises(BuildError, match=rule):
        descriptor(torch.zeros(256, dtype=torch.bfloat16), shape, strides, (4, 64), dtype)


def test_host_descriptor_needs_an_aligned_base():
    with pytest.raises(BuildError, match="multiple of 16 bytes"):
        descriptor(torch.zeros(300, dtype=torch.bfloat16)[3:], [4, 64], [64, 1], (4, 64), "bf16")
