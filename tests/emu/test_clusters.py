"""Clusters: reductions over distributed shared memory by push, pull and remote store, and every broken exchange."""

import pytest
import torch
from emu_mutants import mutate, verdicts

from tle_attn import emu


def reduce(entry, generator: torch.Generator, clusters: int = 2, exchanges: int = 2, **options) -> bool:
    """Run a kernel of `cluster_reduce.py` on random partial sums; whether all sums are right."""
    x = torch.randn(clusters, 4, 4, 32, 8, generator=generator)
    out = torch.full((clusters, 4, 32, 8), float("nan"))
    emu.launch(entry, (clusters,), dict(x=("*f32", x), out=("*f32", out), n=("i32", exchanges)), cluster=4, **options)
    return torch.allclose(out, x.sum(1), atol=1e-5)


@pytest.mark.parametrize("name", ["push", "pull", "deal"])
def test_exchanges_are_right_in_every_schedule(load_text, kernel_source, generator, name):
    entry = getattr(load_text(kernel_source("cluster_reduce")), name)
    for seed in range(8):
        assert reduce(entry, generator, seed=seed)
        assert reduce(entry, generator, clusters=3, seed=seed, resident=4)


MUTANTS = [
    ("push without the entry barrier", "push", "        cluster_barrier()\n", "", "Race"),
    ("push without the wait", "push", "        cluster_push_wait(arrived[0], use, CTAS * 32 * 8 * 4)\n", "", "Race Unwritten"),
    ("push: half of the bytes expected", "push", "CTAS * 32 * 8 * 4)", "CTAS * 16 * 8 * 4)", "BarrierMisuse Unwritten"),
    ("push: twice the bytes expected", "push", "CTAS * 32 * 8 * 4)", "CTAS * 64 * 8 * 4)", "Deadlock"),
    ("push: two ranks write one slot", "push", "inbox.slot(rank), r", "inbox.slot(rank // 2), r", "Race"),
    ("push: one barrier for all exchanges", "push",
     "    for use in range(n):\n        cluster_barrier()\n", "    cluster_barrier()\n    for use in range(n):\n", "Race"),
    ("push: the wrong use", "push", "cluster_push_wait(arrived[0], use,", "cluster_push_wait(arrived[0], use + 1,", "BarrierMisuse"),
    ("push: receives nothing, exits while pushes are in flight", "push",
     "        cluster_push_wait(arrived[0], use, CTAS * 32 * 8 * 4)\n",
     "        total = load_quarter(x, 0)\n        store_quarter(out, total)\n        return\n", "Race"),
    ("pull without the first barrier", "pull", "        cluster_barrier()\n        total", "        total", "Race Unwritten"),
    ("pull without the trailing barrier", "pull", "        cluster_barrier()\n        store_quarter", "        store_quarter", "Race"),
    ("pull: one rank skips the barrier", "pull", "        cluster_barrier()\n        total",
     "        if rank > 0:\n            cluster_barrier()\n        total", "Deadlock Race Unwritten"),
    ("deal without the barrier before", "deal", "        cluster_barrier()\n        for r", "        for r", "Race"),
    ("deal without the barrier after", "deal", "        cluster_barrier()\n        total", "        total", "Race Unwritten"),
    ("rank outside of the cluster", "deal", "remote_store(inbox.slot(rank), r,", "remote_store(inbox.slot(rank), r + 1,", "OutOfBounds"),
]  # fmt: skip


@pytest.mark.parametrize("name, entry, old, new, allowed", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_every_mutant_is_reported_in_every_schedule(load_text, kernel_source, generator, name, entry, old, new, allowed):
    source = kernel_source("cluster_reduce")
    start = source.index(f"def {entry}(")
    source = source[:start] + mutate(emu.MARK + source[start:], old, new).removeprefix(emu.MARK)
    entry = getattr(load_text(source), entry)
    found = verdicts(lambda seed: reduce(entry, generator, clusters=1, seed=seed), schedules=10)
    assert set(found) <= set(allowed.split()), found


def test_ranks_programs_and_grid(load_text):
    module = load_text("""
@jit
def ranks(out):
    cluster_dims(2)
    at = out + (program_id(1) * num_programs(0) + program_id(0)) * 4
    store(at, cluster_rank())
    store(at + 1, program_id(0))
    store(at + 2, num_programs(0))
    store(at + 3, num_programs(1))
""")
    out = torch.zeros(2, 6, 4, dtype=torch.int32)
    stats = emu.launch(module.ranks, (3, 2), dict(out=("*i32", out)), cluster=2, resident=2)
    expected = torch.tensor([[x % 2, x, 6, 2] for x in range(6)], dtype=torch.int32).expand(2, 6, 4)
    assert torch.equal(out, expected)
    assert stats.ctas == 12 and stats.most_resident == 2


WRONG = {
    "another cluster size": ("cluster_dims(2)", emu.EmulationError, r"cluster_dims\(2\) in a launch with clusters of 4"),
    "a swizzled buffer": ("cluster_barrier()\n    remote_load(tile, 0)", emu.EmulationError, "only plain buffers"),
    "another shape": ("cluster_barrier()\n    remote_store(plain, 0, mma_zeros(64, 64, BF16))", emu.EmulationError, "remote_store of a tile"),
    "a push barrier that expects by itself": ("cluster_push_wait(full[0], 0, 0)", emu.BarrierMisuse, "no expect_bytes"),
}


@pytest.mark.parametrize("call, error, message", WRONG.values(), ids=WRONG)
def test_wrong_uses(load_text, call, error, message):
    module = load_text(f"""
@jit
def wrong():
    tile = alloc([64, 64], BF16)
    plain = alloc_plain([32, 8], F32)
    full = alloc_barriers(1, expect_bytes=64)
    {call}
""")
    with pytest.raises(error, match=message):
        emu.launch(module.wrong, (1,), {}, cluster=4)


def test_a_cluster_barrier_inside_a_role_is_reported(load_text):
    module = load_text("""
@jit
def work():
    cluster_barrier()


@jit
def idle():
    role_sync()


@jit
def roles():
    warp_specialize([(work, ()), (idle, ())], [1], [24])
""")
    with pytest.raises(emu.BarrierMisuse, match="cluster_barrier inside warp_specialize at work:"):
        emu.launch(module.roles, (1,), {}, cluster=2)
