"""Time floor of the work: no kernel is faster than its bytes over the memory bandwidth, or its operations over the matrix rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

if TYPE_CHECKING:
    from ..spec import Kernel


#: a scale of one key (fp32)
SCALE_BYTES = 4
#: a log-sum-exp (fp32)
LSE_BYTES = 4


@frozen
class Machine:
    """Rates of a GPU, measured; what a datasheet promises is higher.

    Attributes:
        name: the GPU.
        bytes_per_second: device memory, a copy counted as read and write.
        flops: dense matrix products per element type, operations a second.
        source: how the rates were found.
    """

    name: str
    bytes_per_second: float
    flops: dict[str, float]
    source: str


H200 = Machine(
    name="NVIDIA H200",
    bytes_per_second=4.27e12,
    flops={"bf16": 703e12, "fp8": 1315e12},
    source="copy bandwidth (read + write) and library matrix products 8192^3, measured on one NVIDIA H200",
)


@frozen
class Workload:
    """Sequences to be served in one step.

    Attributes:
        name: what reports call it.
        kv_lens: tokens in the cache of each sequence, this step's included.
        kv_heads: key/value heads.
        q_lens: for prefill, queries of each sequence, its last tokens; None for decode, where the kernel says it.
    """

    name: str
    kv_lens: tuple[int, ...]
    kv_heads: int = 1
    q_lens: tuple[int, ...] | None = None

    @staticmethod
    def named(name: str) -> Workload | MergeWorkload:
        """A workload of `tle_attn.testing.WORKLOADS`, `PREFILL_WORKLOADS` or `MERGE_WORKLOADS`; attention with the heads of the CUDA reference's benchmarks."""
        from ..errors import SpecError
        from ..testing.workloads import MERGE_WORKLOADS, PREFILL_WORKLOADS, WORKLOADS

        if name in MERGE_WORKLOADS:
            return MergeWorkload(name, *MERGE_WORKLOADS[name])
        if name in PREFILL_WORKLOADS:
            q_lens, kv_lens = zip(*PREFILL_WORKLOADS[name], strict=True)
            return Workload(name, kv_lens, kv_heads=4, q_lens=q_lens)
        if name not in WORKLOADS:
            raise SpecError(f"no workload is called {name!r}", allowed=sorted([*WORKLOADS, *PREFILL_WORKLOADS, *MERGE_WORKLOADS]))
        return Workload(name, WORKLOADS[name])

    @property
    def phase(self) -> str:
        return "decode" if self.q_lens is None else "prefill"

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(queries, keys) of each sequence of a prefill workload."""
        return list(zip(self.q_lens or (), self.kv_lens, strict=True))

    def __str__(self) -> str:
        shapes = [f"{n} tokens" for n in self.kv_lens] if self.q_lens is None else [f"{q} queries on {kv} keys" for q, kv in self.pairs]
        counts = ", ".join(f"{shapes.count(shape)} x {shape}" for shape in dict.fromkeys(shapes))
        return f"{self.name} ({counts}, {self.kv_heads} kv head{'s' if self.kv_heads > 1 else ''})"


@frozen
class MergeWorkload:
    """Partial results to be merged.

    Attributes:
        name: what reports call it.
        states: parts of the keys; a kernel that merges a list has as many as it says.
        tokens, heads: rows.
    """

    name: str
    states: int
    tokens: int
    heads: int

    phase: ClassVar[str] = "merge"

    def states_of(self, kernel: Kernel) -> int:
        return kernel.mainloop.source.STATES or self.states

    def __str__(self) -> str:
        return f"{self.name} ({self.states} states unless the kernel says it, {self.tokens} tokens, {self.heads} heads)"


AnyWorkload = Workload | MergeWorkload

#: what times and floors of a kernel are for if nothing else is asked for, by phase
DEFAULT_WORKLOADS = {"decode": "uniform_4096", "prefill": "prefill_512_4k", "merge": "merge_64"}


def benchmark_workloads(phase: str) -> list[AnyWorkload]:
    """All named workloads of a phase."""
    from ..testing.workloads import MERGE_WORKLOADS, PREFILL_WORKLOADS, WORKLOADS

    names = {"decode": WORKLOADS, "prefill": PREFILL_WORKLOADS, "merge": MERGE_WORKLOADS}
    return [Workload.named(name) for name in names[phase]]


def require_phase(kernel: Kernel, workload: AnyWorkload) -> None:
    """Raise SpecError unless the workload is of the kernel's phase."""
    from ..errors import SpecError

    if workload.phase != kernel.mainloop.PHASE:
        raise SpecError(f"workload {workload.name} is for {workload.phase}, and {kernel.name} is a {kernel.mainloop.PHASE} kernel")


def workload_for(kernel: Kernel, chosen: AnyWorkload | None) -> AnyWorkload:
    """`chosen` where it is of the kernel's phase, else the phase's default."""
    phase = kernel.mainloop.PHASE
    return chosen if chosen is not None and chosen.phase == phase else Workload.named(DEFAULT_WORKLOADS[phase])


@frozen
class Work:
    """What a kernel must move and compute for a workload.

    Attributes:
        nbytes: K and V that some query sees (with the scales of keys that have their own), Q and the output, each once; of a merge, all states and the result.
        flops: operations of both products, for visible (query, key) pairs alone; a merge has none.
        machine: whose rates `seconds` uses.
        dtype: element type of the products.
    """

    nbytes: int
    flops: int
    machine: Machine
    dtype: str

    @property
    def memory_us(self) -> float:
        return 1e6 * self.nbytes / self.machine.bytes_per_second

    @property
    def compute_us(self) -> float:
        return 1e6 * self.flops / self.machine.flops[self.dtype]

    @property
    def floor_us(self) -> float:
        """The larger of the two."""
        return max(self.memory_us, self.compute_us)


def work_of(kernel: Kernel, workload: AnyWorkload, oracle_options: dict[str, Any], machine: Machine = H200) -> Work:
    """Work of a kernel; `oracle_options` (see `tle_attn.verify.oracle_options`) says what its masks hide.  A block mask counts as one that keeps all."""
    problem = kernel.problem
    if isinstance(workload, MergeWorkload):
        read, written = kernel.mainloop.source.dtype.nbytes, kernel.mainloop.epilogue.dtype.nbytes
        row = workload.states_of(kernel) * (problem.head_dim * read + LSE_BYTES) + problem.head_dim * written + LSE_BYTES
        return Work(workload.tokens * workload.heads * row, 0, machine, problem.dtype.value)
    window, causal = oracle_options.get("window"), oracle_options.get("causal", False)
    q_lens = workload.q_lens or (problem.query_tokens,) * len(workload.kv_lens)
    loaded = pairs = 0
    for n, length in zip(q_lens, workload.kv_lens, strict=True):
        loaded += length - (0 if window is None else max(0, length - n - window + 1))
        pairs += visible_pairs(n, length, causal=causal, window=window)
    element, out = problem.dtype.nbytes, kernel.mainloop.epilogue.dtype.nbytes
    query_rows = sum(q_lens) * problem.group * workload.kv_heads
    per_key = (problem.head_dim + problem.v_dim) * element + SCALE_BYTES * (kernel.mainloop.scale.KEY_SCALES + kernel.mainloop.scale.VALUE_SCALES)
    nbytes = loaded * workload.kv_heads * per_key + query_rows * (problem.head_dim * element + problem.v_dim * out)
    flops = 2 * pairs * problem.group * workload.kv_heads * (problem.head_dim + problem.v_dim)
    return Work(nbytes, flops, machine, problem.dtype.value)


def visible_pairs(queries: int, keys: int, *, causal: bool = True, window: int | None = None) -> int:
    """(query, key) pairs that count, for the last `queries` of `keys` tokens."""
    total = 0
    for position in range(keys - queries, keys):
        last = position if causal else keys - 1
        start = 0 if window is None else max(0, position - window + 1)
        total += max(0, last - start + 1)
    return total
