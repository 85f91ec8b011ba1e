"""The emulated ``triton.language``: the documented signatures and rules, computed by the operations of the dialect."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tle_attn.emu import ops
from tle_attn.emu.dtypes import BF16, F16, F32, FP8, I1, I32, I64, U8, DType
from tle_attn.emu.integers import Int64, device_range
from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target.assembly import execute
from tle_attn.emu.tle_target.errors import is_static, not_emulated, require
from tle_attn.emu.tle_target.shared import LocalPointer

bfloat16, float16, float32, float8e4nv = BF16, F16, F32, FP8
int1, int32, int64, uint8 = I1, I32, I64, U8
tensor = Tile
dtype = DType

SEMANTICS = (None, "relaxed", "acquire", "release", "acq_rel")


class constexpr:  # noqa: N801 - Triton's name
    """``tl.constexpr(3)`` is 3; as an annotation it marks a compile-time parameter."""

    def __new__(cls, value: Any) -> Any:
        require(not isinstance(value, (Tile, Int64)), "constexpr of a runtime value")
        return value


def jit(fn: Callable | None = None, **options: Any) -> Callable:
    """The function itself; its constexpr parameters then refuse runtime values."""
    if fn is None:
        return functools.partial(jit, **options)
    parameters = inspect.signature(fn).parameters
    static = [(i, name) for i, (name, p) in enumerate(parameters.items()) if p.annotation is constexpr]
    if not static:
        return fn

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        for i, name in static:
            value = args[i] if i < len(args) else kwargs.get(name)
            require(not isinstance(value, (Tile, Int64)), f"{fn.__name__}: {name} is a constexpr parameter and got a runtime value")
        return fn(*args, **kwargs)

    return call


def constexpr_function(fn: Callable) -> Callable:
    """A function of compile-time values, run at compile time."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        require(not any(isinstance(a, (Tile, Int64)) for a in args), f"{fn.__name__} is a constexpr function and got a runtime value")
        return fn(*args)

    return call


# ---- programs and loops
def program_id(axis):
    require(axis in (0, 1, 2), f"program_id: axis must be 0, 1 or 2, got {axis}")
    return ops.program_id(axis)


def num_programs(axis):
    require(axis in (0, 1, 2), f"num_programs: axis must be 0, 1 or 2, got {axis}")
    return ops.num_programs(axis)


def static_range(arg1, arg2=None, step=None):
    bounds = [b for b in (arg1, arg2, step) if b is not None]
    require(all(is_static(b) for b in bounds), "static_range: bounds must be compile-time integers")
    return range(*bounds)


def _range(arg1, arg2=None, step=None, num_stages=None, loop_unroll_factor=None, disallow_acc_multi_buffer=False, flatten=False, warp_specialize=False):
    require(not warp_specialize, "range(warp_specialize=True): the partitions are written out with tle.gpu.warp_specialize")
    return device_range(*(b for b in (arg1, arg2, step) if b is not None))


# ---- memory
def load(pointer, mask=None, other=None, boundary_check=(), padding_option="", cache_modifier="", eviction_policy="", volatile=False):
    require(boundary_check == () and padding_option == "", "load: boundary_check and padding_option are for block pointers")
    require(other is None or mask is not None, "load: other needs a mask")
    if isinstance(pointer, LocalPointer):
        return pointer.load(mask, other)
    return ops.load(pointer, mask, other, cache_modifier)


def store(pointer, value, mask=None, boundary_check=(), cache_modifier="", eviction_policy=""):
    require(boundary_check == (), "store: boundary_check is for block pointers")
    if isinstance(pointer, LocalPointer):
        pointer.store(value, mask)
    else:
        ops.store(pointer, value, mask)


def atomic_add(pointer, val, mask=None, sem=None, scope=None):
    require(sem in SEMANTICS, f"atomic_add: sem must be one of {', '.join(map(str, SEMANTICS))}, got {sem!r}")
    require(scope in (None, "gpu", "cta", "sys"), f"atomic_add: scope must be gpu, cta or sys, got {scope!r}")
    if isinstance(pointer, LocalPointer) or mask is not None or scope not in (None, "gpu"):
        raise not_emulated("atomic_add on shared memory, with a mask or at another scope than gpu")
    return ops.atomic_add(pointer, val, sem or "acq_rel")


# ---- tiles
def _extent(what: str, n: Any) -> int:
    require(is_static(n), f"{what}: extents must be compile-time integers, got {n!r}")
    require(n > 0 and n & (n - 1) == 0, f"{what}: extents must be powers of two, got {n}")
    return n


def arange(start, end):
    require(is_static(start) and is_static(end), "arange: bounds must be compile-time integers")
    index = ops.vec_index(_extent("arange", end - start))
    return index + start if start else index


def full(shape, value, dtype):
    shape = tuple(_extent("full", n) for n in shape)
    require(isinstance(dtype, DType), f"full: dtype must be a tl.dtype, got {dtype!r}")
    require(not getattr(value, "shape", ()), "full: the value must be a scalar")
    number = value.values if isinstance(value, Tile) else value
    if dtype.is_float:
        return Tile(np.full(shape, number, np.float32), F32).to(dtype)
    return Tile(np.full(shape, number, dtype.np), dtype)


def zeros(shape, dtype):
    return full(shape, 0, dtype)


def cast(input, dtype, fp_downcast_rounding=None, bitcast=False):
    if bitcast or fp_downcast_rounding not in (None, "rtne"):
        raise not_emulated("cast with bitcast or a rounding mode")
    if dtype is I64:
        return ops.as_int64(input)
    return input.to(dtype)


def _dims(dims: Sequence) -> tuple[int, ...]:
    flat = tuple(dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
    require(all(is_static(d) for d in flat), "dimensions must be compile-time integers")
    return flat


def reshape(input, *shape, can_reorder=False):
    if can_reorder:
        raise not_emulated("reshape(can_reorder=True)")
    return input.reshape(_dims(shape))


def permute(input, *dims):
    return input.permute(_dims(dims))


def trans(input, *dims):
    return input.permute(_dims(dims)) if dims else ops.trans(input)


def join(a, b):
    return ops.joined(a, b)


def where(condition, x, y):
    return ops.where(condition, x, y)


def _default_nan_rule(propagate_nan: Any) -> None:
    if propagate_nan is not None:
        raise not_emulated("a rule for NaN other than the default")


def maximum(x, y, propagate_nan=None):
    _default_nan_rule(propagate_nan)
    return ops.maximum(x, y)


def minimum(x, y, propagate_nan=None):
    _default_nan_rule(propagate_nan)
    return ops.minimum(x, y)


def _abs(x):
    return ops.absolute(x)


def exp2(x):
    return ops.exp2(x)


def log2(x):
    return ops.log2(x)


def fdiv(x, y, ieee_rounding=False):
    return ops.fdiv(x, y)


def cdiv(x, div):
    return ops.cdiv(x, div)


def _axis(name: str, axis: Any, *flags: bool) -> int:
    if axis is None or any(flags):
        raise not_emulated(f"{name} of all axes or with its flags")
    require(is_static(axis), f"{name}: axis must be a compile-time integer")
    return axis


def _max(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    return ops.reduce_max(input, _axis("max", axis, return_indices, keep_dims))


def _sum(input, axis=None, keep_dims=False, dtype=None):
    return ops.reduce_sum(input, _axis("sum", axis, keep_dims, dtype is not None))


def cumsum(input, axis=0, reverse=False, dtype=None):
    if _axis("cumsum", axis, reverse, dtype is not None) != 0 or len(input.shape) != 1:
        raise not_emulated("cumsum of anything but a vector")
    return ops.cumsum(input)


def debug_barrier():
    ops.role_sync()


def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    return execute(asm, constraints, args, dtype, is_pure, pack)


#: every name of the emulated ``triton.language``
EXPORTS = {
    name: globals()[name]
    for name in (
        *("bfloat16", "float16", "float32", "float8e4nv", "int1", "int32", "int64", "uint8", "tensor", "dtype", "constexpr"),
        *("program_id", "num_programs", "static_range", "load", "store", "atomic_add", "arange", "full", "zeros", "cast"),
        *("reshape", "permute", "trans", "join", "where", "maximum", "minimum", "exp2", "log2", "fdiv", "cdiv", "cumsum"),
        *("debug_barrier", "inline_asm_elementwise"),
    )
} | {"abs": _abs, "tuple": tuple, "range": _range, "max": _max, "sum": _sum}
