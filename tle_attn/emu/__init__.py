"""Emulation of the dialect on the CPU: roles, barriers, TMA, WGMMA, clusters and global memory of Hopper CTAs.

`launch` runs the entry of a generated cpu module over a grid of torch CPU tensors; what the device would leave undefined is an
`EmulationError` that says where and why.  Order is checked with vector clocks (`clocks`), so a missing wait is reported in every
schedule, not only in the unlucky one; the seed still permutes the schedule, which finds what depends on values.

Not modelled: hazards between the warps of one role (compilers place those barriers), the proxy fence between plain stores to global
memory and TMA loads of them, caches, the swizzle inside a 128-byte block, registers, and the last bits of ex2.approx.
"""

from tle_attn.emu import ops
from tle_attn.emu.barriers import Barrier, Barriers
from tle_attn.emu.descriptors import TensorDescriptor
from tle_attn.emu.dtypes import BF16, F16, F32, FP8, I1, I32, I64, U8, DType
from tle_attn.emu.errors import BarrierMisuse, Deadlock, EmulationError, MissingProxyFence, OutOfBounds, Race, UnsettledRead, Unwritten, UseBeforeWait
from tle_attn.emu.integers import Int32, Int64
from tle_attn.emu.launching import Stats, launch, workspace
from tle_attn.emu.memory import Pointer, PointerTile
from tle_attn.emu.named import NamedBarrier, NamedBarriers
from tle_attn.emu.shared import Buffer
from tle_attn.emu.source import MARK, at, where
from tle_attn.emu.tiles import Tile
from tle_attn.emu.trace import Trace
from tle_attn.emu.wgmma import PendingTile

__all__ = [
    "BF16", "F16", "F32", "FP8", "I1", "I32", "I64", "U8", "DType",
    "BarrierMisuse", "Deadlock", "EmulationError", "MissingProxyFence", "OutOfBounds", "Race", "UnsettledRead", "Unwritten", "UseBeforeWait",
    "Barrier", "Barriers", "Buffer", "Int32", "Int64", "NamedBarrier", "NamedBarriers", "PendingTile", "Pointer", "PointerTile", "Tile",
    "MARK", "Stats", "TensorDescriptor", "Trace", "at", "launch", "ops", "where", "workspace",
]  # fmt: skip
