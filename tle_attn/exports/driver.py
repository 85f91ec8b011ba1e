"""The CUDA driver through ctypes: machine code is loaded, TMA descriptors are made, kernels are launched.  No compiler and no Triton.

Numbers and structures are those of cuda.h (CUDA 12).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from ..errors import TargetUnavailable, TleAttnError

_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14  # CUfunction_attribute
_CLUSTER_DIMENSION, _CLUSTER_SPREAD, _PROGRAMMATIC_SERIALIZATION = 4, 5, 6  # CUlaunchAttributeID
#: CUtensorMapDataType; e4m3 and bytes alike are bytes to TMA
DATA_TYPES = {"u8": 0, "fp8": 0, "i32": 3, "f16": 6, "f32": 7, "bf16": 9}
ELEMENT_BYTES = {"u8": 1, "fp8": 1, "i32": 4, "f16": 2, "f32": 4, "bf16": 2}
_L2_128B = 2  # CUtensorMapL2promotion
_SHARED_WITHOUT_ASKING = 48 << 10
_LARGEST_PORTABLE_CLUSTER = 8


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16)]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", ctypes.c_uint),
    ]  # fmt: skip


class TensorMap(ctypes.Structure):
    """A TMA descriptor as the driver makes it: 128 bytes, aligned to 64."""

    _fields_ = [("words", ctypes.c_uint64 * 16)]


class Driver:
    """The functions of libcuda that a launch needs.

    Args:
        library: libcuda as ctypes sees it, or what stands in for it in a test.
    """

    def __init__(self, library: Any):
        self.library = library

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.library, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(status, ctypes.byref(text))
            raise TleAttnError(f"CUDA driver: {function} failed: {(text.value or b'unknown error').decode()} ({status})")

    def enter_context(self, device: int) -> None:
        """Make the device's primary context current in this thread, unless one is."""
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if not context:
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)

    def load(self, cubin: bytes, name: str, shared_bytes: int, cluster: int) -> ctypes.c_void_p:
        """The kernel `name` of this machine code, in the current context."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > _SHARED_WITHOUT_ASKING:
            self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared_bytes)
        if cluster > _LARGEST_PORTABLE_CLUSTER:
            self.call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
        return function

    def tensor_map(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int) -> TensorMap:
        """A TMA descriptor.

        Args:
            address: of the view's first element.
            shape, strides: elements, outermost dimension first; the last stride is 1.
            box: elements of one copy.
            swizzle: CUtensorMapSwizzle.
        """
        rank, size = len(box), ELEMENT_BYTES[dtype]
        # the driver wants an aligned structure, and dimensions innermost first
        space = ctypes.create_string_buffer(ctypes.sizeof(TensorMap) + 63)
        made = TensorMap.from_buffer(space, -ctypes.addressof(space) % 64)
        extents = (ctypes.c_uint64 * rank)(*reversed(shape))
        steps = (ctypes.c_uint64 * rank)(*[stride * size for stride in reversed(strides[:-1])])
        sides = (ctypes.c_uint32 * rank)(*reversed(box))
        ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        self.call("cuTensorMapEncodeTiled", ctypes.byref(made), DATA_TYPES[dtype], rank, ctypes.c_void_p(address), extents, steps, sides, ones, 0, swizzle, _L2_128B, 0)
        return made

    def launch(
        self, function: ctypes.c_void_p, grid: Sequence[int], *, threads: int, shared_bytes: int, cluster: int, launch_pdl: bool, stream: int, values: Sequence[Any]
    ) -> None:
        """Launch; `values` are ctypes objects, one for each parameter of the kernel.  The grid's first count is of clusters."""
        x, y, z = (*grid, 1, 1)[:3]
        if not x * y * z:
            return
        attributes = (_Attribute * 3)()
        count = 0
        if launch_pdl:
            attributes[count].id, attributes[count].value[0] = _PROGRAMMATIC_SERIALIZATION, 1
            count += 1
        if cluster > 1:
            attributes[count].id, attributes[count].value[:3] = _CLUSTER_DIMENSION, (cluster, 1, 1)
            attributes[count + 1].id, attributes[count + 1].value[0] = _CLUSTER_SPREAD, 1
            count += 2
        config = _LaunchConfig((x * cluster, y, z), (threads, 1, 1), shared_bytes, stream, attributes, count)
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, addresses, None)


@functools.cache
def driver() -> Driver:
    """The driver of this machine."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise TargetUnavailable(f"the CUDA driver is not here: {error}") from None
