"""Generic reads of a slot that TMA fills again: an arrival orders them but does not wait for them, so the reader settles them first."""

import pytest
import torch

from tle_attn import emu

RING = """
@jit
def produce(desc, ring, full, empty, n):
    for i in range(n):
        barrier_wait(empty[i % 2], i // 2)
        copy(desc, ring.slot(i % 2), [64, 64], [i * 64, 0], barrier=full[i % 2])


@jit
def consume(out, ring, other, full, empty, n):
    acc = mma_zeros(64, 64, BF16)
    smem_store(other, acc.to(BF16))
    fence_async()
    for i in range(n):
        barrier_wait(full[i % 2], i // 2)
        t = FETCH
        SETTLE
        barrier_arrive(empty[i % 2])
        store(out + (i * 64 + rows(t))[:, None] * 64 + cols(t)[None, :], t)


@jit
def f(desc, out, n):
    ring = alloc([2, 64, 64], BF16)
    other = alloc([64, 64], BF16)
    full = alloc_barriers(2, expect_bytes=8192)
    empty = alloc_barriers(2, init=READY)
    warp_specialize([(consume, (out, ring, other, full, empty, n)), (produce, (desc, ring, full, empty, n))], [1], [24])
"""
READS = {"smem_load": "smem_load(ring.slot(i % 2))", "smem_operand": "smem_operand(ring.slot(i % 2), acc)"}
PRODUCT = "wgmma(other, other)"
FIRST_PRODUCT = "        t = FETCH\n        SETTLE\n", f"        p = {PRODUCT}\n        t = FETCH\n        p = wgmma_wait(0, p)\n"
LATE_FENCE = "        SETTLE\n        barrier_arrive(empty[i % 2])\n", "        barrier_arrive(empty[i % 2])\n        fence_async()\n"


def launch(load_text, text: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, x) of five tiles through two slots."""
    x = torch.randn(5 * 64, 64).bfloat16()
    out = torch.full_like(x, float("nan"))
    desc = emu.TensorDescriptor(x, x.shape, x.stride(), (64, 64))
    emu.launch(load_text(text).f, (1,), dict(desc=desc, out=("*bf16", out), n=("i32", 5)), seed=seed)
    return out, x


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("settle", ["fence_async()", "role_sync()", f"p = wgmma_wait(0, {PRODUCT})"])
def test_settled_reads(load_text, read, settle):
    for seed in range(3):
        out, x = launch(load_text, RING.replace("FETCH", READS[read]).replace("SETTLE", settle), seed)
        assert torch.equal(out, x)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("old, new", [("SETTLE", "pass"), LATE_FENCE, FIRST_PRODUCT], ids=["nothing settles them", "after the release", "a product that came before"])
def test_unsettled_reads_are_reported_in_every_schedule(load_text, read, old, new):
    text = RING.replace(old, new).replace("FETCH", READS[read])
    for seed in range(8):
        with pytest.raises(emu.UnsettledRead, match="an arrival does not wait for generic reads"):
            launch(load_text, text, seed)


@pytest.mark.parametrize("read", READS)
def test_a_product_that_still_runs_settles_nothing(load_text, read):
    """A later group is in flight when the slot is released; the group before the read has retired."""
    settle = f"p = {PRODUCT}\n        q = wgmma_wait(1, q)"
    text = RING.replace("    for i in range(n):\n        barrier_wait(full", f"    for i in range(n):\n        q = {PRODUCT}\n        barrier_wait(full").replace("SETTLE", settle)
    text = text.replace("        store(out", "        p = wgmma_wait(0, p)\n        store(out").replace("FETCH", READS[read])
    for seed in range(8):
        with pytest.raises(emu.UnsettledRead):
            launch(load_text, text, seed)


def test_a_missing_release_is_still_a_race(load_text):
    """Where nothing orders the read at all, that is what is reported."""
    text = RING.replace("        barrier_wait(empty[i % 2], i // 2)\n", "").replace("FETCH", READS["smem_load"]).replace("SETTLE", "pass")
    for seed in range(8):
        with pytest.raises((emu.Race, emu.BarrierMisuse)):
            launch(load_text, text, seed)
