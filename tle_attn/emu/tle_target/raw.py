"""The emulated TLE-Raw: a CUDA device function is replaced by its semantic definition, found by its symbol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target.errors import not_emulated, require
from tle_attn.emu.tle_target.shared import BufferedTensor

#: symbol of a device function -> definition: receives the call's arguments, returns the outputs in order of `output_indices`
Definitions = Mapping[str, Callable]


@frozen
class DeviceFunction:
    """What ``@dialect`` makes of a stub."""

    symbol: str
    deferred: bool


def dialect(*, name, file=None, extern_func_name=None, deferred=False, library=None, compiler=None):
    require(name in ("cuda", "mlir"), f"dialect: name must be 'cuda' or 'mlir', got {name!r}")
    if name == "mlir":
        raise not_emulated("a device function in MLIR")
    require(file is not None and isinstance(extern_func_name, str), "dialect: a CUDA device function needs file and extern_func_name")
    return lambda stub: DeviceFunction(extern_func_name, deferred)


@frozen
class RawCalls:
    """``tle_raw`` of one module, over the definitions it was loaded with."""

    definitions: Definitions

    def call(self, func, args, output_indices=None, hint=""):
        outputs = self._outputs("call", func, args, output_indices)
        require(all(isinstance(args[i], Tile) for i in outputs), "tle_raw.call: output arguments must be tensors (call_smem returns buffers)")
        results = self.definitions[func.symbol](*(_plain(a) for a in args))
        if not outputs:
            require(results is None, f"{func.symbol}: its definition returns a value, but the call has no output_indices")
            return None
        results = results if isinstance(results, tuple) else (results,)
        require(len(results) == len(outputs), f"{func.symbol}: {len(results)} result(s) for {len(outputs)} output argument(s)")
        for i, result in zip(outputs, results, strict=True):
            given = args[i]
            require(
                result.shape == given.shape and result.dtype is given.dtype,
                f"{func.symbol}: a result is {result.dtype}{list(result.shape)}, its output argument {i} is {given.dtype}{list(given.shape)}",
            )
        return results[0] if len(results) == 1 else results

    def call_smem(self, func, args, output_indices=None, hint=""):
        outputs = self._outputs("call_smem", func, args, output_indices)
        require(all(isinstance(args[i], BufferedTensor) for i in outputs), "tle_raw.call_smem: output arguments must be buffers")
        self.definitions[func.symbol](*(_plain(a) for a in args))
        results = tuple(args[i] for i in outputs)
        return results[0] if len(results) == 1 else results or None

    def _outputs(self, what: str, func: Any, args: Sequence, output_indices: Sequence[int] | None) -> tuple[int, ...]:
        require(isinstance(func, DeviceFunction), f"tle_raw.{what}: not a function declared with @dialect")
        require(isinstance(args, (list, tuple)), f"tle_raw.{what}: args must be a list or tuple")
        require(not func.deferred or output_indices is not None, f"tle_raw.{what}: {func.symbol} is deferred and needs output_indices")
        outputs = tuple(output_indices or ())
        require(all(0 <= i < len(args) for i in outputs), f"tle_raw.{what}: output_indices {list(outputs)} for {len(args)} argument(s)")
        require(func.symbol in self.definitions, f"tle_raw.{what}: the module was loaded without a definition of {func.symbol}")
        return outputs


def _plain(argument: Any) -> Any:
    return argument.local("a raw call") if isinstance(argument, BufferedTensor) else argument
