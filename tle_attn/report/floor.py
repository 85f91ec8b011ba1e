"""Time floor of the work: no kernel is faster than its bytes over the memory bandwidth, or its operations over the matrix rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from ..spec import Kernel


#: a scale of one key (fp32)
SCALE_BYTES = 4


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
    """

    name: str
    kv_lens: tuple[int, ...]
    kv_heads: int = 1

    @classmethod
    def named(cls, name: str) -> Workload:
        """A workload of `tle_attn.testing.WORKLOADS`."""
        from ..errors import SpecError
        from ..testing.workloads import WORKLOADS

        if name not in WORKLOADS:
            raise SpecError(f"no workload is called {name!r}", allowed=sorted(WORKLOADS))
        return cls(name, WORKLOADS[name])

    def __str__(self) -> str:
        counts = {n: self.kv_lens.count(n) for n in dict.fromkeys(self.kv_lens)}
        return f"{self.name} ({', '.join(f'{c} x {n}' for n, c in counts.items())} tokens, {self.kv_heads} kv head{'s' if self.kv_heads > 1 else ''})"


@frozen
class Work:
    """What a kernel must move and compute for a workload.

    Attributes:
        nbytes: K and V that some query sees (with the scales of keys that have their own), Q and the output, each once.
        flops: operations of both products, for visible (query, key) pairs alone.
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


def work_of(kernel: Kernel, workload: Workload, oracle_options: dict[str, Any], machine: Machine = H200) -> Work:
    """Work of a decode kernel; `oracle_options` (see `tle_attn.verify.oracle_options`) says what its masks hide."""
    problem = kernel.problem
    n, window = problem.query_tokens, oracle_options.get("window")
    causal = oracle_options.get("causal", False)
    loaded = pairs = 0
    for length in workload.kv_lens:
        first = 0 if window is None else max(0, length - n - window + 1)
        loaded += length - first
        for i in range(n):
            last = length - n + i if causal else length - 1
            start = 0 if window is None else max(0, length - n + i - window + 1)
            pairs += max(0, last - start + 1)
    element, out = problem.dtype.nbytes, kernel.mainloop.epilogue.dtype.nbytes
    query_rows = len(workload.kv_lens) * n * problem.group * workload.kv_heads
    per_key = 2 * problem.head_dim * element + (SCALE_BYTES if kernel.mainloop.scale.KEY_SCALES else 0)
    nbytes = loaded * workload.kv_heads * per_key + query_rows * problem.head_dim * (element + out)
    flops = 4 * pairs * problem.group * workload.kv_heads * problem.head_dim
    return Work(nbytes, flops, machine, problem.dtype.value)
