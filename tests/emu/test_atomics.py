"""Atomics and acquiring reads: split partial sums merged by the last arriver or by polling CTAs, and every broken order."""

import pytest
import torch
from emu_mutants import mutate, verdicts

from tle_attn import emu

SPLITS, SEQUENCES = 4, 3


def merge(entry, generator: torch.Generator, **options) -> bool:
    """Run a kernel of `split_merge.py` on random partial sums; whether all sums are right and the counters are reset."""
    x = torch.randn(SEQUENCES, SPLITS, 8, 64, generator=generator)
    out = torch.full((SEQUENCES, 8, 64), float("nan"))
    counter = torch.zeros(2 * SEQUENCES, dtype=torch.int32)
    args = dict(
        x=("*f32", x), partial=("*f32", emu.workspace(torch.full_like(x, float("nan")))), out=("*f32", out), counter=("*i32", counter)
    )
    emu.launch(entry, (SPLITS, SEQUENCES), args, **options)
    return torch.allclose(out, 2 * x.sum(1), atol=1e-5) and not counter.any()


@pytest.mark.parametrize("name", ["last_arriver", "polling", "tickets"])
def test_merging_is_right_in_every_schedule(load_text, kernel_source, generator, name):
    entry = getattr(load_text(kernel_source("split_merge")), name)
    for seed in range(20):
        assert merge(entry, generator, seed=seed)


def test_the_last_arriver_needs_no_residency(load_text, kernel_source, generator):
    entry = load_text(kernel_source("split_merge")).last_arriver
    assert all(merge(entry, generator, seed=seed, resident=resident) for seed in range(3) for resident in (1, 2, 5))


@pytest.mark.parametrize("name", ["polling", "tickets"])
def test_polling_needs_its_partners_resident(load_text, kernel_source, generator, name):
    entry = getattr(load_text(kernel_source("split_merge")), name)
    assert all(merge(entry, generator, seed=seed, resident=SPLITS + 1) for seed in range(5))
    for resident in range(1, SPLITS):
        with pytest.raises(emu.Deadlock) as report:
            merge(entry, generator, resident=resident)
        assert f"polls counter[0] (= {resident}) at {name}:" in str(report.value)
        assert f"{SPLITS * SEQUENCES - resident} of {SPLITS * SEQUENCES} CTAs have not started" in str(report.value)


MUTANTS = [
    ("relaxed arrival", "last_arriver", "atomic_add(counter + seq, 1)", 'atomic_add(counter + seq, 1, sem="relaxed")', "Race"),
    ("arrival without acquire", "last_arriver", "atomic_add(counter + seq, 1)", 'atomic_add(counter + seq, 1, sem="release")', "Race"),
    ("arrival without release", "last_arriver", "atomic_add(counter + seq, 1)", 'atomic_add(counter + seq, 1, sem="acquire")', "Race"),
    ("arrival before the partial is stored", "last_arriver", "    store_partial(x, partial, seq, split, splits)\n    ticket = atomic_add(counter + seq, 1)\n",
     "    ticket = atomic_add(counter + seq, 1)\n    store_partial(x, partial, seq, split, splits)\n", "Race Unwritten"),
    ("merges one arrival early", "last_arriver", "ticket == splits - 1", "ticket == splits - 2", "Race Unwritten"),
    ("reads one split too many", "last_arriver", "for s in range(splits)", "for s in range(splits + 1)", "Race Unwritten OutOfBounds"),
    ("plain arrival instead of an atomic", "last_arriver", "    ticket = atomic_add(counter + seq, 1)\n",
     "    ticket = load(counter + seq)\n    store(counter + seq, ticket + 1)\n", "Race"),
    ("polling releases nothing", "polling", 'sem="release"', 'sem="relaxed"', "Race"),
    ("polls with a plain load", "polling", "load_acquire(", "load(", "Race"),
    ("polls for too few", "polling", "while seen < splits:", "while seen < splits - 1:", "Race Unwritten"),
    ("polls for too many", "polling", "while seen < splits:", "while seen < splits + 1:", "Deadlock"),
    ("waits for too few", "tickets", "wait_at_least(counter + 2 * seq, splits)", "wait_at_least(counter + 2 * seq, splits - 1)", "Race Unwritten"),
    ("waits for too many", "tickets", "wait_at_least(counter + 2 * seq, splits)", "wait_at_least(counter + 2 * seq, splits + 1)", "Deadlock"),
    ("no wait", "tickets", "    wait_at_least(counter + 2 * seq, splits)\n", "", "Race Unwritten"),
    ("reset one ticket early", "tickets", "reset_after(counter + 2 * seq, ticket, splits - 1)", "reset_after(counter + 2 * seq, ticket, splits - 2)",
     "BarrierMisuse Race"),
    ("two CTAs store one partial", "polling", "slot = seq * splits + split", "slot = seq * splits + split // 2", "Race"),
]  # fmt: skip


@pytest.mark.parametrize("name, entry, old, new, allowed", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_every_mutant_is_reported_in_every_schedule(load_text, kernel_source, generator, name, entry, old, new, allowed):
    occurrence = 1 if name == "polls with a plain load" else 0
    source = mutate(kernel_source("split_merge"), old, new, 0)
    if occurrence:
        source = mutate(source, old, new, 0)
    entry = getattr(load_text(source), entry)
    found = verdicts(lambda seed: merge(entry, generator, seed=seed), schedules=8)
    assert set(found) <= set(allowed.split()), found


def test_values_and_old_values(load_text):
    module = load_text("""
@jit
def add(counter, tickets, n):
    me = program_id(0)
    for i in range(n):
        store(tickets + me * n + i, atomic_add(counter, me + 1, sem="relaxed"))
""")
    counter, tickets = torch.tensor([5], dtype=torch.int32), torch.zeros(4, 3, dtype=torch.int32)
    emu.launch(module.add, (4,), dict(counter=("*i32", counter), tickets=("*i32", tickets), n=("i32", 3)))
    assert counter.item() == 5 + 3 * (1 + 2 + 3 + 4)
    steps = sorted(tickets.flatten().tolist()) + [counter.item()]
    assert steps[0] == 5 and sorted(b - a for a, b in zip(steps, steps[1:], strict=False)) == sorted([1, 2, 3, 4] * 3)


@pytest.mark.parametrize("call, error, message", [
    ('atomic_add(counter, 1, sem="seq_cst")', emu.EmulationError, "one of relaxed, acquire, release, acq_rel"),
    ("atomic_add(counter + 9, 1)", emu.OutOfBounds, "element 9 of 2"),
    ("atomic_add(floats, 1)", emu.EmulationError, "a pointer to one int32"),
    ("load_acquire(counter + vec_index(2))", emu.EmulationError, "a pointer to one int32"),
    ("take_ticket(counter) + 1", TypeError, "unsupported operand"),
    ("reset_after(counter, 0, 0)", emu.EmulationError, "what take_ticket returned"),
    ("atomic_add(counter + 1, 1)", emu.OutOfBounds, "32-bit integer overflow"),
])  # fmt: skip
def test_wrong_uses(load_text, call, error, message):
    module = load_text(f"@jit\ndef wrong(counter, floats):\n    {call}\n")
    args = dict(counter=("*i32", torch.tensor([0, 2**31 - 1], dtype=torch.int32)), floats=("*f32", torch.zeros(4)))
    with pytest.raises(error, match=message):
        emu.launch(module.wrong, (1,), args)


def test_a_poll_that_gives_up_by_itself_ends(load_text):
    module = load_text("""
@jit
def patient(flag, out):
    seen = load_acquire(flag)
    looks = 1
    while (seen == 0) and (looks < 9):
        seen = load_acquire(flag)
        looks += 1
    store(out, looks)
""")
    out = torch.zeros(1, dtype=torch.int32)
    emu.launch(module.patient, (1,), dict(flag=("*i32", torch.zeros(1, dtype=torch.int32)), out=("*i32", out)))
    assert out.item() == 9


def test_polling_the_same_word_again_after_other_work(load_text):
    module = load_text("""
@jit
def rounds(flag, out, n):
    if program_id(0) == 0:
        atomic_add(flag, 1, sem="release")
    else:
        for i in range(n):
            seen = load_acquire(flag)
            while seen < 1:
                seen = load_acquire(flag)
            store(out + i, seen)
""")
    for seed in range(5):
        out = torch.zeros(4, dtype=torch.int32)
        emu.launch(module.rounds, (2,), dict(flag=("*i32", torch.zeros(1, dtype=torch.int32)), out=("*i32", out), n=("i32", 4)), seed=seed)
        assert (out == 1).all()


def test_polling_a_plainly_stored_flag_is_a_race(load_text):
    module = load_text("""
@jit
def flag(flag, data, out):
    if program_id(0) == 0:
        store(data, 3)
        store(flag, 1)
    else:
        seen = load_acquire(flag)
        while seen == 0:
            seen = load_acquire(flag)
        store(out, load(data))
""")
    word = lambda: torch.zeros(1, dtype=torch.int32)  # noqa: E731
    for seed in range(5):
        with pytest.raises(emu.Race, match="reads flag"):
            emu.launch(module.flag, (2,), dict(flag=("*i32", word()), data=("*i32", word()), out=("*i32", word())), seed=seed)
