"""Time of one call on the GPU: a CUDA graph of it, replayed behind a spin kernel and between two events.

The spin kernel holds the GPU until the host has queued everything, so that no launch latency of the host is inside.  What is inside is the
launch of the graph itself: an empty one (`null_graph_us`) measures 2.8 to 4.6 us, depending on the machine that the H200 is in.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Clock cycles that the spin kernel holds the GPU: 100 us at 2 GHz, more than the host needs for a replay and two events.
SPIN_CYCLES = 200_000
#: Bytes read to fill the L2 with other, clean lines; it holds 60 MB on an H200.
FLUSH_BYTES = 256 << 20
#: Calls in a graph whose own launch should hardly count.
BACK_TO_BACK = 20
#: Milliseconds of load before and during a measurement of sustained time; the power limit acts within tens of them.
SUSTAINED_MS = 300.0


def capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of one call, after two calls outside that leave compilation and module loading behind."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


class Timer:
    """Median microseconds of graph replays.

    Args:
        samples: replays, each timed by itself.
    """

    def __init__(self, samples: int = 40) -> None:
        import torch

        self.samples = samples
        self._lines = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        for _ in range(1000):  # about 100 ms of work, so that the clocks are up
            self._fill_l2()
        torch.cuda.synchronize()

    def us(self, graph: torch.cuda.CUDAGraph) -> float:
        """Inputs as the replay before left them: in the L2 as far as they fit."""
        return self._median(graph, before=lambda: None)

    def us_cold(self, graph: torch.cuda.CUDAGraph) -> float:
        """The L2 filled with other clean lines before each replay (dirty ones would cost their write-back on top)."""
        return self._median(graph, before=self._fill_l2)

    def us_back_to_back(self, call: Callable[[], object]) -> float:
        """Of one of BACK_TO_BACK calls in a graph, inputs warm: the launch of the graph, which differs from machine to machine, hardly counts."""

        def calls() -> None:
            for _ in range(BACK_TO_BACK):
                call()

        return self.us(capture(calls)) / BACK_TO_BACK

    def us_sustained(self, graph: torch.cuda.CUDAGraph) -> float:
        """Mean of replays that follow each other for SUSTAINED_MS, after as long of the same: at the clocks that the power limit leaves then."""
        import torch

        count = max(1, round(SUSTAINED_MS * 1e3 / self.us(graph)))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for event in (start, end):
            for _ in range(count):
                graph.replay()
            event.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / count

    def null_graph_us(self) -> float:
        """Time of a graph with a trivial kernel: what is inside every other number."""
        import torch

        numbers = torch.zeros(32, device="cuda")
        return self.us(capture(lambda: numbers.add_(1)))

    def _fill_l2(self) -> None:
        self._lines.sum()

    def _median(self, graph: torch.cuda.CUDAGraph, before: Callable[[], None]) -> float:
        import torch

        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(self.samples)]
        for start, end in events:
            before()
            torch.cuda._sleep(SPIN_CYCLES)
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) * 1e3 for start, end in events)
