"""Order of accesses to shared memory, checked per cell.

A cell is the smallest piece of an allocation that any view can name (one slot, or one column block of a page).  Each access must know
the last write; each write must also know every read since.  Because clocks and not the luck of the schedule decide, a missing wait is
reported in any schedule.
"""

from tle_attn.emu.clocks import Access, Clock
from tle_attn.emu.errors import EmulationError, MissingProxyFence, Race, UnsettledRead, Unwritten


class Cell:
    """Ordering state of one cell."""

    __slots__ = ("write", "reads", "fetches", "unfenced", "order")

    def __init__(self):
        self.write: Access | None = None
        self.reads: dict[int, Access] = {}
        self.fetches: dict[int, Access] = {}  # the generic ones among the reads; known to those who know that they are settled
        self.unfenced: Access | None = None  # the generic store that no proxy fence has followed
        self.order = ""  # byte order of the last write

    def split(self) -> "Cell":
        """A copy for a part of this cell."""
        part = Cell()
        part.write, part.reads, part.fetches, part.unfenced, part.order = self.write, dict(self.reads), dict(self.fetches), self.unfenced, self.order
        return part


def check_read(cells: list[Cell], name: str, clock: Clock, access: Access, order: str) -> None:
    """`access` reads the cells."""
    for cell in cells:
        write = cell.write
        if write is None:
            raise Unwritten(f"{access} reads {name}, which nothing has written, at {access.line}")
        if clock.get(write.component, 0) < write.stamp:
            raise Race(f"{access} reads {name} before {write} is known to be complete\n  read  at {access.line}\n  write at {write.line}")
        if cell.order != order:
            raise EmulationError(
                f"{access} reads {name} as {order}, but it was written as {cell.order}: the bytes lie elsewhere\n"
                f"  read  at {access.line}\n  write at {write.line}"
            )
        cell.reads[access.component] = access


def check_write(cells: list[Cell], name: str, clock: Clock, access: Access, order: str, tma: bool = False) -> None:
    """`access` writes the cells; by `tma` it may overtake generic reads, which an arrival orders but does not wait for."""
    for cell in cells:
        write = cell.write
        if write is not None and clock.get(write.component, 0) < write.stamp:
            raise Race(f"{access} overwrites {name} while {write} is not known to be complete\n  write at {access.line}\n  earlier write at {write.line}")
        for read in cell.reads.values():
            if clock.get(read.component, 0) < read.stamp:
                raise Race(
                    f"{access} overwrites {name} while a reader is live: no barrier orders it after {read}\n  write at {access.line}\n  read  at {read.line}"
                )
        for read in cell.fetches.values():
            if tma and clock.get(read.component, 0) < read.stamp:
                raise UnsettledRead(
                    f"{access} may overwrite {name} while {read} is still fetching it: an arrival does not wait for generic reads of shared memory\n"
                    f"  write at {access.line}\n  read  at {read.line}\n"
                    "  between the read and the release: fence_async(), role_sync(), or wgmma_wait of a wgmma issued after the read"
                )
        if cell.reads:
            cell.reads.clear()
            cell.fetches.clear()
        cell.write, cell.order = access, order


def check_fenced(cells: list[Cell], name: str, access: Access) -> None:
    """`access` goes through the async proxy."""
    for cell in cells:
        store = cell.unfenced
        if store is not None:
            raise MissingProxyFence(f"{access} touches {name} without fence_async after the generic store\n  access at {access.line}\n  store  at {store.line}")
