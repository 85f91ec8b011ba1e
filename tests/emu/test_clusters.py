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


SET_UP = {
    "remote_load(plain, 1)": "touches plain of CTA 1, which may not have set it up yet",
    "remote_store(plain, 1, ones)": "touches plain of CTA 1, which may not have set it up yet",
    "cluster_push(plain, 1, ones, bars[0])": "touches plain of CTA 1, which may not have set it up yet",
    "cluster_deal(plain, ones, 8, bars[0])": "touches plain of CTA 1, which may not have set it up yet",
    "remote_load_rows(plain, 1, ones, 0)": "touches plain of CTA 1, which may not have set it up yet",
    "cluster_arrive(bars[0], 2)": "arrives at bars.0. of CTA 1, which may not have set it up yet",
}


@pytest.mark.parametrize("call, message", SET_UP.items(), ids=SET_UP)
def test_peers_must_be_known_to_be_set_up(load_text, call, message):
    entry = load_text(f"""
@jit
def f():
    ones = tile_zeros(16, 8, 4) + 1.0
    plain = alloc_plain([16, 8], F32)
    bars = alloc_barriers(1)
    smem_store(plain, ones)
    for i in range(4):  # chances for the other CTA to run
        role_sync()
    if cluster_rank() == 0:
        {call}
    for i in range(4):
        role_sync()
""").f
    for seed in range(12):
        with pytest.raises(emu.Race, match=f"{message}|after that CTA has exited"):
            emu.launch(entry, (1,), {}, cluster=2, seed=seed)


def test_a_peer_that_may_have_exited_cannot_be_read(load_text):
    """Whether the peer has exited already or is about to: only a barrier after the read makes it safe."""
    text = """
@jit
def f():
    plain = alloc_plain([16, 8], F32)
    smem_store(plain, tile_zeros(16, 8, 4))
    cluster_barrier()
    if cluster_rank() == 1:
        for i in range(4):
            role_sync()
        remote_load(plain, 0)
    {0}
"""
    messages = set()
    for seed in range(20):
        emu.launch(load_text(text.format("cluster_barrier()")).f, (1,), {}, cluster=2, seed=seed)
        with pytest.raises(emu.Race, match="after that CTA has exited|CTA 0 may exit before") as report:
            emu.launch(load_text(text.format("role_sync()")).f, (1,), {}, cluster=2, seed=seed)
        messages.add(str(report.value).split("\n")[0])
    assert len(messages) == 2, messages


DOUBLE_BUFFERED = """
@jit
def f(x, out, n):
    cluster_dims(4)
    inbox = alloc_plain([8, 16, 8], F32)
    arrived = alloc_barriers(1)
    cluster_barrier()
    rank = cluster_rank()
    r, c = tile_index(16, 8, 4)
    for use in range(n):
        for peer in range(4):
            cluster_push(inbox.slot(use % 2 * 4 + rank), peer, tile_zeros(16, 8, 4) + 1.0, arrived[0])
        cluster_push_wait(arrived[0], use, 2048)
        total = smem_load(inbox.slot(use % 2 * 4))
        {0}
    store(out + rank * 128 + r[:, None] * 8 + c[None, :], total)
    cluster_barrier()
"""


def test_a_fast_pusher_may_not_mix_its_bytes_into_an_earlier_exchange(load_text):
    """Two inboxes do not help: the bytes would count for the exchange that a slower CTA still waits for."""
    args = lambda n: dict(x=("*f32", torch.zeros(4)), out=("*f32", torch.zeros(4, 16, 8)), n=("i32", n))  # noqa: E731
    for seed in range(8):
        emu.launch(load_text(DOUBLE_BUFFERED.format("cluster_barrier()")).f, (1,), args(3), cluster=4, seed=seed)
        with pytest.raises(emu.Race, match="pushes for use 1 of arrived.0. while CTA . may still wait for an earlier one"):
            emu.launch(load_text(DOUBLE_BUFFERED.format("role_sync()")).f, (1,), args(2), cluster=4, seed=seed)


def test_a_push_that_is_not_expected_is_reported_even_after_the_wait(load_text):
    entry = load_text("""
@jit
def f():
    inbox = alloc_plain([2, 16, 8], F32)
    arrived = alloc_barriers(1)
    ones = tile_zeros(16, 8, 4) + 1.0
    cluster_barrier()
    if cluster_rank() == 1:
        cluster_push(inbox.slot(0), 0, ones, arrived[0])
        cluster_push(inbox.slot(1), 0, ones, arrived[0])
        cluster_push_wait(arrived[0], 0, 0)
    else:
        cluster_push_wait(arrived[0], 0, 512)
    cluster_barrier()
    if cluster_rank() == 0:
        smem_load(inbox.slot(0))
        smem_load(inbox.slot(1))
""").f
    found = verdicts(lambda seed: bool(emu.launch(entry, (1,), {}, cluster=2, seed=seed)), schedules=30)
    assert set(found) <= {"BarrierMisuse", "Deadlock"}, found
    assert "BarrierMisuse" in found


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
    "arrivals at more CTAs than there are": ("cluster_barrier()\n    cluster_arrive(bars[0], 5)", emu.OutOfBounds, "arrivals at 5 CTAs of a cluster of 4"),
    "arrivals at a barrier of copies": ("cluster_barrier()\n    cluster_arrive(full[0], 1)", emu.BarrierMisuse, "direct arrive on the transaction barrier"),
    "rows behind the last": ("cluster_barrier()\n    remote_load_rows(plain, 0, tile_zeros(16, 8, 4), 17)", emu.OutOfBounds, "rows 17 to 32 of CTA 0's plain"),
    "shares that do not fit": ("cluster_barrier()\n    cluster_deal(plain, tile_zeros(32, 8, 4), 3, bars[0])", emu.EmulationError, "shares of 3 rows of a tile"),
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
    bars = alloc_barriers(1)
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


HANDS = """
@jit
def hand(x, out, kept, ready, taken):
    rank = cluster_rank()
    r, c = tile_index(16, 8, 4)
    smem_store(kept, load(x + rank * 128 + r[:, None] * 8 + c[None, :]))
    cluster_arrive(ready[rank], 2)
    for peer in range(2):
        cluster_wait(ready[peer], 0)
        part = remote_load_rows(kept, peer, tile_zeros(8, 8, 4), rank * 8)
        store(out + (rank * 2 + peer) * 64 + rows(part)[:, None] * 8 + cols(part)[None, :], part)
    cluster_arrive(taken[0], 2)
    cluster_wait(taken[0], 0)


@jit
def idle():
    role_sync()


@jit
def f(x, out):
    kept = alloc_plain([16, 8], F32)
    ready = alloc_barriers(2)
    taken = alloc_barriers(1, 2)
    cluster_barrier()
    warp_specialize([(hand, (x, out, kept, ready, taken)), (idle, ())], [1], [24])
"""
BROKEN_HANDS = {
    "no arrival": ("    cluster_arrive(ready[rank], 2)\n", "", "Deadlock Race"),
    "an arrival before the store": ("    smem_store(kept, load(x + rank * 128 + r[:, None] * 8 + c[None, :]))\n    cluster_arrive(ready[rank], 2)\n",
                                    "    cluster_arrive(ready[rank], 2)\n    smem_store(kept, load(x + rank * 128 + r[:, None] * 8 + c[None, :]))\n", "Race Unwritten"),
    "no wait": ("        cluster_wait(ready[peer], 0)\n", "", "Race Unwritten"),
    "a wait at CTA scope": ("cluster_wait(ready[peer], 0)", "barrier_wait(ready[peer], 0)", "BarrierMisuse"),
    "leaves while it is read": ("    cluster_wait(taken[0], 0)\n", "", "Race"),
    "leaves after its own reads": ("    cluster_wait(taken[0], 0)\n", "    if rank == 0:\n        cluster_wait(taken[0], 0)\n", "Race"),
    "one arrival too many": ("    cluster_arrive(taken[0], 2)\n", "    cluster_arrive(taken[0], 2)\n    cluster_arrive(taken[0], 2)\n", "BarrierMisuse Race"),
}  # fmt: skip


def run_hands(entry, generator: torch.Generator, seed: int) -> bool:
    x, out = torch.randn(2, 2, 8, 8, generator=generator), torch.full((2, 2, 8, 8), float("nan"))
    emu.launch(entry, (1,), dict(x=("*f32", x), out=("*f32", out)), cluster=2, seed=seed)
    return torch.equal(out, x.transpose(0, 1))


def test_arrivals_order_exchanges_between_roles(load_text, generator):
    for seed in range(12):
        assert run_hands(load_text(HANDS).f, generator, seed)


@pytest.mark.parametrize("name", BROKEN_HANDS)
def test_every_broken_hand_over_is_reported_in_every_schedule(load_text, generator, name):
    old, new, allowed = BROKEN_HANDS[name]
    entry = load_text(mutate(emu.MARK + HANDS, old, new).removeprefix(emu.MARK)).f
    found = verdicts(lambda seed: run_hands(entry, generator, seed), schedules=12)
    assert set(found) <= set(allowed.split()), found
