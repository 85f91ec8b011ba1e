"""The recorder: one picture for every schedule, what must hold of it, and nothing changed where it is off."""

from __future__ import annotations

import pytest
import torch

import tle_attn
from tle_attn import emu
from tle_attn.emu.trace import BYTES_PER_STEP, LATENCY, PRODUCT
from tle_attn.report.page.run import trace_of
from tle_attn.report.page.timeline import busiest
from tle_attn.spec import Argument
from tle_attn.testing.mini_kernel import mini_kernel

RECIPES = [name for name in tle_attn.list_recipes() if tle_attn.load(name).kernel().resources.barriers]


def seen(trace: emu.Trace) -> tuple:
    """The CTA that is shown; which of several CTAs arrives last and merges, after its pipeline, is the schedule's choice."""
    cta = busiest(trace)
    return cta.program, sorted(map(repr, cta.spans)), sorted(map(repr, cta.fills))


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("hy3/") or "cluster" in name])
def test_every_schedule_gives_the_same_trace(name: str) -> None:
    kernel = tle_attn.load(name).kernel()
    assert seen(trace_of(kernel, seed=0)) == seen(trace_of(kernel, seed=9))


@pytest.mark.parametrize("name", RECIPES)
def test_what_holds_of_every_trace(name: str) -> None:
    kernel = tle_attn.load(name).kernel()
    cta = busiest(trace_of(kernel))
    assert len(set(cta.roles) - set(kernel.mainloop.ENTRIES)) == len(kernel.resources.roles)
    for role, (start, end) in cta.roles.items():
        waits = sorted((s.start, s.end) for s in cta.spans if s.role == role and s.kind == "wait")
        products = sorted((s.start, s.end) for s in cta.spans if s.role == role and s.kind == "product")
        for spans in (waits, products):
            assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:])), "one after the other"
        assert all(start <= a < b <= end for a, b in waits)
        assert all(b - a == PRODUCT for a, b in products)
    by_slot: dict[str, list] = {}
    for fill in cta.fills:
        by_slot.setdefault(fill.slot, []).append(fill)
        assert fill.start <= fill.full <= fill.end
    for fills in by_slot.values():
        assert all(a.end <= b.start for a, b in zip(fills, fills[1:])), "a slot is filled again after its last read"
    assert "k_ring[0]" in by_slot
    names = {b.name for b in kernel.resources.barriers}
    assert {s.what.split("[")[0] for s in cta.spans if s.kind == "wait" and "[" in s.what} <= names | {n.name for n in kernel.resources.named}


def test_a_deeper_ring_lets_producers_run_ahead() -> None:
    """Bytes in flight: as many fillings start before the first wait of the producer as there are stages."""
    for stages in (1, 2, 3):
        kernel = tle_attn.load("hy3/decode_bf16").set({"ring.stages": stages}).kernel()
        cta = busiest(trace_of(kernel))
        first_wait = min(s.start for s in cta.spans if s.role == "load_keys" and s.kind == "wait")
        assert sum(f.start < first_wait for f in cta.fills if f.slot.startswith("k_ring")) == stages


TEXT = """
@jit
def produce(desc, ring, full, empty):
    for i in range(3):
        barrier_wait(empty[i % 2], i // 2)
        copy(desc, ring.slot(i % 2), [64, 64], [i * 64, 0], full[i % 2])


@jit
def consume(args, ring, full, empty):
    for i in range(3):
        barrier_wait(full[i % 2], i // 2)
        r, c = tile_index(64, 64, 8)
        store(args.out + (i * 64 + r)[:, None] * 64 + c[None, :], smem_load(ring.slot(i % 2)))
        role_sync()  # the slot's reads are over
        barrier_arrive(empty[i % 2])


@jit
def test(args):
    ring = alloc([2, 64, 64], BF16)
    full = alloc_barriers(2, expect_bytes=8192)
    empty = alloc_barriers(2, init=READY)
    warp_specialize([(consume, (args, ring, full, empty)), (produce, (args.desc, ring, full, empty))], [1], [32])
"""


def test_times_by_hand() -> None:
    """A producer and a consumer around a ring of two: each time follows from the constants."""
    from tle_attn.emu import TensorDescriptor
    from tle_attn.runtime.executors import import_generated, module_file
    from tle_attn.spec import BoxDescriptor, DType

    box = BoxDescriptor(DType.BF16, (64, 64))
    kernel = mini_kernel(TEXT, arguments=[Argument("desc", box, "rows"), Argument("out", "*bf16", "rows")])
    x = torch.randn(192, 64).bfloat16()
    values = {"desc": ("descriptor", TensorDescriptor(x, [192, 64], [64, 1], [64, 64])), "out": ("*bf16", torch.zeros(192, 64, dtype=torch.bfloat16))}
    generated = tle_attn.generate(kernel, "cpu")
    module = import_generated(module_file(generated))
    args = {a.name: values[a.name] for a in generated.entry("test").arguments}
    trace = emu.Trace()
    emu.launch(module.test, (1,), args, trace=trace)
    assert torch.equal(values["out"][1], x)
    (cta,) = trace.ctas
    load = 8192 / BYTES_PER_STEP
    fills = sorted(cta.fills, key=lambda f: f.start)
    # the producer: a step to find the slot free, a step for the copy; the second copy's bytes come right behind the first's
    assert (fills[0].start, fills[0].full) == (1.0, 1.0 + LATENCY + load)
    assert (fills[1].start, fills[1].full) == (3.0, fills[0].full + load)
    first = next(s for s in cta.spans if s.role == "consume")
    assert (first.what, first.end) == ("full[0]", fills[0].full)
    # the third copy waits until the consumer has given slot 0 back
    again = next(s for s in cta.spans if s.role == "produce")
    assert again.what == "empty[0]" and again.end == fills[2].start > fills[0].end


def test_off_by_default_and_without_a_trace() -> None:
    executor = tle_attn.plan("hy3/decode_bf16", batch=1, query_heads=8, kv_heads=1, target="cpu").executor
    assert executor.trace is None


def test_a_traced_launch_computes_the_same() -> None:
    from tle_attn.testing import make_decode_problem

    problem = make_decode_problem([700, 3])
    plan = tle_attn.plan("hy3/decode_bf16", **problem.geometry, target="cpu")
    plain, _ = plan.run(**problem.inputs)
    plan.executor.trace = emu.Trace()
    traced, _ = plan.run(**problem.inputs)
    assert torch.equal(plain, traced) and plan.executor.trace.ctas
