"""WGMMA: asynchronous products whose result, and whose reads of shared memory, are over only after a wait."""

from collections.abc import Callable

import numpy as np

from tle_attn.emu.clocks import Access
from tle_attn.emu.dtypes import BF16, F16, F32, FP8
from tle_attn.emu.errors import EmulationError, UseBeforeWait
from tle_attn.emu.machine import Role, running
from tle_attn.emu.ordering import check_fenced, check_read
from tle_attn.emu.shared import Buffer
from tle_attn.emu.source import Place, at, where
from tle_attn.emu.tiles import Tile, UniformTile

MAX_COLUMNS = 256
K_BYTES = 32  # one instruction consumes 32 bytes of K
#: OpenBLAS starts threads for larger products; handing out so little work costs milliseconds where other processes hold the cores
SERIAL_PRODUCT = 1 << 18


class Group:
    """One wgmma in flight; `fetches` counts the generic reads of its role that came before it."""

    __slots__ = ("compute", "fetches", "place")

    def __init__(self, compute: Callable[[], None], fetches: int, place: Place):
        self.compute, self.fetches, self.place = compute, fetches, place


class PendingTile:
    """The result of a wgmma that has not been waited for: it can only be accumulated into, or waited for."""

    dtype = F32

    def __init__(self, shape: tuple[int, int], place: Place):
        self.shape, self.place = shape, place
        self.result: Tile | None = None  # set when the group retires

    def __getattr__(self, name: str) -> object:
        raise UseBeforeWait(f"a WGMMA result is used before wgmma_wait at {at(where())}\n  issued at {at(self.place)}")


def _use(self: PendingTile, *_: object) -> object:
    return self.values


for _name in ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "rtruediv", "lt", "le", "gt", "ge", "getitem", "neg", "bool"):
    setattr(PendingTile, f"__{_name}__", _use)


def _operand(x: "Tile | Buffer", transposed: bool, role: Role, access: Access) -> Callable[[], np.ndarray]:
    """Checks an operand now; the returned function reads it when the group retires."""
    if isinstance(x, Tile):
        return lambda: x.values
    cells = x.cells()
    check_fenced(cells, x.label, access)
    check_read(cells, x.label, role.clock, access, x.order)
    return (lambda: x.values().T) if transposed else x.values


def _check(a: "Tile | Buffer", b: Buffer, acc: "Tile | PendingTile | None", trans_a: bool, trans_b: bool, place: Place) -> tuple[int, int]:
    if not isinstance(a, (Tile, Buffer)):
        a.values  # a pending result reports itself here
    if not isinstance(b, Buffer) or b.plain or isinstance(a, Buffer) and a.plain:
        raise EmulationError(f"wgmma: b, and a unless it is a register tile, lie in wgmma/TMA buffers, at {at(place)}")
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise EmulationError(f"wgmma of {list(a.shape)} x {list(b.shape)}: take slots of rings, at {at(place)}")
    if isinstance(a, Tile) and trans_a:
        raise EmulationError(f"wgmma: trans_a is for operands in shared memory; transpose the register tile, at {at(place)}")
    m, k = a.shape[::-1] if trans_a else a.shape
    k_of_b, n = b.shape[::-1] if trans_b else b.shape
    if a.dtype is not b.dtype or a.dtype not in (BF16, F16, FP8):
        raise EmulationError(f"wgmma of {a.dtype} x {b.dtype}: bf16, f16 or fp8 on both sides, at {at(place)}")
    if k != k_of_b or m % 64 or n % 8 or n > MAX_COLUMNS or k * a.dtype.nbytes % K_BYTES:
        raise EmulationError(f"wgmma of {m} x {k} and {k_of_b} x {n} {a.dtype}: M in 64s, N in 8s up to {MAX_COLUMNS}, K in {K_BYTES} bytes, at {at(place)}")
    if a.dtype is FP8 and (isinstance(a, Buffer) and trans_a or not trans_b):
        raise EmulationError(f"wgmma: fp8 operands in shared memory must be K-contiguous (a [M, K], b [N, K] with trans_b), at {at(place)}")
    if acc is not None and (tuple(acc.shape) != (m, n) or acc.dtype is not F32):
        raise EmulationError(f"wgmma: accumulator {list(acc.shape)} {acc.dtype} for a product [{m}, {n}], at {at(place)}")
    return m, n


def wgmma(a: "Tile | Buffer", b: Buffer, acc: "Tile | PendingTile | None" = None, trans_a: bool = False, trans_b: bool = False) -> PendingTile:
    machine, place = running(), where()
    role = machine.current
    shape = _check(a, b, acc, trans_a, trans_b, place)
    if role.threads % 128:
        raise EmulationError(f"wgmma in {role.name}, which has {role.threads} threads: a warpgroup has 128, at {at(place)}")
    role.issued += 1
    access = Access(role.wgmma_component, role.issued, role.name, "WGMMA", place)
    read_a, read_b = _operand(a, trans_a, role, access), _operand(b, trans_b, role, access)
    pending = PendingTile(shape, place)

    def compute() -> None:
        if not machine.arithmetic:
            pending.result = UniformTile(0.0, F32, shape)
            return
        product = _multiply(read_a(), read_b())
        if acc is not None:
            product += (acc.result if isinstance(acc, PendingTile) else acc).values
        pending.result = Tile(product, F32)

    role.groups.append(Group(compute, role.fetches, place))
    machine.counts["wgmmas"] += 1
    if machine.trace:
        machine.trace.product(role, [x for x in (a, b) if isinstance(x, Buffer)], place)
    machine.step()
    return pending


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in pieces that BLAS computes without starting threads."""
    (m, k), n = a.shape, b.shape[1]
    width = max(8, SERIAL_PRODUCT // (m * k))
    if n <= width:
        return a @ b
    product = np.empty((m, n), np.float32)
    for first in range(0, n, width):
        np.matmul(a, b[:, first : first + width], out=product[:, first : first + width])
    return product


def wgmma_wait(pendings: int, acc: "PendingTile | tuple") -> "Tile | PendingTile | tuple":
    machine = running()
    role = machine.current
    retired = len(role.groups) - pendings
    if retired > 0:
        if machine.trace:
            machine.trace.retire(role, retired, where())
        for group in role.groups[:retired]:
            group.compute()
            role.settle(group.fetches)
        del role.groups[:retired]
    role.clock[role.wgmma_component] = role.issued - len(role.groups)
    return tuple(map(_usable, acc)) if isinstance(acc, tuple) else _usable(acc)


def _usable(x: "PendingTile | Tile") -> "PendingTile | Tile":
    return x.result if isinstance(x, PendingTile) and x.result is not None else x
