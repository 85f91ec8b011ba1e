"""The emulated ``tle.gpu``: copies, WGMMA and warp specialisation, with FlagTree's rules for their arguments."""

from __future__ import annotations

from typing import Any

from tle_attn.emu import ops
from tle_attn.emu.descriptors import TensorDescriptor
from tle_attn.emu.dtypes import BF16, F16, F32, FP8, DType
from tle_attn.emu.integers import Int32, Int64
from tle_attn.emu.memory import Pointer, PointerTile
from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target import barriers, shared
from tle_attn.emu.tle_target.errors import is_static, not_emulated, require
from tle_attn.emu.tle_target.shared import BufferedTensor
from tle_attn.emu.wgmma import PendingTile

MIN_IMPRECISE_ACC = 32  # fp8: the least max_num_imprecise_acc


# ---- TMA
def copy(src, dst, shape, offsets=None, barrier=None, mask=None):
    kinds = (_kind(src), _kind(dst))
    require(kinds in _DIRECTIONS, f"copy from {type(src).__name__} to {type(dst).__name__}: one side is global memory, the other a buffered_tensor")
    require(isinstance(shape, (list, tuple)), f"copy: shape must be a list or tuple, got {type(shape).__name__}")
    if "pointer" in kinds:
        require(barrier is None, "copy: barrier is only for TMA copies into shared memory")
        raise not_emulated("copy between pointers and shared memory")
    require(mask is None, "copy: TMA copies take no mask")
    descriptor, buffer = (src, dst) if kinds[0] == "descriptor" else (dst, src)
    rank = len(descriptor.block_shape)
    require(isinstance(offsets, (list, tuple)) and len(offsets) == rank, f"copy: {offsets!r} are no {rank} offsets for a descriptor of rank {rank}")
    for offset in offsets:
        require(isinstance(offset, int) and type(offset) is not bool, f"copy: offsets must be integer scalars, got {type(offset).__name__}")
        require(not isinstance(offset, Int64) or isinstance(offset, Int32), "copy: offsets must be int32, got int64")
    require(buffer.mma_layout, "copy: a TMA copy needs a buffer with the NVMMA layout")
    memory = buffer.local("copy")
    if kinds[0] == "buffer":
        require(barrier is None, "copy: a store from shared memory takes no barrier")
        ops.fence_async()
        ops.tma_store(descriptor, memory, shape, offsets)
        ops.tma_store_wait()
        return
    if barrier is None:
        raise not_emulated("a synchronous TMA load (copy without barrier=)")
    require(
        not isinstance(barrier, barriers.BarrierArray) or len(barrier) == 1,
        "copy: a barrier array must be indexed, bars[i]",
    )
    slot = barriers.slot_of(barrier, "copy")
    require(slot.array.expect_bytes is not None, "copy: the barrier must be allocated with expect_bytes")
    ops.copy(descriptor, memory, shape, offsets, slot.mbarrier())


_DIRECTIONS = {("descriptor", "buffer"), ("buffer", "descriptor"), ("pointer", "buffer"), ("buffer", "pointer")}


def _kind(x: Any) -> str | None:
    if isinstance(x, TensorDescriptor):
        return "descriptor"
    if isinstance(x, BufferedTensor):
        return "buffer"
    return "pointer" if isinstance(x, (Pointer, PointerTile)) else None


# ---- WGMMA
def wgmma(a, b, acc=None, input_precision=None, max_num_imprecise_acc=None, out_dtype=F32, trans_a=False, trans_b=False):
    require(isinstance(b, BufferedTensor), f"wgmma: b must be a shared-memory buffered_tensor, got {type(b).__name__}")
    require(isinstance(a, (BufferedTensor, Tile, PendingTile)), f"wgmma: a must be a buffered_tensor or a tensor, got {type(a).__name__}")
    require(type(trans_a) is bool and type(trans_b) is bool, "wgmma: trans_a and trans_b must be compile-time bools")
    for name, x in (("a", a), ("b", b)):
        require(not isinstance(x, BufferedTensor) or x.mma_layout, f"wgmma: {name} must have the NVMMA layout (the default of alloc)")
        require(len(x.shape) == 2, f"wgmma: {name} must be of rank 2, got {list(x.shape)}")
    (m, k), (k_of_b, n) = _transposed(a, trans_a), _transposed(b, trans_b)
    require(k == k_of_b, f"wgmma: a is [{m}, {k}] and b is [{k_of_b}, {n}]")
    require(m >= 64 and m % 64 == 0, f"wgmma: M must be a multiple of 64, got {m}")
    require(n >= 8 and n % 8 == 0, f"wgmma: N must be a multiple of 8, got {n}")
    require(k >= 16, f"wgmma: K must be at least 16, got {k}")
    require(a.dtype is b.dtype, f"wgmma: the operands must have the same type, got {a.dtype} and {b.dtype}")
    require(a.dtype in (BF16, F16, F32, FP8), f"wgmma: unsupported operand type {a.dtype}")
    if a.dtype is FP8:
        k_contiguous = trans_b and not (isinstance(a, BufferedTensor) and trans_a)
        require(k_contiguous, "wgmma: fp8 operands in shared memory must be K-contiguous (a stored [M, K], b stored [N, K] with trans_b=True)")
    _check_result(a.dtype, acc, (m, n), out_dtype)
    if input_precision is not None or a.dtype is F32:
        raise not_emulated("wgmma with input_precision or fp32 (tf32) operands")
    if max_num_imprecise_acc is not None:
        enough = is_static(max_num_imprecise_acc) and max_num_imprecise_acc >= MIN_IMPRECISE_ACC
        require(enough, f"wgmma: max_num_imprecise_acc must be a compile-time integer >= {MIN_IMPRECISE_ACC}")
    operand = a.local("wgmma") if isinstance(a, BufferedTensor) else ops.trans(a) if trans_a else a
    return ops.wgmma(operand, b.local("wgmma"), acc, trans_a=trans_a and isinstance(a, BufferedTensor), trans_b=trans_b)


def _transposed(x: Any, transposed: bool) -> tuple[int, int]:
    return tuple(x.shape)[::-1] if transposed else tuple(x.shape)


def _check_result(operand: DType, acc: Any, shape: tuple[int, int], out_dtype: Any) -> None:
    require(isinstance(out_dtype, DType), f"wgmma: out_dtype must be a tl.dtype, got {out_dtype!r}")
    require(out_dtype is not BF16, "wgmma: out_dtype bfloat16 is unsupported; use float32 and cast afterwards")
    if out_dtype is not F32 and operand is not BF16:
        raise not_emulated("wgmma into another type than float32")
    if acc is not None:
        require(isinstance(acc, (Tile, PendingTile)), f"wgmma: acc must be a tensor or None, got {type(acc).__name__}")
        require(tuple(acc.shape) == shape, f"wgmma: acc must be {list(shape)}, got {list(acc.shape)}")
        require(acc.dtype is F32, f"wgmma: acc must be {F32}, got {acc.dtype}")


def wgmma_wait(pendings, acc=None):
    if acc is None and isinstance(pendings, (Tile, PendingTile)):
        pendings, acc = 0, pendings
    require(is_static(pendings) and pendings >= 0, f"wgmma_wait: pendings must be a compile-time integer >= 0, got {pendings!r}")
    require(isinstance(acc, (Tile, PendingTile)), f"wgmma_wait: acc must be one tensor, got {type(acc).__name__}")
    return ops.wgmma_wait(pendings, acc)


# ---- roles
def warp_specialize(functions_and_args, worker_num_warps, worker_num_regs):
    require(isinstance(functions_and_args, (list, tuple)) and functions_and_args, "warp_specialize: a list with at least the default partition is needed")
    for i, entry in enumerate(functions_and_args):
        require(type(entry) is tuple and len(entry) == 2, f"warp_specialize: entry {i} must be (function, args)")
        require(callable(entry[0]) and type(entry[1]) is tuple, f"warp_specialize: entry {i} must be a function and a tuple of its arguments")
    workers = len(functions_and_args) - 1
    for name, numbers in (("warp counts", worker_num_warps), ("register counts", worker_num_regs)):
        require(isinstance(numbers, (list, tuple)) and all(is_static(x) for x in numbers), f"warp_specialize: {name} must be a list of compile-time integers")
        require(len(numbers) == workers, f"warp_specialize: {workers} worker function(s) but {len(numbers)} {name}")
    return ops.warp_specialize(functions_and_args, worker_num_warps, worker_num_regs)


#: every name of the emulated ``tle.gpu``
EXPORTS = {
    **{name: getattr(shared, name) for name in ("alloc", "local_ptr", "smem", "tmem")},
    **{name: getattr(barriers, name) for name in ("PENDING", "READY", "alloc_barriers", "alloc_barrier", "barrier_wait", "barrier_arrive")},
    **{function.__name__: function for function in (copy, wgmma, wgmma_wait, warp_specialize)},
    "buffered_tensor": BufferedTensor,
}
