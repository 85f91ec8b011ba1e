"""Compile one kernel of a generated Gluon module for sm_90a, with or without a GPU in the machine."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import define, field

from tle_attn.build import cache
from tle_attn.build.facts import Facts, measure
from tle_attn.build.failure import BuildError, captured_output, explain
from tle_attn.build.signature import Descriptor, check_signature, describe_signature, triton_signature
from tle_attn.build.toolchain import tools, triton_version


@define(eq=False, slots=False)
class CompiledKernel:
    """A kernel compiled for sm_90a.

    Attributes:
        name: the entry's name.
        path: the module's file, named by a digest of its text.
        signature: types of the arguments that a launch passes, in the kernel's order.
        constants: values of compile-time arguments.
    """

    name: str
    path: Path
    signature: Mapping[str, str | Descriptor]
    constants: Mapping[str, Any]
    _arguments: Sequence[str]
    _kernel: Any
    _entry: cache.Entry
    _loaded: dict[int, Any] = field(factory=dict, init=False)

    @property
    def num_warps(self) -> int:
        """Warps of a CTA: those of all roles, and the padding to whole warpgroups."""
        return self.metadata.num_warps

    @property
    def cluster(self) -> int:
        """CTAs of a cluster; the launch grid's first dimension counts clusters."""
        return self.metadata.num_ctas

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self.metadata.shared

    @property
    def metadata(self) -> Any:
        """What the compiler says about launches, as Triton has it."""
        return self._kernel.metadata

    @property
    def asm(self) -> Mapping[str, Any]:
        """The compiler's intermediate texts (``ttgir``, ``llir``, ``ptx``) and the machine code (``cubin``)."""
        return self._kernel.asm

    @functools.cached_property
    def facts(self) -> Facts:
        """Registers, spills, shared memory and instruction counts."""
        return self._entry.facts(lambda: measure(self.asm["cubin"], self._entry.report, self.shared_bytes, tools()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """ptxas remarks about performance."""
        return self.facts.warnings

    def load(self) -> Any:
        """Put the machine code on the current CUDA device; a CUDA graph can capture launches from then on.

        Returns:
            Triton's handle of the kernel on that device.
        """
        import torch

        device = torch.cuda.current_device()
        if device not in self._loaded:
            kernel = copy.copy(self._kernel)
            with cache.launchers():
                kernel._init_handles()
            self._loaded[device] = kernel
        return self._loaded[device]

    def launch(self, grid: Sequence[int], args: Sequence[Any], stream: int | None = None) -> None:
        """Launch on the current CUDA device.

        Args:
            grid: up to three counts of CTAs; the first one counts clusters in a cluster kernel.
            args: values in the order of ``signature``: tensors for pointers, numbers, and :func:`tle_attn.build.descriptor` results.
            stream: CUDA stream handle; PyTorch's current stream when None.
        """
        if len(args) != len(self.signature):
            raise BuildError(f"{self.name} takes {len(self.signature)} arguments ({', '.join(self.signature)}), not {len(args)}")
        values = iter(args)
        self.load()[(*grid, 1, 1)[:3]](*(self.constants[a] if a in self.constants else next(values) for a in self._arguments), stream=stream)


def _import_module(path: Path) -> tuple[ModuleType, Any]:
    """The module at `path`, and the compile hook for it: the one that it installs, or else the user's (None without one).

    A hook that another generated module has installed is left out: it would be part of Triton's cache key.
    """
    from triton import knobs

    name = f"tle_attn_generated.{path.stem}"
    with knobs.runtime.scope():
        while hasattr(knobs.runtime.add_stages_inspection_hook, "tle_attn_earlier"):
            knobs.runtime.add_stages_inspection_hook = knobs.runtime.add_stages_inspection_hook.tle_attn_earlier
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except Exception as error:
                del sys.modules[name]
                raise BuildError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
            module.__tle_attn_compile_hook__ = knobs.runtime.add_stages_inspection_hook
    return sys.modules[name], sys.modules[name].__tle_attn_compile_hook__


def compile_module(path_or_text: str | Path, entry: str, signature: Mapping[str, str | Descriptor], *, num_warps: int, maxnreg: int | None = None,
                   launch_pdl: bool = False, constants: Mapping[str, Any] | None = None) -> CompiledKernel:
    """Compile a kernel of a generated Gluon module.

    Args:
        path_or_text: the module's file (a ``Path``, or a ``str`` that names one), or its text.
        entry: name of the kernel.
        signature: argument -> ``*bf16`` and other pointers (16-byte aligned), ``i32``, ``i64``, ``fp32``, or a :class:`Descriptor`.
        num_warps: warps of the kernel itself: of role 0 in a warp-specialised kernel.
        maxnreg: bound on registers per thread.
        launch_pdl: launch with programmatic stream serialisation (``grid_wait`` and ``grid_launch_dependents`` in the text).
        constants: values of compile-time arguments.

    Raises:
        CompileError: the compiler refuses the text.
        BuildError: the signature does not fit the kernel, or Triton is too old.
    """
    constants = dict(constants or {})
    is_path = isinstance(path_or_text, Path) or "\n" not in path_or_text
    text = Path(path_or_text).read_text() if is_path else path_or_text
    options = {"num_warps": num_warps, "maxnreg": maxnreg, "launch_pdl": launch_pdl, "enable_fp_fusion": True}
    request = (entry, describe_signature(signature), repr(sorted(constants.items())), repr(sorted(options.items())))
    key = cache.digest(text, *request, triton_version(), "sm_90a", cache.FORMAT)
    with cache.entry(key) as place:
        path = place.module_file(text)
        return _compile(path, entry, signature, constants, {k: v for k, v in options.items() if v is not None}, place)


def _compile(path: Path, entry: str, signature: Mapping[str, str | Descriptor], constants: dict[str, Any], options: dict[str, Any],
             place: cache.Entry) -> CompiledKernel:
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    module, hook = _import_module(path)
    function = getattr(module, entry, None)
    if function is None:
        raise BuildError(f"{path} has no kernel {entry}")
    check_signature(function.arg_names, signature, constants, entry)
    types, attributes = triton_signature(function.arg_names, signature)
    source = GluonASTSource(fn=function, signature=types, constexprs=constants, attrs=attributes)
    with place.triton_cache(), knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = hook
        with captured_output(place.log_file) as printed:
            try:
                kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
                failure = None
            except Exception as error:
                failure = error
        if failure is not None:
            raise explain(failure, entry, path, printed.text, place.log_file) from failure
        place.keep_report(printed.out)
    sys.stderr.write(printed.err)
    ordered = {a: signature[a] for a in function.arg_names if a in signature}
    return CompiledKernel(entry, path, ordered, constants, function.arg_names, kernel, place)
