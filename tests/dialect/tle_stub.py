"""Stands in for FlagTree's ``triton.experimental.tle`` in front of stock Triton 3.6, on whose front end FlagTree is built.

Its calls carry types through the front end and emit nothing of their own, so a TLE module can be traced to Triton IR by the real
code generator: what the JIT refuses (globals, argument kinds, changing types, tuples) shows without FlagTree.  It says nothing
about FlagTree's own passes.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import triton.experimental
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.language import core

HOPPER = GPUTarget("cuda", 90, 32)


def unwrap(x: object) -> object:
    return core._unwrap_if_constexpr(x)


class HandleType(core.base_type):
    """Type of a value that is one i32 in the IR and some facts in the front end."""

    def __init__(self, cls: type, facts: dict):
        self.cls, self.facts = cls, facts

    def __eq__(self, other):
        return isinstance(other, HandleType) and self.cls is other.cls and self.facts == other.facts

    def mangle(self):
        return self.cls.__name__ + "".join(c if c.isalnum() else "_" for c in repr(sorted(self.facts.items())))

    def _flatten_ir_types(self, builder, out):
        out.append(builder.get_int32_ty())

    def _unflatten_ir(self, handles, cursor):
        return self.cls(handles[cursor], **self.facts), cursor + 1


class Handle(core.base_value):
    def __init__(self, handle, **facts):
        self.handle, self.type = handle, HandleType(type(self), facts)
        self.__dict__.update(facts)

    def _flatten_ir(self, handles):
        handles.append(self.handle)


class Buffer(Handle):
    @core.builtin
    def slot(self, stage, _semantic=None):
        assert _semantic.to_tensor(stage).type == tl.int32
        return Buffer(self.handle, shape=self.shape[1:], dtype=self.dtype)


class Barrier(Handle):
    @core.builtin
    def __getitem__(self, i, _semantic=None):
        assert _semantic.to_tensor(i).dtype.is_int()
        return Barrier(self.handle)


@core.builtin
def alloc(shape, dtype, layout=None, scope=None, *, init_value=None, alias=None, alias_offset_bytes=0, nv_mma_shared_layout=True, _semantic=None):
    sizes = [unwrap(n) for n in shape]
    assert all(type(n) is int for n in sizes) and isinstance(unwrap(dtype), tl.dtype) and (alias is None or isinstance(alias, Buffer))
    return Buffer(_semantic.builder.get_int32(0), shape=sizes, dtype=unwrap(dtype))


@core.builtin
def local_ptr(buffer, indices=None, _semantic=None):
    assert isinstance(buffer, Buffer)
    shape = buffer.shape if indices is None else [unwrap(n) for n in indices[0].shape]
    zeros = tl.full(shape, 0, tl.int64, _semantic=_semantic)
    return tl.cast(zeros, tl.pointer_type(buffer.dtype, 3), _semantic=_semantic)


@core.builtin
def alloc_barriers(num_barriers, arrive_count=1, init="pending", expect_bytes=None, _semantic=None):
    assert all(type(unwrap(n)) is int for n in (num_barriers, arrive_count)) and unwrap(init) in ("pending", "ready")
    assert unwrap(expect_bytes) is None or unwrap(expect_bytes) > 0
    return Barrier(_semantic.builder.get_int32(0))


@core.builtin
def barrier_wait(bar, phaseIdx=None, _semantic=None):
    assert isinstance(bar, Barrier) and (phaseIdx is None or _semantic.to_tensor(phaseIdx).dtype.is_int())


@core.builtin
def barrier_arrive(bar, arrive_count=1, phaseIdx=None, _semantic=None):
    assert isinstance(bar, Barrier)


@core.builtin
def copy(src, dst, shape, offsets=None, barrier=None, mask=None, _semantic=None):
    buffer, descriptor = (src, dst) if isinstance(src, Buffer) else (dst, src)
    assert isinstance(buffer, Buffer) and isinstance(descriptor, core.tensor_descriptor)
    assert len(_semantic._convert_to_ir_values(offsets, require_i64=False)) == len(descriptor.block_shape)
    assert barrier is None or isinstance(barrier, Barrier)


@core.builtin
def wgmma(a, b, acc=None, input_precision=None, max_num_imprecise_acc=None, out_dtype=tl.float32, trans_a=False, trans_b=False, _semantic=None):
    assert isinstance(b, Buffer) and isinstance(a, (Buffer, tl.tensor))
    shape = [unwrap(a.shape[int(unwrap(trans_a))]), unwrap(b.shape[1 - int(unwrap(trans_b))])]
    acc = unwrap(acc)
    if acc is None:
        return tl.full(shape, 0.0, tl.float32, _semantic=_semantic)
    assert [unwrap(n) for n in acc.shape] == shape
    return acc


@core.builtin
def wgmma_wait(pendings, acc=None, _semantic=None):
    assert isinstance(acc, tl.tensor) and type(unwrap(pendings)) is int
    return acc


@core.builtin
def warp_specialize(functions_and_args, worker_num_warps, worker_num_regs, _semantic=None, _generator=None):
    for entry in functions_and_args:
        function, args = entry
        assert isinstance(args, (tuple, tl.tuple))
        _generator.call_JitFunction(unwrap(function), list(args), {})


@core.builtin
def shard_id(mesh, axis, _semantic=None):
    assert isinstance(unwrap(mesh), dict)
    return tl.program_id(0, _semantic=_semantic)


@core.builtin
def remote(tensor, shard_id, scope=None, space="cluster", _semantic=None):
    assert isinstance(tensor, Buffer) and _semantic.to_tensor(shard_id).type == tl.int32
    return tensor


@core.builtin
def distributed_barrier(mesh=None, _semantic=None):
    pass


def module(name: str, **contents: object) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    return made


def stub() -> types.ModuleType:
    """``triton.experimental.tle.language``."""
    functions = (alloc, local_ptr, alloc_barriers, barrier_wait, barrier_arrive, copy, wgmma, wgmma_wait, warp_specialize)
    gpu = module("triton.experimental.tle.language.gpu", PENDING="pending", READY="ready", **{f.__name__: f for f in functions})
    functions = {f.__name__: f for f in (shard_id, remote, distributed_barrier)}
    return module("triton.experimental.tle.language", gpu=gpu, device_mesh=dict, **functions)


@contextmanager
def installed(language: types.ModuleType) -> Iterator[None]:
    """``triton.experimental.tle`` is there inside of the block."""
    package = module("triton.experimental.tle", language=language)
    names = {"triton.experimental.tle": package, "triton.experimental.tle.language": language}
    sys.modules.update(names)
    triton.experimental.tle = package
    try:
        yield
    finally:
        del triton.experimental.tle
        for name in names:
            del sys.modules[name]


def load(path: Path) -> types.ModuleType:
    """Import a TLE module over the stub."""
    with installed(stub()):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = loaded  # the JIT looks its functions' module up
        spec.loader.exec_module(loaded)
    return loaded


def trace(kernel: Callable, signature: dict[str, str]) -> str:
    """Triton IR of an entry."""
    backend = make_backend(HOPPER)
    options = backend.parse_options({"num_warps": 4})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, signature)
    return str(source.make_ir(HOPPER, options, backend.get_codegen_implementation(options), backend.get_module_map(), context))
