"""A libcuda that notes what it is told, and an executor of exported kernels on top of it whose tensors lie on the CPU."""

from __future__ import annotations

from typing import Any

from tle_attn.exports import ExportedExecutor
from tle_attn.exports.driver import Driver
from tle_attn.exports.executor import loaded_kernels


class FakeLibrary:
    """Every call succeeds; `calls` holds (function, arguments), `launches` the grids."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.launches: list[tuple[int, ...]] = []

    def __getattr__(self, function: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((function, arguments))
            if function in ("cuModuleLoadData", "cuModuleGetFunction", "cuDevicePrimaryCtxRetain"):
                arguments[0]._obj.value = len(self.calls)
            if function == "cuLaunchKernelEx":
                self.launches.append(tuple(arguments[0]._obj.grid))
            return 0

        return call

    def count(self, function: str) -> int:
        return sum(name == function for name, _ in self.calls)


class FakeExecutor(ExportedExecutor):
    """An executor of exported kernels on a fake device of 132 multiprocessors."""

    def __init__(self, kernel: Any, library: FakeLibrary):
        self.kernels = loaded_kernels(kernel.exported, kernel, None, Driver(library))
        for loaded in self.kernels.values():
            loaded.load(0)

    def current(self) -> tuple[int, int]:
        return 0, 0

    def resident_ctas(self, entry: str) -> int:
        return 2 * 132

    def l2_bytes(self) -> int:
        return 60 << 20


