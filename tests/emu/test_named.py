"""Named barriers: rounds of threads, what they order, and wrong counts."""

import pytest
import torch

from tle_attn import emu

PING_PONG = """
@jit
def player(out, box, ping, w: constexpr, n):
    # the two warpgroups take turns; box holds the number of turns so far
    i = vec_index(128)
    for t in range(n):
        named_wait(ping[w])
        turns = smem_load(box)
        store(out + (t * 2 + w) * 128 + i, turns)
        smem_store(box, turns + 1)
        named_arrive(ping[1 - w])


@jit
def second(out, box, ping, n):
    named_arrive(ping[0])
    player(out, box, ping, 1, n)
    named_wait(ping[1])


@jit
def first(out, box, ping, n):
    player(out, box, ping, 0, n)
    named_wait(ping[0])
    named_arrive(ping[1])


@jit
def f(out, n):
    box = alloc_plain([128], I32)
    ping = alloc_named(8, 2, 256)
    smem_store(box, vec_index(128) * 0)
    warp_specialize([(first, (out, box, ping, n)), (second, (out, box, ping, n))], [4], [96])
"""


def run(load_text, text: str, seed: int = 0, n: int = 4) -> None:
    out = torch.full((2 * n, 128), -1, dtype=torch.int32)
    emu.launch(load_text(text).f, (1,), dict(out=("*i32", out), n=("i32", n)), seed=seed)
    assert torch.equal(out, torch.arange(2 * n, dtype=torch.int32)[:, None].expand(2 * n, 128))


def test_two_warpgroups_take_turns(load_text):
    for seed in range(10):
        run(load_text, PING_PONG, seed)


@pytest.mark.parametrize("old, new, allowed", [
    ("alloc_named(8, 2, 256)", "alloc_named(8, 2, 128)", emu.BarrierMisuse),
    ("alloc_named(8, 2, 256)", "alloc_named(8, 2, 384)", (emu.Deadlock, emu.BarrierMisuse)),
    ("    named_arrive(ping[0])\n    player", "    player", emu.Deadlock),
    ("        named_wait(ping[w])\n", "", (emu.Race, emu.BarrierMisuse)),
    ("named_arrive(ping[1 - w])", "named_arrive(ping[w])", (emu.Deadlock, emu.BarrierMisuse)),
    ("[4], [96]", "[2], [96]", (emu.Deadlock, emu.BarrierMisuse)),
    ("(second, (out, box, ping, n))], [4]", "(second, (out, box, ping, n))], [8]", emu.BarrierMisuse),
])  # fmt: skip
def test_broken_turns_are_reported_in_every_schedule(load_text, old, new, allowed):
    assert old in PING_PONG
    for seed in range(8):
        with pytest.raises(allowed):
            run(load_text, PING_PONG.replace(old, new), seed)


def test_one_role_can_sync_its_own_threads(load_text):
    emu.launch(load_text("@jit\ndef f():\n    own = alloc_named(1, 1, 128)\n    for i in range(3):\n        named_wait(own[0])\n").f, (1,), {})


def test_the_deadlock_report_counts_threads(load_text):
    with pytest.raises(emu.Deadlock, match=r"waits at own\[0\] \(barrier 1, 160 threads\) at f:\d+ .*\n +own.0. .*: 128 threads are there: 128 of f at line"):
        emu.launch(load_text("@jit\ndef f():\n    own = alloc_named(1, 1, 160)\n    named_wait(own[0])\n").f, (1,), {})


def test_too_many_threads(load_text):
    text = """
@jit
def few(own):
    named_wait(own[0])


@jit
def f():
    own = alloc_named(1, 1, 160)
    warp_specialize([(few, (own,)), (few, (own,))], [2], [24])
"""
    for seed in range(4):
        with pytest.raises(emu.BarrierMisuse, match=r"192 threads come to own\[0\] \(barrier 1, 160 threads\)"):
            emu.launch(load_text(text).f, (1,), {}, seed=seed)


WRONG = {
    "no such id": ("alloc_named(15, 2, 128)", emu.EmulationError, "ids 1 .. 15 exist"),
    "id 0": ("alloc_named(0, 1, 128)", emu.EmulationError, "ids 1 .. 15 exist"),
    "taken ids": ("a = alloc_named(3, 2, 128)\n    b = alloc_named(4, 2, 128)", emu.BarrierMisuse, r"ids \[4\] are already taken"),
    "odd thread count": ("alloc_named(3, 1, 100)", emu.EmulationError, "multiple of 32"),
    "index": ("a = alloc_named(3, 2, 128)\n    named_wait(a[2])", emu.OutOfBounds, r"named barrier a\[2\] of 2"),
    "an array": ("a = alloc_named(3, 2, 128)\n    named_wait(a)", emu.BarrierMisuse, "named_wait on NamedBarriers"),
    "an mbarrier": ("a = alloc_barriers(1)\n    named_arrive(a[0])", emu.BarrierMisuse, "named_arrive on Barrier"),
    "twice in one round": ("a = alloc_named(3, 1, 256)\n    named_arrive(a[0])\n    named_arrive(a[0])", emu.BarrierMisuse, "comes twice to one round"),
}


@pytest.mark.parametrize("text, error, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, text, error, message):
    with pytest.raises(error, match=message):
        emu.launch(load_text(f"@jit\ndef f():\n    {text}\n").f, (1,), {})
