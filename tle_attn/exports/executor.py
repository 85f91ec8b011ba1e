"""Running the kernels of an export: loaded and launched with the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ..build.signature import Descriptor, check_view
from ..errors import InputError
from ..runtime.executors import GpuExecutor, ctas_per_multiprocessor, require_hopper
from .driver import Driver, TensorMap, driver
from .manifest import Export, ExportedEntry, Parameter

if TYPE_CHECKING:
    from ..spec import Argument, BoxDescriptor, Kernel

_SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}


@frozen
class View:
    """A tensor as a TMA descriptor sees it."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@define(eq=False)
class LoadedKernel:
    """One kernel of an export; put on each device that launches it.

    Attributes:
        entry: what the manifest says.
        cubin: its machine code.
        driver: the CUDA driver.
    """

    entry: ExportedEntry
    cubin: bytes = field(repr=False)
    driver: Driver = field(repr=False)
    _functions: dict[int, ctypes.c_void_p] = field(factory=dict, init=False, repr=False)

    def load(self, device: int) -> ctypes.c_void_p:
        """Put it on a device; a CUDA graph can capture launches from then on."""
        self.driver.enter_context(device)
        if device not in self._functions:
            self._functions[device] = self.driver.load(self.cubin, self.entry.name, self.entry.shared_bytes, self.entry.cluster)
        return self._functions[device]

    def launch(self, grid: Sequence[int], arguments: Sequence[Any], device: int, stream: int) -> None:
        """Launch with tensors for pointers, numbers, and `View`s for TMA descriptors."""
        if len(arguments) != len(self.entry.parameters):
            raise InputError(f"{self.entry.name} takes {len(self.entry.parameters)} arguments, not {len(arguments)}")
        values: list[Any] = []
        for parameter, argument in zip(self.entry.parameters, arguments, strict=True):
            values += self._values(parameter, argument)
        # scratch memory of the compiler, which these kernels do not use
        values += [ctypes.c_void_p(), ctypes.c_void_p()]
        e = self.entry
        self.driver.launch(
            self.load(device), grid, threads=32 * e.num_warps, shared_bytes=e.shared_bytes, cluster=e.cluster, launch_pdl=e.launch_pdl, stream=stream, values=values
        )

    def _values(self, parameter: Parameter, argument: Any) -> list[Any]:
        if parameter.kind == "pointer":
            return [ctypes.c_void_p(argument.data_ptr())]
        if parameter.kind == "tensor map":
            return [_tensor_map(self.driver, parameter, argument), *map(ctypes.c_int32, argument.shape), *map(ctypes.c_int64, argument.strides)]
        return [_SCALARS[parameter.kind](argument)]


@functools.lru_cache(maxsize=1024)
def _tensor_map(driver: Driver, parameter: Parameter, view: View) -> TensorMap:
    """The descriptor of a view: the caches of a served model are the same at every step."""
    return driver.tensor_map(view.address, parameter.dtype, view.shape, view.strides, parameter.box, parameter.swizzle)


def loaded_kernels(export: Export, kernel: Kernel, entries: tuple[str, ...] | None, driver: Driver) -> dict[str, LoadedKernel]:
    """The kernels of a spec (of these entries only, if given).

    Raises:
        ExportError: the export does not hold them, or not unchanged.
    """
    module = export.module_of(kernel)
    return {e.name: LoadedKernel(e, export.read(e.cubin, e.sha256), driver) for e in module.entries if entries is None or e.name in entries}


class ExportedExecutor(GpuExecutor):
    """Kernels of an export on a Hopper GPU: what a plan of target gluon runs where its recipe was loaded from an export."""

    def __init__(self, kernel: Kernel, device: Any, entries: tuple[str, ...] | None = None):
        require_hopper(device, f"{kernel.exported.folder}, which holds code for sm_90a,")
        self.device = device
        self.kernels = loaded_kernels(kernel.exported, kernel, entries, driver())
        index, _ = self.current()
        for loaded in self.kernels.values():
            loaded.load(index)

    def current(self) -> tuple[int, int]:
        """Index of the current device, and its current stream."""
        import torch

        return torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream

    def resident_ctas(self, entry: str) -> int:
        e = self.kernels[entry].entry
        return ctas_per_multiprocessor(e.num_warps, e.shared_bytes, e.registers) * self.multiprocessors()

    def descriptor(self, box: BoxDescriptor, tensor: Any, shape: list[int], strides: list[int]) -> View:
        check_view(tensor, shape, strides, Descriptor(box.dtype.value, box.block_shape))
        return View(tensor.data_ptr(), tuple(shape), tuple(strides))

    def launch(self, entry: str, grid: tuple[int, ...], arguments: tuple[Argument, ...], values: list[Any]) -> None:
        index, stream = self.current()
        self.kernels[entry].launch(grid, values, index, stream)
