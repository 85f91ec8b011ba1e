"""Kernel arguments as the compiler sees them: pointers, scalars and TMA descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from tle_attn.build.failure import BuildError

#: name here -> (name in Triton's signatures, bits)
DESCRIPTOR_TYPES = {"bf16": ("bf16", 16), "f16": ("fp16", 16), "f32": ("fp32", 32), "fp8": ("fp8e4nv", 8), "i32": ("i32", 32), "u8": ("u8", 8)}
SCALARS = ("i32", "i64", "fp32")
POINTEES = ("bf16", "fp16", "fp32", "fp8e4nv", "i8", "u8", "i32", "i64")


@frozen
class Descriptor:
    """A TMA descriptor argument.

    Attributes:
        dtype: ``bf16``, ``f16``, ``f32``, ``fp8``, ``i32`` or ``u8``.
        block_shape: elements of one box, 1 to 5 dimensions, last one contiguous and of 32 bytes at least.
    """

    dtype: str = field()
    block_shape: tuple[int, ...] = field(converter=tuple)

    def __attrs_post_init__(self) -> None:
        if self.dtype not in DESCRIPTOR_TYPES:
            raise BuildError(f"descriptor dtype {self.dtype!r}: allowed are {', '.join(DESCRIPTOR_TYPES)}")
        if not 1 <= len(self.block_shape) <= 5:
            raise BuildError(f"descriptor block shape {self.block_shape}: TMA copies boxes of 1 to 5 dimensions")

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return DESCRIPTOR_TYPES[self.dtype][1]

    @property
    def swizzle_bytes(self) -> int:
        """Width of the shared-memory swizzle: the row of the box, 128 bytes at most."""
        return min(128, self.block_shape[-1] * self.bits // 8)

    def layout(self) -> Any:
        """Gluon's shared-memory layout of the box; imports Triton."""
        from triton.experimental.gluon.language import NVMMASharedLayout

        return NVMMASharedLayout(self.swizzle_bytes, self.bits, rank=len(self.block_shape))

    def triton_type(self) -> str:
        """The entry in Triton's signature; imports Triton."""
        return f"tensordesc<{DESCRIPTOR_TYPES[self.dtype][0]}{list(self.block_shape)},{self.layout()!r}>"


def check_signature(arguments: Sequence[str], signature: Mapping[str, str | Descriptor], constants: Mapping[str, Any], entry: str) -> None:
    """Every kernel argument is in exactly one of `signature` and `constants`, with a known type (`i64:16`: a multiple of 16)."""
    given = [*signature, *constants]
    missing, unknown = [a for a in arguments if a not in given], [a for a in given if a not in arguments]
    twice = [a for a in signature if a in constants]
    if missing or unknown or twice:
        raise BuildError(f"{entry}({', '.join(arguments)}): signature and constants must name every argument once; "
                         f"missing {missing}, unknown {unknown}, twice {twice}")
    for name, kind in signature.items():
        if not (isinstance(kind, Descriptor) or kind.removesuffix(":16") in SCALARS or (kind.startswith("*") and kind[1:] in POINTEES)):
            raise BuildError(f"{entry}: argument {name} has type {kind!r}: allowed are a Descriptor, {', '.join(SCALARS)}, and * before {', '.join(POINTEES)}")


def describe_signature(signature: Mapping[str, str | Descriptor]) -> str:
    """One line for cache keys: does not depend on Triton."""
    return "; ".join(f"{name} {kind.dtype}{list(kind.block_shape)}" if isinstance(kind, Descriptor) else f"{name} {kind}" for name, kind in signature.items())


def triton_signature(arguments: Sequence[str], signature: Mapping[str, str | Descriptor]) -> tuple[dict[str, str], dict[tuple[int], list]]:
    """Signature and attributes for Triton: pointers, and scalars marked `:16`, are multiples of 16; other scalars have no specialisation."""
    types, attributes = {}, {}
    for index, name in enumerate(arguments):
        kind = signature.get(name, "constexpr")
        types[name] = kind.triton_type() if isinstance(kind, Descriptor) else kind.removesuffix(":16")
        if types[name].startswith("*") or str(kind).endswith(":16"):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return types, attributes


def check_view(tensor: Any, shape: Sequence[int], strides: Sequence[int], box: Descriptor) -> None:
    """Raise BuildError where TMA cannot describe this view; see `descriptor`."""
    size, rank = box.bits // 8, len(box.block_shape)
    if tensor.element_size() != size:
        raise BuildError(f"descriptor of dtype {box.dtype}: the tensor's elements have {tensor.element_size()} bytes, not {size}")
    if len(shape) != rank or len(strides) != rank:
        raise BuildError(f"descriptor: shape {tuple(shape)} and strides {tuple(strides)} need {rank} dimensions, as block shape {box.block_shape}")
    if min(shape) < 1:
        raise BuildError(f"descriptor: shape {tuple(shape)} has an empty dimension, which TMA cannot describe")
    if strides[-1] != 1 or any(s * size % 16 for s in strides[:-1]):
        raise BuildError(f"descriptor: strides {tuple(strides)}: TMA needs 1 in the last dimension, multiples of 16 bytes ({16 // size} elements) before")
    if tensor.data_ptr() % 16:
        raise BuildError("descriptor: TMA needs a base address that is a multiple of 16 bytes")


def descriptor(tensor: Any, shape: Sequence[int], strides: Sequence[int], block_shape: Sequence[int], dtype: str) -> Any:
    """Triton's host-side TMA descriptor.

    Args:
        tensor: device tensor whose ``data_ptr()`` is the base address, 16-byte aligned.
        shape: elements per dimension of the whole view, all positive.
        strides: elements; the last one 1, the others multiples of 16 bytes.
        block_shape: elements of one box.
        dtype: as of :class:`Descriptor`; must have the size of the tensor's elements.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    box = Descriptor(dtype, block_shape)
    check_view(tensor, shape, strides, box)
    return TensorDescriptor(tensor, list(shape), list(strides), list(box.block_shape), box.layout())
