"""Inline assembly of the TLE target: the known instructions and what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen

from tle_attn.emu import ops
from tle_attn.emu.dtypes import F32, I32, DType
from tle_attn.emu.memory import Pointer
from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target.errors import not_emulated, require


@frozen
class Instruction:
    """The meaning of one assembly string."""

    constraints: str
    dtype: DType
    pure: bool  #: may the compiler drop, repeat or move it?
    run: Callable


POLL = "{ .reg .pred p; setp.eq.s32 p, $2, 0; mov.b32 $0, 0x80000000; @p ld.acquire.gpu.global.b32 $0, [$1]; bar.warp.sync 0xffffffff; }"


def _poll(pointer: Pointer, index: Tile) -> Tile:
    """The lane with index 0 reads, the others hold the smallest integer."""
    seen = ops.load_acquire(pointer)
    return Tile(np.where(index.values == 0, np.int32(seen), np.int32(-(1 << 31))), I32)


def _tanh(x: Tile) -> Tile:
    return Tile(np.tanh(x.values), F32)


KNOWN = {
    POLL: Instruction("=&r,l,r", I32, False, _poll),
    "fence.proxy.async.shared::cta; // dummy $0": Instruction("=r", I32, False, ops.fence_async),
    "mov.u32 $0, %cluster_ctarank;": Instruction("=r", I32, True, ops.cluster_rank),
    "tanh.approx.f32 $0, $1;": Instruction("=f,f", F32, True, _tanh),
}


def execute(asm: str, constraints: str, args: Sequence, dtype: DType, is_pure: bool, pack: int) -> object:
    """``tl.inline_asm_elementwise`` of a known instruction."""
    known = KNOWN.get(asm)
    if known is None:
        raise not_emulated(f"the assembly {asm!r}")
    require(constraints == known.constraints, f"assembly {asm!r}: the operands are {known.constraints!r}, not {constraints!r}")
    inputs = known.constraints.count(",") + 1 - known.constraints.count("=")
    require(len(args) == inputs, f"assembly {asm!r} has {inputs} input(s), got {len(args)}")
    require(dtype is known.dtype, f"assembly {asm!r} gives {known.dtype}, not {dtype}")
    require(known.pure or is_pure is False, f"assembly {asm!r} has an effect beyond its result: is_pure must be False")
    require(pack == 1, f"assembly {asm!r} works on one element at a time: pack must be 1")
    return known.run(*args)
