"""A warp-specialised paged decode kernel: numbers against float64, schedules, and every way to break its protocol."""

import inspect
import math

import pytest
import torch
from emu_mutants import mutate, verdicts

from tle_attn import emu

HEAD_DIM, PAGE, GROUP = 128, 64, 8


class Paged:
    """A ragged batch over a paged cache with pages in random order; page ids past a sequence's end are -1."""

    def __init__(self, generator: torch.Generator, lengths: list[int], heads: int = 1, dtype: torch.dtype = torch.bfloat16, window: int = 0, cap: float = 0.0):
        self.lengths, self.heads, self.window, self.cap = lengths, heads, window, cap
        counts = [-(-length // PAGE) for length in lengths]
        pages = sum(counts) + 3
        draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        self.q = (2 * draw(len(lengths), heads * GROUP, HEAD_DIM)).to(dtype)
        self.k, self.v = (draw(pages, PAGE, heads, HEAD_DIM).to(dtype) for _ in range(2))
        self.table = torch.full((len(lengths), max(*counts, 1)), -1, dtype=torch.int32)
        order = iter(torch.randperm(pages, generator=generator).tolist())
        for row, count in zip(self.table, counts, strict=True):
            row[:count] = torch.tensor([next(order) for _ in range(count)])
        self.scale = HEAD_DIM**-0.5

    def reference(self) -> torch.Tensor:
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for b, length in enumerate(self.lengths):
            first = max(0, length - self.window) if self.window else 0
            for h in range(self.heads):
                if length:
                    pages = self.table[b, : -(-length // PAGE)].long()
                    k, v = (x.double()[pages, :, h].reshape(-1, HEAD_DIM)[first:length] for x in (self.k, self.v))
                    rows = slice(h * GROUP, (h + 1) * GROUP)
                    scores = self.q[b, rows].double() @ k.T * self.scale
                    if self.cap:
                        scores = self.cap * torch.tanh(scores / self.cap)
                    out[b, rows] = torch.softmax(scores, -1) @ v
        return out

    def descriptor(self, cache: torch.Tensor) -> emu.TensorDescriptor:
        pages, page, heads, dim = cache.shape
        per_page, per_token, per_head, _ = cache.stride()
        return emu.TensorDescriptor(cache, (pages, heads, page, dim), (per_page, per_head, per_token, 1), (1, 1, PAGE, HEAD_DIM))

    def launch(self, entry, **options) -> tuple[torch.Tensor, emu.Stats]:
        out = torch.full(self.q.shape, float("nan"), dtype=torch.bfloat16)
        log2_e = math.log2(math.e)
        element = "*fp8" if self.q.dtype == torch.float8_e4m3fn else "*bf16"
        values = dict(
            q=(element, self.q),
            k_desc=self.descriptor(self.k),
            v_desc=self.descriptor(self.v),
            out=("*bf16", out),
            page_table=("*i32", self.table),
            kv_lens=("*i32", torch.tensor(self.lengths, dtype=torch.int32)),
            max_pages=("i32", self.table.shape[1]),
            kv_heads=("i32", self.heads),
            window=("i32", self.window),
            scale=("f32", self.scale * log2_e),
            soft_cap=("f32", self.cap * log2_e),
            inv_soft_cap=("f32", 1 / (self.cap * log2_e) if self.cap else 0.0),
        )
        args = {name: values[name] for name in inspect.signature(entry).parameters}
        return out, emu.launch(entry, (len(self.lengths), self.heads), args, **options)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("name, options, tolerance", [
    ("decode", {}, 5e-3),
    ("decode_window_cap", {"window": 150, "cap": 20.0}, 5e-3),
    ("decode_fp8", {"dtype": torch.float8_e4m3fn}, 3e-2),
])  # fmt: skip
@pytest.mark.parametrize("lengths, heads", [([1, 63, 64, 65, 130, 0, 400], 1), ([200, 77], 2)])
def test_agrees_with_float64(load_text, kernel_source, generator, name, options, tolerance, lengths, heads):
    batch = Paged(generator, lengths, heads, **options)
    entry = load_text(kernel_source(name)).decode
    reference = batch.reference()
    for seed in range(2):
        out, stats = batch.launch(entry, seed=seed)
        assert relative_error(out, reference) < tolerance
        assert (out[[length == 0 for length in lengths]] == 0).all()
        assert stats.ctas == len(lengths) * heads


def test_hundred_schedules_are_bit_equal(load_text, kernel_source, generator):
    entry = load_text(kernel_source("decode")).decode
    batch = Paged(generator, [700, 5])
    first, _ = batch.launch(entry, seed=0)
    switches = set()
    for seed in range(1, 100):
        out, stats = batch.launch(entry, seed=seed, preempt=seed % 5 / 4)
        assert torch.equal(out.view(torch.int16), first.view(torch.int16))
        switches.add(stats.switches)
    assert len(switches) > 10, "the seeds gave hardly any different schedules"


def test_equal_seeds_give_equal_schedules(load_text, kernel_source, generator):
    entry = load_text(kernel_source("decode")).decode
    batch = Paged(generator, [300, 70])
    assert batch.launch(entry, seed=5)[1] == batch.launch(entry, seed=5)[1]


def test_threads_serve_without_greenlet(load_text, kernel_source, generator):
    entry = load_text(kernel_source("decode")).decode
    batch = Paged(generator, [130, 64])
    out, stats = batch.launch(entry, seed=3, backend="thread")
    same, same_stats = batch.launch(entry, seed=3, backend="greenlet")
    assert torch.equal(out, same) and stats == same_stats


def test_without_arithmetic_the_protocol_is_the_same(load_text, kernel_source, generator):
    entry = load_text(kernel_source("decode")).decode
    batch = Paged(generator, [130, 64])
    _, stats = batch.launch(entry, seed=3)
    out, skipped = batch.launch(entry, seed=3, arithmetic=False)
    assert skipped == stats
    assert out.isnan().all(), "float results are not written in this mode"


MUTANTS = [  # name, old, new, occurrence, what may be reported
    ("drop the empty wait (K)", "        barrier_wait(k_empty[s], use)\n", "", 0, "Race"),
    ("drop the empty wait (V)", "        barrier_wait(v_empty[s], use)\n", "", 0, "Race"),
    ("drop the full wait (V)", "        barrier_wait(v_full[s], use)\n", "", 0, "Race Unwritten"),
    ("empty wait one use late", "barrier_wait(k_empty[s], use)", "barrier_wait(k_empty[s], use - 1)", 0, "BarrierMisuse"),
    ("full wait one use late", "barrier_wait(k_full[s], use)", "barrier_wait(k_full[s], use - 1)", 0, "BarrierMisuse Unwritten"),
    ("full wait one use early", "barrier_wait(v_full[s], use)", "barrier_wait(v_full[s], use + 1)", 0, "BarrierMisuse Deadlock"),
    ("phase never flips", "barrier_wait(k_full[s], use)", "barrier_wait(k_full[s], 0)", 0, "BarrierMisuse"),
    ("expected bytes half", "expect_bytes=PAGE_BYTES)", "expect_bytes=PAGE_BYTES // 2)", 0, "BarrierMisuse"),
    ("expected bytes double", "expect_bytes=PAGE_BYTES)", "expect_bytes=PAGE_BYTES * 2)", 0, "Deadlock"),
    ("arrival count 2 on empty", "v_empty = alloc_barriers(STAGES, init=READY)", "v_empty = alloc_barriers(STAGES, 2, init=READY)", 0, "Deadlock"),
    ("arrival count 2 on full", "v_full = alloc_barriers(STAGES,", "v_full = alloc_barriers(STAGES, 2,", 0, "Deadlock"),
    ("missing release (V)", "        barrier_arrive(v_empty[s])\n", "", 0, "Deadlock"),
    ("empty barriers not READY", "k_empty = alloc_barriers(STAGES, init=READY)", "k_empty = alloc_barriers(STAGES)", 0, "Deadlock"),
    ("release before wgmma_wait", "        scores = wgmma_wait(0, scores)\n        barrier_arrive(k_empty[s])\n",
     "        barrier_arrive(k_empty[s])\n        scores = wgmma_wait(0, scores)\n", 0, "Race"),
    ("result used before wgmma_wait", "        scores = wgmma_wait(0, scores)\n", "", 0, "UseBeforeWait"),
    ("no proxy fence after P", "        store_p(p_smem, p)\n        fence_async()\n", "        store_p(p_smem, p)\n", 0, "MissingProxyFence"),
    ("V copy signals the K barrier", "barrier=v_full[s])", "barrier=k_full[s])", 0, "BarrierMisuse Deadlock Race Unwritten"),
    ("consumer's slot off by one", "wgmma(k_ring.slot(s), q_smem", "wgmma(k_ring.slot((s + 1) % STAGES), q_smem", 0, "Race Unwritten"),
    ("producer's ring is one longer", "        s = i % STAGES\n", "        s = i % (STAGES + 1)\n", 1, "OutOfBounds"),
    ("use counter not advanced at the wrap", "        use = i // STAGES\n", "        use = i // (STAGES + 1)\n", 0, "BarrierMisuse Race"),
    ("P overwritten under a live WGMMA",
     "        o = wgmma_wait(0, o)\n        barrier_arrive(v_empty[s])\n", "        o = wgmma_wait(1, o)\n        barrier_arrive(v_empty[s])\n", 0, "Race UseBeforeWait"),
    ("page id out of the table", "seq * max_pages + first + i)", "seq * max_pages + first + i + 4000)", 0, "OutOfBounds"),
    ("output rows off the tensor", "store(out + (row0 + cols(o)[None, :])", "store(out + (row0 + 1 + cols(o)[None, :])", 0, "OutOfBounds Race"),
]  # fmt: skip


@pytest.mark.parametrize("name, old, new, occurrence, allowed", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_every_mutant_is_reported_in_every_schedule(load_text, kernel_source, generator, name, old, new, occurrence, allowed):
    entry = load_text(mutate(kernel_source("decode"), old, new, occurrence)).decode
    batch = Paged(generator, [700, 64, 300])
    reference = batch.reference()
    found = verdicts(lambda seed: relative_error(batch.launch(entry, seed=seed)[0], reference) < 5e-3, schedules=5)
    assert set(found) <= set(allowed.split()), found
    found = verdicts(lambda seed: bool(batch.launch(entry, seed=seed, arithmetic=False)), schedules=3)
    assert set(found) <= set(allowed.split()), f"without arithmetic: {found}"


def test_a_deadlock_report_names_who_waits_for_what(load_text, kernel_source, generator):
    source = mutate(kernel_source("decode"), "v_empty = alloc_barriers(STAGES, init=READY)", "v_empty = alloc_barriers(STAGES, 2, init=READY)")
    batch = Paged(generator, [700])
    with pytest.raises(emu.Deadlock) as report:
        batch.launch(load_text(source).decode)
    text = str(report.value)
    assert "load_pages waits for use 1 of v_empty[0] (READY) at load_pages:" in text
    assert "`barrier_wait(v_empty[s], use)`" in text
    assert "the current one lacks 1 of 2 arrival(s); arrived: attend at line" in text
    assert "attend waits for use 1 of v_full[0] (PENDING)" in text
