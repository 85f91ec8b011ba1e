"""Causal prefill with two consumer warpgroups: numbers against float64, and broken protocols."""

import math

import pytest
import torch
from emu_mutants import mutate, verdicts

from tle_attn import emu

HEAD_DIM, PAGE = 128, 64


class Sequence:
    """One sequence of `kv_len` tokens whose last `q_len` tokens are queries."""

    def __init__(self, generator: torch.Generator, q_len: int, kv_len: int, heads: int = 2, kv_heads: int = 1):
        self.q_len, self.kv_len, self.heads, self.kv_heads = q_len, kv_len, heads, kv_heads
        pages = -(-kv_len // PAGE)
        self.q = torch.randn(q_len, heads, HEAD_DIM, generator=generator).bfloat16()
        self.k, self.v = (torch.randn(pages + 2, PAGE, kv_heads, HEAD_DIM, generator=generator).bfloat16() for _ in range(2))
        self.table = torch.randperm(pages + 2, generator=generator)[:pages].int()

    def reference(self) -> torch.Tensor:
        k, v = (
            cache[self.table.long()].reshape(-1, self.kv_heads, HEAD_DIM)[: self.kv_len].double().repeat_interleave(self.heads // self.kv_heads, 1)
            for cache in (self.k, self.v)
        )
        scores = torch.einsum("qhd,khd->hqk", self.q.double(), k) * HEAD_DIM**-0.5
        position = torch.arange(self.q_len)[:, None] + self.kv_len - self.q_len
        scores.masked_fill_(torch.arange(self.kv_len)[None, :] > position, float("-inf"))
        return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)

    def launch(self, entry, **options) -> tuple[torch.Tensor, emu.Stats]:
        def paged(cache: torch.Tensor) -> emu.TensorDescriptor:
            pages, page, heads, dim = cache.shape
            per_page, per_token, per_head, _ = cache.stride()
            return emu.TensorDescriptor(cache, (pages, heads, page, dim), (per_page, per_head, per_token, 1), (1, 1, PAGE, HEAD_DIM))

        out = torch.full(self.q.shape, float("nan"), dtype=torch.bfloat16)
        args = dict(
            q_desc=emu.TensorDescriptor(self.q, self.q.shape, self.q.stride(), (64, 1, HEAD_DIM)),
            k_desc=paged(self.k),
            v_desc=paged(self.v),
            out=("*bf16", out),
            page_table=("*i32", self.table),
            q_len=("i32", self.q_len),
            kv_len=("i32", self.kv_len),
            heads=("i32", self.heads),
            group=("i32", self.heads // self.kv_heads),
            scale=("f32", HEAD_DIM**-0.5 * math.log2(math.e)),
        )
        return out, emu.launch(entry, (-(-self.q_len // 128), self.heads), args, **options)

    def right(self, out: torch.Tensor, reference: torch.Tensor) -> bool:
        return ((out.double() - reference).norm() / reference.norm()).item() < 5e-3


def test_agrees_with_float64(load_text, kernel_source, generator):
    entry = load_text(kernel_source("prefill")).prefill
    sequence = Sequence(generator, 150, 400)
    reference = sequence.reference()
    outs = [sequence.launch(entry, seed=seed)[0] for seed in range(3)]
    assert sequence.right(outs[0], reference)
    assert all(torch.equal(out.view(torch.int16), outs[0].view(torch.int16)) for out in outs)


@pytest.mark.parametrize("q_len, kv_len", [(1, 1), (64, 64), (65, 129), (128, 300)])
def test_edges(load_text, kernel_source, generator, q_len, kv_len):
    sequence = Sequence(generator, q_len, kv_len)
    out, _ = sequence.launch(load_text(kernel_source("prefill")).prefill)
    assert sequence.right(out, sequence.reference())


MUTANTS = [
    ("empty count 1 with two consumers", "k_empty = alloc_barriers(STAGES, 2,", "k_empty = alloc_barriers(STAGES, 1,", "BarrierMisuse Race"),
    ("release V before its wgmma_wait", "        o = wgmma_wait(0, o_next)\n        barrier_arrive(v_empty[vslot])\n",
     "        barrier_arrive(v_empty[vslot])\n        o = wgmma_wait(0, o_next)\n", "Race"),
    ("wait(1) retires too few", "s = wgmma_wait(1, s_next)", "s = wgmma_wait(2, s_next)", "Race UseBeforeWait"),
    ("last PV without its full wait", "    barrier_wait(v_full[vslot], (n - 1) // STAGES)\n", "", "Race Unwritten"),
    ("rescale of O before its wait", "        o = wgmma_wait(0, o_next)\n", "        o = o_next\n", "UseBeforeWait Race"),
    ("one consumer forgets the release of K", "        barrier_arrive(k_empty[kslot])\n",
     "        if w == 0:\n            barrier_arrive(k_empty[kslot])\n", "Deadlock"),
    ("Q bytes of both tiles on one slot", "expect_bytes=Q_BYTES", "expect_bytes=Q_BYTES * 2", "Deadlock"),
]  # fmt: skip


@pytest.mark.parametrize("name, old, new, allowed", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_every_mutant_is_reported_in_every_schedule(load_text, kernel_source, generator, name, old, new, allowed):
    entry = load_text(mutate(kernel_source("prefill"), old, new)).prefill
    sequence = Sequence(generator, 128, 512, heads=1)
    reference = sequence.reference()
    found = verdicts(lambda seed: sequence.right(sequence.launch(entry, seed=seed)[0], reference), schedules=5)
    assert set(found) <= set(allowed.split()), found
