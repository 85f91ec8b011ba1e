"""Loads a generated TLE module as shipped, with Triton and FlagTree replaced by the emulation inside of that module only."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping
from pathlib import Path

from tle_attn.emu import ops
from tle_attn.emu.integers import device_range
from tle_attn.emu.tle_target import gpu, language, mesh, raw
from tle_attn.emu.tle_target.api import lookup, modules
from tle_attn.emu.tle_target.errors import TLENotEmulated, UnknownTLEName


def load_tle_module(path: str | Path, device_functions: Mapping[str, Callable] | None = None) -> types.ModuleType:
    """Execute the TLE module at `path` over the emulation; `tle_attn.emu.launch` runs its entries.

    Its imports of ``triton`` give emulated modules, and ``range`` counts in device integers; ``sys.modules`` is not touched,
    so a real Triton in the process is neither used nor changed.

    Args:
        path: the file.
        device_functions: symbol of each TLE-Raw device function -> its semantic definition, a function of the call's
            arguments (buffers as the emulation's buffers) that returns the outputs.

    Raises:
        TLEContractError: the module uses a name that FlagTree does not document.
        TLENotEmulated: it uses a documented name that is not emulated.
    """
    path = Path(path)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    emulated = _modules(device_functions or {})

    def importer(name: str, globals: Mapping | None = None, locals: Mapping | None = None, fromlist: tuple[str, ...] = (), level: int = 0) -> types.ModuleType:
        if level or name.partition(".")[0] != "triton":
            return builtins.__import__(name, globals, locals, fromlist, level)
        if name not in emulated:
            raise UnknownTLEName(f"module {name} is not documented")
        return emulated[name] if fromlist else emulated["triton"]

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": importer, "range": device_range}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def _modules(device_functions: raw.Definitions) -> dict[str, types.ModuleType]:
    """The emulated modules by name, each an attribute of its parent."""
    calls = raw.RawCalls(device_functions)
    contents = {
        "triton": {"jit": language.jit, "constexpr_function": language.constexpr_function},
        "triton.language": language.EXPORTS,
        "triton.language.extra.cuda": {"gdc_wait": ops.grid_wait, "gdc_launch_dependents": ops.grid_launch_dependents},
        "triton.experimental.tle.language": {f.__name__: f for f in (mesh.device_mesh, mesh.shard_id, mesh.remote, mesh.distributed_barrier)},
        "triton.experimental.tle.language.gpu": gpu.EXPORTS,
        "triton.experimental.tle.raw": {"dialect": raw.dialect},
        "triton.experimental.tle.language.raw": {"call": calls.call, "call_smem": calls.call_smem},
    }
    emulated = {name: _module(name, contents.get(name, {})) for name in modules()}
    for name, module in emulated.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(emulated[parent], child, module)
    return emulated


def _module(name: str, contents: Mapping[str, object]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(contents)

    def missing(attribute: str) -> object:
        if attribute.startswith("__"):  # what the import machinery probes
            raise AttributeError(attribute)
        try:
            lookup(f"{name}.{attribute}")
        except KeyError as error:
            raise UnknownTLEName(error.args[0]) from None
        raise TLENotEmulated(f"{name}.{attribute} is documented, but not emulated")

    module.__dict__["__getattr__"] = missing
    return module
