"""What a composed kernel takes from a multiprocessor: shared buffers, mbarriers, named barriers, warp roles."""

from __future__ import annotations

from attrs import frozen

from .types import DType

#: limits of sm_90a (CUDA programming guide, table "technical specifications per compute capability", 9.0)
SHARED_BYTES_PER_SM = 233_472  # 228 KiB
SHARED_BYTES_PER_CTA = 232_448  # 227 KiB
SHARED_BYTES_RESERVED = 1_024  # taken by the system in each CTA
REGISTERS_PER_SM = 65_536
MAX_REGISTERS_PER_THREAD = 255
MAX_WARPS_PER_SM = 64
NAMED_BARRIERS = 16


@frozen
class SharedBuffer:
    """A shared-memory allocation of the kernel: a tile [rows, cols] or a ring of tiles."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    holds: str = ""  #: what is in it, for reports

    @property
    def nbytes(self) -> int:
        n = self.dtype.nbytes
        for extent in self.shape:
            n *= extent
        return n


@frozen
class MBarriers:
    """An array of mbarriers: who completes a use and who waits for it.

    `arrive_count` role arrivals complete a use; with `expect_bytes` the one arrival is the copy's own and the use completes with its bytes.
    """

    name: str
    slots: int
    arrive_count: int = 1
    expect_bytes: int = 0
    ready: bool = False  #: use 0 passes at once (an "empty" barrier)
    arrives: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return 8 * (self.slots + self.slots % 2)


@frozen
class NamedBarriers:
    """Hardware barriers by number: `threads` arriving plus waiting threads complete one."""

    name: str
    first_id: int
    slots: int
    threads: int


@frozen
class Role:
    """A group of warps that runs one function: warps, registers per thread."""

    name: str
    function: str
    warps: int
    registers: int  #: for workers the number asked for; for the default role what is left


@frozen
class Resources:
    """Everything a kernel takes, as data; `checks.resources` adds it up."""

    buffers: tuple[SharedBuffer, ...] = ()
    barriers: tuple[MBarriers, ...] = ()
    named: tuple[NamedBarriers, ...] = ()
    roles: tuple[Role, ...] = ()
    scratch_bytes: int = 0  #: the compiler's own shared scratch (reductions), an upper estimate
    ctas_per_sm: int = 1
    cluster: int = 1  #: CTAs of a cluster

    @property
    def shared_bytes(self) -> int:
        return sum(b.nbytes for b in self.buffers) + sum(b.nbytes for b in self.barriers) + self.scratch_bytes

    @property
    def threads(self) -> int:
        """Threads of a CTA as launched: warps are padded to whole warpgroups."""
        default = self.roles[0].warps
        workers = sum(r.warps for r in self.roles[1:])
        return 32 * (default + -(-workers // 4) * 4)
