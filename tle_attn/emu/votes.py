"""Warp votes: stable compaction of a list by one warp."""

import numpy as np

from tle_attn.emu.dtypes import I32
from tle_attn.emu.errors import EmulationError, OutOfBounds
from tle_attn.emu.integers import Int32
from tle_attn.emu.machine import running
from tle_attn.emu.shared import Buffer, store_cells
from tle_attn.emu.source import at, where
from tle_attn.emu.tiles import Tile


def compact(keep: Tile, values: Tile, buffer: Buffer, start: int) -> Int32:
    place = where()
    role = running().current
    if role.threads != 32:
        raise EmulationError(f"compact in {role.name}, which has {role.threads} threads: one warp votes, at {at(place)}")
    if not isinstance(buffer, Buffer) or not buffer.plain or len(buffer.shape) != 1 or buffer.dtype is not I32:
        raise EmulationError(f"compact into anything but a plain int32 vector at {at(place)}")
    if keep.dtype is not I32 or values.dtype is not I32 or keep.shape != values.shape or len(keep.shape) != 1 or keep.shape[0] % 32:
        raise EmulationError(f"compact of {keep!r} and {values!r}: int32 vectors of equal length, a multiple of 32, at {at(place)}")
    if not np.isin(keep.values, (0, 1)).all():
        raise EmulationError(f"compact: `keep` holds values other than 0 and 1, at {at(place)}")
    chosen = values.values[keep.values == 1]
    end = int(start) + len(chosen)
    if start < 0 or end > buffer.shape[0]:
        raise OutOfBounds(f"compact writes elements {int(start)} .. {end - 1} of {buffer.label} ({buffer.shape[0]} elements) at {at(place)}")
    store_cells(buffer, buffer.label, role.clock, role.now("compact", place))
    buffer.write_bits(chosen, int(start))
    return Int32(end)
