"""An emulated run of a kernel with the recorder on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...checks.batches import Batch, batches_of, key_tile, ring_edges

if TYPE_CHECKING:
    from ...emu import Trace
    from ...spec import Kernel


def trace_of(kernel: Kernel, seed: int = 0) -> Trace:
    """A trace of the attention kernel on work that fills its ring and wraps around it several times."""
    from ...emu import Trace
    from ...runtime import plan
    from ...runtime.executors import EmulatedExecutor
    from ...verify import arguments_of

    batch = _batch(kernel)

    class Traced(EmulatedExecutor):
        SMS, arithmetic = batch.sms, False

        def launch(self, entry: str, *arguments: Any) -> Any:
            self.trace = Trace() if entry in kernel.mainloop.ENTRIES else None
            traces.append(self.trace)
            return super().launch(entry, *arguments)

    traces: list[Trace | None] = []
    problem = batch.problem(kernel)
    plan(kernel, **problem.geometry, target="cpu", executor=Traced(kernel, tle=False, seed=seed)).run(**problem.inputs, **arguments_of(kernel, problem))
    return next(trace for trace in traces if trace is not None)


def _batch(kernel: Kernel) -> Batch:
    """Sequences whose CTAs have a task each: with a queue of tasks, who takes the next one would depend on the schedule."""
    if kernel.mainloop.PHASE == "prefill":
        tile = key_tile(kernel)
        return Batch("a tile of queries", ((tile, ring_edges(kernel)[-1] * tile),), sms=16)
    return batches_of(kernel)[0]
