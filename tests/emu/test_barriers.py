"""mbarriers: uses, parities, counts."""

import pytest
import torch

from tle_attn import emu

PASS_ON = """
@jit
def give(x, box, full, empty, n):
    for t in range(n):
        barrier_wait(empty[0], t)
        smem_store(box, load(x + t * 32 + vec_index(32)))
        barrier_arrive(full[0])


@jit
def take(out, box, full, empty, n):
    for t in range(n):
        barrier_wait(full[0], t)
        store(out + t * 32 + vec_index(32), smem_load(box))
        barrier_arrive(empty[0])


@jit
def f(x, out, n):
    box = alloc_plain([32], I32)
    full = alloc_barriers(1)
    empty = alloc_barriers(1, init=READY)
    warp_specialize([(take, (out, box, full, empty, n)), (give, (x, box, full, empty, n))], [1], [24])
"""


def run(load_text, text: str, seed: int = 0) -> None:
    x, out = torch.arange(5 * 32, dtype=torch.int32), torch.zeros(5 * 32, dtype=torch.int32)
    emu.launch(load_text(text).f, (1,), dict(x=("*i32", x), out=("*i32", out), n=("i32", 5)), seed=seed)
    assert torch.equal(out, x)


def test_uses_of_one_slot(load_text):
    for seed in range(8):
        run(load_text, PASS_ON, seed)


@pytest.mark.parametrize("old, new, allowed", [
    ("barrier_wait(full[0], t)", "barrier_wait(full[0], t + 1)", (emu.BarrierMisuse, emu.Deadlock)),
    ("barrier_wait(full[0], t)", "barrier_wait(full[0], t + 2)", (emu.BarrierMisuse, emu.Deadlock)),
    ("barrier_wait(empty[0], t)", "barrier_wait(empty[0], t - 1)", emu.BarrierMisuse),
    ("barrier_wait(empty[0], t)", "barrier_wait(empty[0], t % 2)", (emu.BarrierMisuse, emu.Race)),
    ("        barrier_arrive(empty[0])\n", "        barrier_arrive(empty[0])\n        barrier_arrive(empty[0])\n", (emu.BarrierMisuse, emu.Race)),
    ("full = alloc_barriers(1)", "full = alloc_barriers(1, init=READY)", (emu.Unwritten, emu.Race, emu.BarrierMisuse)),
    ("barrier_wait(full[0], t)", "barrier_wait(full[1], t)", emu.OutOfBounds),
])  # fmt: skip
def test_broken_uses_are_reported_in_every_schedule(load_text, old, new, allowed):
    assert old in PASS_ON
    for seed in range(8):
        with pytest.raises(allowed):
            run(load_text, PASS_ON.replace(old, new), seed)


def test_the_parity_may_be_right_while_the_use_is_wrong(load_text):
    """Naming use t + 2 waits for the same parity on the device; the number shows that it is not meant."""
    with pytest.raises(emu.BarrierMisuse) as report:
        run(load_text, PASS_ON.replace("barrier_wait(empty[0], t)", "barrier_wait(empty[0], t + 2)"))
    assert "it names use 2, which needs 2 completion(s); there are 0, whose parity is the same" in str(report.value)


WRONG = {
    "too many arrivals": ("barrier_arrive(two[0])\nbarrier_arrive(two[0])\nbarrier_arrive(one[0])\nbarrier_arrive(one[0])", None, None),
    "arrive on a transaction barrier": ("barrier_arrive(full[0])", emu.BarrierMisuse, r"direct arrive on the transaction barrier full\[0\]"),
    "an array instead of a slot": ("barrier_wait(one, 0)", emu.BarrierMisuse, "barrier_wait on Barriers: one mbarrier"),
    "a use that is no number": ("barrier_wait(one[0], 0.5)", emu.BarrierMisuse, "an integer"),
    "index out of range": ("barrier_arrive(one[2])", emu.OutOfBounds, r"barrier one\[2\] of 2"),
    "no barriers": ("alloc_barriers(0)", emu.EmulationError, "positive constants"),
    "a start that does not exist": ("alloc_barriers(1, init=3)", emu.EmulationError, "PENDING or READY"),
    "a wait for nobody": ("barrier_wait(one[1], 0)", emu.Deadlock, r"f waits for use 0 of one\[1\] .PENDING. at f:"),
}


@pytest.mark.parametrize("text, error, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, text, error, message):
    lines = "\n    ".join(("one = alloc_barriers(2)\ntwo = alloc_barriers(1, 2)\nfull = alloc_barriers(1, expect_bytes=64)\n" + text).splitlines())
    entry = load_text(f"@jit\ndef f():\n    {lines}\n").f
    if error is None:
        emu.launch(entry, (1,), {})
    else:
        with pytest.raises(error, match=message):
            emu.launch(entry, (1,), {})


def test_an_arrival_of_two_roles_completes_a_count_of_two(load_text):
    text = """
@jit
def arrive(done):
    barrier_arrive(done[0])


@jit
def wait(done):
    barrier_wait(done[0], 0)


@jit
def f():
    done = alloc_barriers(1, {0})
    warp_specialize([(wait, (done,)), (arrive, (done,)), (arrive, (done,))], [1, 1], [24, 24])
"""
    for seed in range(5):
        emu.launch(load_text(text.format(2)).f, (1,), {}, seed=seed)
        with pytest.raises(emu.Deadlock, match="lacks 1 of 3 arrival.s.; arrived: arrive#0 at line .*, arrive#1 at line|arrive#1 at line .*, arrive#0"):
            emu.launch(load_text(text.format(3)).f, (1,), {}, seed=seed)
