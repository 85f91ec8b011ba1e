"""Executors: how the kernels of a generated module run on a target."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..checks.resources import launch_options
from ..codegen import Generated, entries_of, generate
from ..codegen.source import microkernel_file
from ..errors import InputError, TargetUnavailable
from ..spec import Argument, BoxDescriptor, Kernel
from ..spec.resources import REGISTERS_PER_SM, SHARED_BYTES_PER_SM, SHARED_BYTES_RESERVED

#: targets that `plan` accepts; "tle-emulated" runs the generated TLE module through an emulated triton.language
TARGETS = ("gluon", "tle", "cpu", "tle-emulated")


@lru_cache
def scratch_folder() -> Path:
    """Generated modules of this process that no compile cache keeps."""
    folder = Path(tempfile.mkdtemp(prefix="tle_attn_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def module_file(generated: Generated) -> Path:
    """The generated module as a file (tracebacks and emulation reports quote its lines)."""
    file = scratch_folder() / f"{generated.module_name}.py"
    if not file.exists():
        file.write_text(generated.text)
    return file


@lru_cache(maxsize=64)
def import_generated(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tle_attn_generated.{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build_signature(arguments: tuple[Argument, ...]) -> dict[str, Any]:
    """Types of a kernel's arguments as `build.compile_module` wants them."""
    from ..build import Descriptor

    names = {"f32": "fp32", "fp8": "fp8e4nv", "f16": "fp16"}
    signature: dict[str, Any] = {}
    for a in arguments:
        if isinstance(a.type, BoxDescriptor):
            signature[a.name] = Descriptor(a.type.dtype.value, a.type.block_shape)
        else:
            star, base = ("*", a.type[1:]) if a.type.startswith("*") else ("", a.type)
            signature[a.name] = star + names.get(base, base) + (":16" if a.divisible == 16 else "")
    return signature


def compile_kernel(kernel: Kernel, entry: str) -> Any:
    """The kernel compiled for sm_90a by stock Triton; needs no GPU."""
    from ..build import compile_module

    generated = generate(kernel, "gluon")
    return compile_module(generated.text, entry, build_signature(generated.entry(entry).arguments), **launch_options(kernel, entry))


def ctas_per_multiprocessor(num_warps: int, shared_bytes: int, registers: int) -> int:
    """CTAs that run at once on a multiprocessor, from what one takes: warps, dynamic shared bytes, registers per thread."""
    threads = num_warps * 32
    by_shared = SHARED_BYTES_PER_SM // (shared_bytes + SHARED_BYTES_RESERVED)
    by_registers = REGISTERS_PER_SM // (-(-registers // 8) * 8 * threads)
    return min(by_shared, by_registers, 2048 // threads)


def require_hopper(device: Any, what: str) -> None:
    """Raise TargetUnavailable where `device` is no Hopper GPU, which `what` needs."""
    from ..build import has_hopper

    if device.type != "cuda":
        raise TargetUnavailable(f"{what} runs on a CUDA device, not on {device}; target cpu emulates the kernel anywhere")
    if not has_hopper():
        raise TargetUnavailable(f"{what} needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here; target cpu emulates the kernel anywhere")


class GpuExecutor:
    """What all executors on a GPU know of their device."""

    emulated = False
    device: Any

    def multiprocessors(self) -> int:
        import torch

        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def l2_bytes(self) -> int:
        import torch

        return torch.cuda.get_device_properties(self.device).L2_cache_size


class GluonExecutor(GpuExecutor):
    """Stock Triton on a Hopper GPU; what was compiled for inspection is what runs."""

    def __init__(self, kernel: Kernel, device: Any, entries: tuple[str, ...] | None = None):
        import torch

        require_hopper(device, "target gluon")
        self.device = device
        self.compiled = {e.name: compile_kernel(kernel, e.name) for e in entries_of(kernel) if entries is None or e.name in entries}
        with torch.cuda.device(device):
            for compiled in self.compiled.values():
                compiled.load()

    def resident_ctas(self, entry: str) -> int:
        compiled = self.compiled[entry]
        return ctas_per_multiprocessor(compiled.num_warps, compiled.shared_bytes, compiled.facts.registers) * self.multiprocessors()

    def descriptor(self, box: BoxDescriptor, tensor: Any, shape: list[int], strides: list[int]) -> Any:
        from ..build import descriptor

        return descriptor(tensor, shape, strides, box.block_shape, box.dtype.value)

    def launch(self, entry: str, grid: tuple[int, ...], arguments: tuple[Argument, ...], values: list[Any]) -> None:
        self.compiled[entry].launch(grid, values)


def raw_definitions(kernel: Kernel) -> dict[str, Any]:
    """{symbol of a TLE-Raw device function: its semantic definition}, from the blocks' cpu microkernels; the call's first argument is the output."""
    from .. import emu

    found: dict[str, Any] = {}
    for _, block in kernel.blocks:
        file = microkernel_file(type(block), "cpu")
        if block.RAW and file:
            names: dict[str, Any] = {"emu": emu, "F32": emu.F32}
            exec(compile(file.read_text(), str(file), "exec"), names)
            found.update({symbol: (lambda _, *inputs, f=names[function]: f(*inputs)) for symbol, function in block.RAW.items()})
    return found


class EmulatedExecutor:
    """The CPU emulation, of the cpu module or (`tle`) of the TLE module through an emulated triton.language."""

    emulated = True
    #: multiprocessors that the emulation pretends to have: few, so that small problems are split, and enough for more parts than one CTA merges alone
    SMS = 6
    #: False explores barriers, copies and order without computing tiles
    arithmetic = True
    #: records the next launches (`tle_attn.emu.Trace`)
    trace: Any = None

    def __init__(self, kernel: Kernel, tle: bool, seed: int = 0):
        generated = generate(kernel, "tle" if tle else "cpu")
        self.file = module_file(generated)
        self.seed = seed
        self.ctas_per_sm, self.cluster, self.dependents = kernel.resources.ctas_per_sm, kernel.resources.cluster, kernel.mainloop.dependents()
        if tle:
            from ..emu.tle_target import load_tle_module

            self.module = load_tle_module(self.file, raw_definitions(kernel))
        else:
            self.module = import_generated(self.file)

    def resident_ctas(self, entry: str) -> int:
        return self.SMS * self.ctas_per_sm

    def multiprocessors(self) -> int:
        return self.SMS

    def l2_bytes(self) -> int:
        return 1 << 20

    def descriptor(self, box: BoxDescriptor, tensor: Any, shape: list[int], strides: list[int]) -> Any:
        from .. import emu

        return emu.TensorDescriptor(tensor, shape, strides, list(box.block_shape))

    def launch(self, entry: str, grid: tuple[int, ...], arguments: tuple[Argument, ...], values: list[Any]) -> Any:
        from .. import emu

        args = {a.name: (a.type if isinstance(a.type, str) else "descriptor", v) for a, v in zip(arguments, values)}
        workspace = {a.name for a in arguments if a.name.startswith("partial_")}
        resident = self.resident_ctas(entry) if "tasks" in args and entry != "plan_tasks" else None
        # what may start early touches no tensor before grid_wait: whatever runs before it may still write them
        dependent = [a.name for a in arguments if isinstance(a.type, BoxDescriptor) or a.type.startswith("*")] if entry in self.dependents else []
        options = {"dependent": dependent, "resident": resident, "workspace": workspace, "arithmetic": self.arithmetic, "trace": self.trace, "cluster": self.cluster}
        return emu.launch(getattr(self.module, entry), grid, args, seed=self.seed, **options)


class TleExecutor(GpuExecutor):
    """FlagTree on a Hopper GPU.  Never run by this project's authors: FlagTree was not available to them."""

    def __init__(self, kernel: Kernel, device: Any):
        from ..dialect.flagtree import require_flagtree

        require_flagtree()
        self.module = import_generated(module_file(generate(kernel, "tle")))
        self.ctas_per_sm = kernel.resources.ctas_per_sm
        self.kernel = kernel
        self.device = device

    def resident_ctas(self, entry: str) -> int:
        return self.ctas_per_sm * self.multiprocessors()

    def descriptor(self, box: BoxDescriptor, tensor: Any, shape: list[int], strides: list[int]) -> Any:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(tensor, shape, strides, list(box.block_shape))

    def launch(self, entry: str, grid: tuple[int, ...], arguments: tuple[Argument, ...], values: list[Any]) -> None:
        getattr(self.module, entry)[grid](*values, **launch_options(self.kernel, entry))


def unknown_target(target: str) -> InputError:
    return InputError(f"no target is called {target!r}; there are {', '.join(TARGETS)}")


def make_executor(kernel: Kernel, target: str, device: Any, seed: int = 0, entries: tuple[str, ...] | None = None) -> Any:
    """The executor of a target (of these entries of the kernel only, if given), or TargetUnavailable in one line; nothing falls back.

    Raises:
        InputError: there is no such target.
    """
    if target == "gluon" and kernel.exported is not None:
        from ..exports import ExportedExecutor

        return ExportedExecutor(kernel, device, entries)
    if target == "gluon":
        return GluonExecutor(kernel, device, entries)
    if target in ("tle", "tle-emulated") and kernel.resources.cluster > 1:
        raise TargetUnavailable(f"target {target} cannot run {kernel.name}: TLE's only way to wait for another CTA is a barrier of all warps of the cluster, which a warp-specialised kernel cannot have")
    if target == "tle":
        return TleExecutor(kernel, device)
    if target in ("cpu", "tle-emulated"):
        if device.type != "cpu":
            raise TargetUnavailable(f"target {target} runs on the CPU, not on {device}")
        return EmulatedExecutor(kernel, target == "tle-emulated", seed)
    raise unknown_target(target)
