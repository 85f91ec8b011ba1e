"""The machine: roles, CTAs and clusters under one scheduler whose choices follow a seed.

Everything that happens later by itself (pieces of a TMA transfer, pushed bytes) is an event in the same draw as the roles that can
run, so every order that the device allows can come up.
"""

import random
from collections.abc import Callable, Iterator

import numpy as np

from tle_attn.emu.clocks import Access, Clock, join
from tle_attn.emu.coroutines import backend
from tle_attn.emu.dtypes import DType
from tle_attn.emu.errors import Deadlock, EmulationError, UseBeforeWait
from tle_attn.emu.source import Place, at
from tle_attn.emu.trace import Trace

SPIN_LIMIT = 100_000  # scalar loads in a row without any other effect: a poll that does not use load_acquire
IDLE_LOOKS = 256  # after so many looks at words that nobody can change any more, a polling role is stuck


class Role:
    """A group of warps that runs one function."""

    def __init__(self, machine: "Machine", cta: "CTA", function: Callable, args: tuple, threads: int, clock: Clock):
        self.cta, self.function, self.args, self.threads = cta, function, args, threads
        self.title = function.__name__
        self.component = machine.new_component(global_memory=True)
        self.store_component = machine.new_component(global_memory=True)
        self.wgmma_component = machine.new_component(global_memory=False)
        self.fetch_component = machine.new_component(global_memory=False)
        self.clock: Clock = {**clock, self.component: 1}
        self.fetches = 0  # generic reads of shared memory
        self.groups: list = []  # WGMMA groups in flight, oldest first
        self.issued = 0  # WGMMA groups ever issued
        self.stores = 0  # TMA stores ever issued
        self.unfenced: set = set()  # allocations that this role stored to without a proxy fence yet
        self.children: list[Role] = []
        self.blocked: tuple[Callable[[], list[str]], Place] | None = None
        self.joining = self.done = False
        self.error: BaseException | None = None
        self.polled: dict = {}  # what this role has seen by load_acquire since it last did anything else
        self.idle_looks = 0  # looks at unchanged words while nothing else could run
        self.spins = 0

    @property
    def name(self) -> str:
        return self.cta.prefix + self.title

    def now(self, verb: str, place: Place) -> Access:
        """An access that this role makes itself."""
        return Access(self.component, self.clock[self.component], self.name, verb, place)

    def fetch(self, place: Place) -> Access:
        """A generic read of shared memory, complete once it is settled."""
        self.fetches += 1
        return Access(self.fetch_component, self.fetches, self.name, "load", place)

    def settle(self, fetches: int) -> None:
        """The first `fetches` generic reads have their data."""
        self.clock[self.fetch_component] = max(fetches, self.clock.get(self.fetch_component, 0))

    def release(self) -> Clock:
        """What an arrival publishes; later accesses of this role are not part of it."""
        published = dict(self.clock)
        self.clock[self.component] += 1
        return published


class CTA:
    """One thread block: its place in the grid, its cluster and what it allocated."""

    def __init__(self, cluster: "Cluster", rank: int, program: tuple[int, int, int], prefix: str):
        self.cluster, self.rank, self.program, self.prefix = cluster, rank, program, prefix
        self.allocations: list = []
        self.barriers: list = []
        self.unpublished_barriers: Place | None = None  # where alloc_barriers(more=True) was last called
        self.named_ids: set[int] = set()
        self.exited = False
        self.main: Role | None = None


class Cluster:
    """CTAs that run together; a single CTA is a cluster of one."""

    def __init__(self):
        self.ctas: list[CTA] = []
        self.arrived: list[Role] = []  # roles that wait at the cluster barrier


class Machine:
    """One launch in progress."""

    def __init__(self, seed: int, preempt: float, arithmetic: bool, backend_name: str | None = None, trace: Trace | None = None):
        self.random = random.Random(seed).random
        self.trace = trace
        self.preempt, self.arithmetic = preempt, arithmetic
        self.coroutines = backend(backend_name)
        self.current: Role | None = None
        self.live: dict[Role, object] = {}  # roles that have not ended, with their coroutines
        self.ready: list[Role] = []
        self.events: list[Callable[[], None]] = []
        self.parked: dict[Role, list] = {}  # roles that poll, with the addresses they poll
        self.components = 0
        self.grid = (1, 1, 1)
        self.cluster_size = 1
        self.waiting: Iterator[Callable[[], None]] = iter(())  # clusters not started yet
        self.counts = dict.fromkeys(("ctas", "switches", "copies", "copy_bytes", "wgmmas", "waits", "polls", "dependent_launches"), 0)
        self.shared_bytes = 0
        self.started = self.resident = self.most_resident = 0
        self.total = 0
        self.residency = 0

    def computes(self, dtype: DType) -> bool:
        """Whether values of `dtype` are real in this launch (integers always are: control flow depends on them)."""
        return self.arithmetic or not dtype.is_float

    def new_component(self, global_memory: bool) -> int:
        self.components += 2
        return self.components if global_memory else self.components + 1

    # ---------------------------------------------------------------- coroutines
    def spawn(self, cta: CTA, function: Callable, args: tuple, threads: int, clock: Clock) -> Role:
        role = Role(self, cta, function, args, threads, clock)
        if self.trace:
            self.trace.born(role, cta.main)

        def body() -> None:
            try:
                with np.errstate(all="ignore"):
                    function(*args)
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, EmulationError):
                    error.add_note(f"in {role.name} of the emulated kernel")
                role.error = error
            role.done = True

        self.live[role] = self.coroutines.start(body)
        self.ready.append(role)
        return role

    def pause(self) -> None:
        role = self.current
        self.coroutines.pause(self.live[role])
        self.current = role

    def step(self) -> None:
        """After an operation that others can notice: maybe let them run."""
        role = self.current
        if role.spins:
            role.spins = 0
            role.polled.clear()
            role.idle_looks = 0
        if self.trace:
            self.trace.step(role)
        if self.random() < self.preempt:
            self.ready.append(role)
            self.pause()

    def spin(self, place: Place) -> None:
        """After a read that a loop may repeat until another role has acted."""
        role = self.current
        role.spins += 1
        if role.spins % 64 == 0 or self.random() < self.preempt:
            self.ready.append(role)
            self.pause()
        if role.spins > SPIN_LIMIT:
            raise Deadlock(f"{role.name} has read {SPIN_LIMIT} scalars in a row without doing anything else, at {at(place)}\n  a poll uses load_acquire")

    def block(self, describe: Callable[[], list[str]], place: Place) -> None:
        """Run others until somebody puts the current role back into `ready`."""
        role = self.current
        role.blocked = (describe, place)
        self.pause()
        role.blocked = None

    # ---------------------------------------------------------------- the run
    def run(self) -> None:
        ready, events, choose = self.ready, self.events, self.random
        global _running
        if _running is not None:
            raise EmulationError("a launch inside a launch")
        _running = self
        try:
            self.start_clusters()
            while True:
                n = len(ready)
                choices = n + len(events)
                if not choices:
                    if self.wake_pollers():
                        continue
                    break
                k = int(choose() * choices)
                if k < n:
                    role = ready[k]
                    ready[k] = ready[-1]
                    ready.pop()
                    self.resume(role)
                else:
                    k -= n
                    event = events[k]
                    events[k] = events[-1]
                    events.pop()
                    event()
            if self.live:
                raise Deadlock(self.deadlock_report())
        finally:
            for role, coroutine in list(self.live.items()):
                if not role.done:
                    self.current = role
                    self.coroutines.stop(coroutine)
            _running = None

    def resume(self, role: Role) -> None:
        self.counts["switches"] += 1
        self.current = role
        self.coroutines.resume(self.live[role])
        self.current = None
        if role.error is not None:
            raise role.error
        if role.done:
            self.end(role)

    def start_clusters(self) -> None:
        """Start clusters in launch order while the device has room."""
        while self.resident + self.cluster_size <= self.residency:
            start = next(self.waiting, None)
            if start is None:
                return
            start()
            self.started += self.cluster_size
            self.resident += self.cluster_size
            self.most_resident = max(self.most_resident, self.resident)

    def end(self, role: Role) -> None:
        del self.live[role]
        if role.groups:
            raise UseBeforeWait(f"{role.name} ended with {len(role.groups)} WGMMA group(s) not waited for; the first was issued at {at(role.groups[0].place)}")
        parent = role.cta.main
        if role is not parent:
            if parent.joining and all(child.done for child in parent.children):
                parent.joining = False
                self.ready.append(parent)
            return
        self.exit(role.cta)

    def exit(self, cta: CTA) -> None:
        """The CTA's shared memory is given back: nothing may still be under way in it."""
        clock = cta.main.clock
        for allocation in cta.allocations:
            allocation.check_exit(clock)
        for barrier in cta.barriers:
            barrier.check_exit(cta.rank, clock)
        cta.exited = True
        cluster = cta.cluster
        if all(other.exited for other in cluster.ctas):
            for other in cluster.ctas:
                other.allocations.clear()
                other.barriers.clear()
        self.counts["ctas"] += 1
        self.resident -= 1
        self.start_clusters()

    # ---------------------------------------------------------------- polling and deadlock
    def wake_pollers(self) -> bool:
        """Nothing else can run: parked roles look again, because a loop may give up or go on to something else by itself."""
        woken = [role for role in self.parked if role.idle_looks < IDLE_LOOKS]
        for role in woken:
            role.idle_looks += 1
            self.unpark(role)
        return bool(woken)

    def unpark(self, role: Role) -> None:
        for word in self.parked.pop(role):
            word.waiters.discard(role)
        self.ready.append(role)

    def deadlock_report(self) -> str:
        lines = ["no role can run and no transfer is in flight:"]
        for role in self.live:
            if role.blocked is None:
                continue
            describe, place = role.blocked
            first, *more = describe()
            lines.append(f"  {role.name} {first} at {at(place)}")
            lines += [f"      {line}" for line in more]
        if self.started < self.total:
            lines.append(f"  {self.total - self.started} of {self.total} CTAs have not started: only {self.residency} are resident at a time")
        return "\n".join(lines)


_running: Machine | None = None


def running() -> Machine:
    """The launch in progress."""
    if _running is None:
        raise EmulationError("an operation of the dialect outside of emu.launch")
    return _running


def join_children(machine: Machine, role: Role, place: Place) -> None:
    """Wait for the worker roles and take over what they know."""
    if not all(child.done for child in role.children):
        role.joining = True
        machine.block(lambda: ["waits for its worker roles to end"], place)
    for child in role.children:
        join(role.clock, child.clock)
    role.children = []
