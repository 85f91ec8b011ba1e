"""Programs and roles: indices in the grid, warp specialisation, programmatic dependent launch."""

from collections.abc import Callable, Iterator, Sequence

from tle_attn.emu.clocks import Clock
from tle_attn.emu.errors import EmulationError
from tle_attn.emu.integers import Int32
from tle_attn.emu.machine import join_children, running
from tle_attn.emu.source import at, where
from tle_attn.emu.tiles import Tile
from tle_attn.emu.wgmma import PendingTile

WORKER_WARPS = (1, 2, 4, 8)
PREVIOUS_KERNEL = 2  # the clock component of the kernel before this one; see grid_wait


def program_id(axis: int) -> Int32:
    return Int32(running().current.cta.program[axis])


def num_programs(axis: int) -> Int32:
    return Int32(running().grid[axis])


def static_range(n: int) -> Iterator[int]:
    if not isinstance(n, int) or isinstance(n, Int32):
        raise EmulationError(f"static_range({n!r}): a compile-time constant, at {at(where())}")
    return iter(range(n))


def warp_specialize(functions_and_args: Sequence[tuple[Callable, tuple]], worker_num_warps: Sequence[int], worker_num_regs: Sequence[int]) -> object:
    machine, place = running(), where()
    role = machine.current
    workers = functions_and_args[1:]
    if not len(workers) == len(worker_num_warps) == len(worker_num_regs):
        raise EmulationError(f"{len(workers)} worker(s), {len(worker_num_warps)} warp counts, {len(worker_num_regs)} register counts at {at(place)}")
    if role is not role.cta.main or role.children:
        raise EmulationError(f"warp_specialize inside a role at {at(place)}")
    for (function, args), warps in zip(workers, worker_num_warps, strict=True):
        if any(isinstance(x, (Tile, PendingTile)) and x.shape for x in args):
            raise EmulationError(f"a tile cannot be passed to worker {function.__name__} at {at(place)}")
        if warps not in WORKER_WARPS:
            raise EmulationError(f"worker {function.__name__} with {warps} warps: one of {WORKER_WARPS}, at {at(place)}")
    titles = _titles([function.__name__ for function, _ in functions_and_args])
    kernel_title, role.title = role.title, titles[0]
    role.settle(role.fetches)  # the roles start behind a barrier
    start: Clock = role.release()
    for (function, args), warps, title in zip(workers, worker_num_warps, titles[1:], strict=True):
        child = machine.spawn(role.cta, function, args, 32 * warps, start)
        child.title = title
        role.children.append(child)
    function, args = functions_and_args[0]
    result = function(*args)
    join_children(machine, role, place)
    role.title = kernel_title
    return result


def _titles(names: list[str]) -> list[str]:
    """Function names, numbered where one function runs in several roles."""
    return [f"{name}#{names[:i].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def grid_wait() -> None:
    machine = running()
    machine.current.clock[PREVIOUS_KERNEL] = 1
    machine.step()


def grid_launch_dependents() -> None:
    machine = running()
    machine.counts["dependent_launches"] += 1
    machine.step()


def role_sync() -> None:
    machine = running()
    machine.current.settle(machine.current.fetches)
    machine.step()
