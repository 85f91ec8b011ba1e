"""Running a kernel on the emulation: a whole grid, its arguments checked and bound."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from attrs import frozen

from tle_attn.emu.clocks import Access
from tle_attn.emu.descriptors import TensorDescriptor
from tle_attn.emu.errors import EmulationError
from tle_attn.emu.integers import Int32, Int64, checked
from tle_attn.emu.machine import CTA, Cluster, Machine
from tle_attn.emu.memory import Pointer, Storages
from tle_attn.emu.roles import PREVIOUS_KERNEL
from tle_attn.emu.source import set_text, text_of
from tle_attn.emu.tiles import float_scalar
from tle_attn.emu.trace import Trace

MAX_CLUSTER = 16


@frozen
class Stats:
    """What a launch did."""

    ctas: int  #: CTAs that ran
    most_resident: int  #: most CTAs alive at one time
    switches: int  #: role switches of the scheduler
    copies: int  #: TMA loads
    copy_bytes: int  #: their bytes, zero fill included
    wgmmas: int  #: WGMMA groups
    waits: int  #: mbarrier waits
    polls: int  #: load_acquire calls
    dependent_launches: int  #: grid_launch_dependents calls
    shared_bytes: int  #: most shared memory allocated by one CTA, barriers not counted


@frozen
class Workspace:
    """A tensor argument whose old content the kernel must not read."""

    tensor: object


def workspace(tensor: object) -> Workspace:
    """Mark a tensor argument: reading an element that this launch has not written is an error."""
    return Workspace(tensor)


def _argument(name: str, argument: object, storages: Storages, marked: bool) -> object:
    """One entry argument as the kernel text sees it."""
    kind, value = argument if isinstance(argument, tuple) else (None, argument)
    if isinstance(value, TensorDescriptor):
        descriptor = value.bind(storages, name)
        descriptor.tensor.workspace = marked
        return descriptor
    if not isinstance(kind, str):
        raise EmulationError(f"argument {name}: a (type, value) pair or a TensorDescriptor")
    if kind.startswith("*"):
        if isinstance(value, Workspace):
            value, marked = value.tensor, True
        tensor = storages.tensor(value, kind[1:], name)
        tensor.workspace = marked
        return Pointer(tensor)
    if kind in ("i32", "i64"):
        return checked(int(value), Int32 if kind == "i32" else Int64)
    if kind == "f32":
        return float_scalar(float(value))
    raise EmulationError(f"argument {name} of type {kind!r}: *bf16 *f16 *f32 *fp8 *i32 *i64 *u8 i32 i64 f32 or a descriptor")


def _bind(args: Mapping[str, object], workspaces: Sequence[str], dependent: Sequence[str]) -> dict[str, object]:
    storages = Storages()
    bound = {name: _argument(name, argument, storages, name in workspaces) for name, argument in args.items()}
    tensors = {name: value.tensor for name, value in bound.items() if isinstance(value, (Pointer, TensorDescriptor))}
    unknown = (set(workspaces) | set(dependent)) - set(tensors)
    if unknown:
        raise EmulationError(f"workspace or dependent names no tensor argument: {sorted(unknown)}")
    for tensor in tensors.values():
        if tensor.workspace:
            tensor.storage.track()
    for name in dependent:
        storage = tensors[name].storage
        storage.track()
        storage.writes[:] = storage.number(Access(PREVIOUS_KERNEL, 1, "the previous kernel", "write", ("before grid_wait", 0)))
    return bound


def launch(
    fn: Callable,
    grid: Sequence[int],
    args: Mapping[str, object],
    *,
    seed: int = 0,
    resident: int | None = None,
    cluster: int = 1,
    threads: int = 128,
    source: tuple[str, int] | None = None,
    arithmetic: bool = True,
    preempt: float = 0.5,
    workspace: Sequence[str] = (),
    dependent: Sequence[str] = (),
    backend: str | None = None,
    trace: Trace | None = None,
) -> Stats:
    """Run entry function `fn` of a generated cpu module over `grid`.

    Args:
        fn: the entry; called with the arguments in the order of `args`.
        grid: one to three counts, of clusters when `cluster` > 1 (their first axis is multiplied).
        args: name -> (type, value): `*bf16 *f16 *f32 *fp8 *i32 *i64 *u8` with a torch CPU tensor, read and written in place;
            `i32 i64 f32` with a number; or a TensorDescriptor.
        seed: chooses the schedule; equal seeds give equal runs.
        resident: most CTAs alive at one time, started in launch order (default: all).
        cluster: CTAs of a cluster.
        threads: threads of the kernel's own warps.
        source: (file, first line) of the kernel text for reports; by default where `fn` is defined, from the mark line on.
        arithmetic: False skips the arithmetic of float tiles (they hold one value each); barriers, copies and order are checked as usual.
        preempt: probability of letting another role run after an operation.
        workspace: names of arguments whose old content must not be read.
        dependent: names of arguments that a previous kernel writes, which `grid_wait` must come before.
        backend: `greenlet`, `thread`, or None for the faster one.
        trace: records when each role works and waits; None records nothing.

    Raises:
        EmulationError: a subclass says which rule the kernel breaks, and where.
    """
    if not 1 <= len(grid) <= 3 or not all(isinstance(count, int) and count >= 0 for count in grid):
        raise EmulationError(f"grid {grid!r}: one to three counts")
    if cluster not in range(1, MAX_CLUSTER + 1):
        raise EmulationError(f"clusters of {cluster} CTAs: 1 .. {MAX_CLUSTER}")
    if threads not in (32, 64, 128, 256, 512):
        raise EmulationError(f"{threads} threads: 32, 64, 128, 256 or 512")
    shape = (*grid, 1, 1)[:3]
    machine = Machine(seed, preempt, arithmetic, backend, trace)
    machine.grid = (shape[0] * cluster, shape[1], shape[2])
    machine.cluster_size, machine.total = cluster, prod(machine.grid)
    machine.residency = machine.total if resident is None else resident
    if machine.total and machine.residency < cluster:
        raise EmulationError(f"{resident} resident CTAs hold no cluster of {cluster}")
    set_text(*(source or text_of(fn)))
    machine.components = PREVIOUS_KERNEL
    values = tuple(_bind(args, workspace, dependent).values())
    machine.waiting = _clusters(machine, fn, values, threads)
    machine.run()
    return Stats(most_resident=machine.most_resident, shared_bytes=machine.shared_bytes, **machine.counts)


def _clusters(machine: Machine, fn: Callable, values: tuple, threads: int) -> Iterator[Callable[[], None]]:
    """The clusters in launch order, x fastest; each is started by calling it."""
    width = machine.cluster_size
    rank_of_grid = max(axis for axis in range(1, 4) if axis == 1 or machine.grid[axis - 1] > 1)
    columns = machine.grid[0] // width
    for number in range(machine.total // width):
        x, y, z = number % columns, number // columns % machine.grid[1], number // columns // machine.grid[1]

        def start(x=x, y=y, z=z) -> None:
            cluster = Cluster()
            for rank in range(width):
                program = (x * width + rank, y, z)
                prefix = "" if machine.total == 1 else f"cta({', '.join(map(str, program[:rank_of_grid]))})."
                cta = CTA(cluster, rank, program, prefix)
                cluster.ctas.append(cta)
                cta.main = machine.spawn(cta, fn, values, threads, {})

        yield start
