"""Attention by the definition, one row at a time in plain Python floats: what the oracle is tested against."""

import math
import random

import pytest
import torch


def e4m3(x: float) -> float:
    """Nearest e4m3 number to x >= 0, ties to even, saturating; from the format's definition."""
    if x == 0:
        return 0.0
    step = 2.0 ** max(math.floor(math.log2(x)) - 3, -9)
    return min(round(x / step) * step, 448.0)


class Batch:
    """A small random batch in float64 with pages of its own, every slot that holds no key NaN."""

    def __init__(self, seed, kv_lens, q_lens, *, page=3, heads=(2, 1), dims=(3, 2), dtype=torch.float64):
        draw = random.Random(seed)
        torch_draw = torch.Generator().manual_seed(seed)
        needed = [-(-length // page) for length in kv_lens]
        ids = draw.sample(range(sum(needed) + 2), sum(needed))
        self.heads, self.kv_lens, self.q_lens, self.page = heads, kv_lens, q_lens, page
        self.q = torch.randn(sum(q_lens), heads[0], dims[0], dtype=torch.float64, generator=torch_draw).to(dtype)
        self.k = torch.full((sum(needed) + 2, page, heads[1], dims[0]), math.nan, dtype=dtype)
        self.v = torch.full((sum(needed) + 2, page, heads[1], dims[1]), math.nan, dtype=dtype)
        self.table = []
        for length, count in zip(kv_lens, needed, strict=True):
            self.table.append([ids.pop() for _ in range(count)])
            for t in range(length):
                for cache in (self.k, self.v):
                    cache[self.table[-1][t // page], t % page] = torch.randn(cache.shape[2:], dtype=torch.float64, generator=torch_draw).to(dtype)
        width = max(needed, default=0) + 2
        self.block_ids = torch.tensor([row + [draw.choice([-1, 2**31 - 1]) for _ in range(width - len(row))] for row in self.table], dtype=torch.int32)

    def arguments(self):
        return self.q, self.k, self.v, self.block_ids, torch.tensor(self.kv_lens, dtype=torch.int32)

    def cu_seqlens_q(self):
        return torch.tensor([sum(self.q_lens[:b]) for b in range(len(self.q_lens) + 1)], dtype=torch.int32)

    def rows(self):
        """(row of q, sequence, query number) of every query."""
        for b, length in enumerate(self.q_lens):
            for i in range(length):
                yield sum(self.q_lens[:b]) + i, b, i

    def brute_row(
        self,
        row,
        b,
        i,
        head,
        *,
        causal=True,
        softmax_scale=None,
        window=None,
        soft_cap=None,
        alibi_slopes=None,
        sink=None,
        block_mask=None,
        tree_mask=None,
        p_quant=None,
    ):
        """(out, natural lse) of one query and head, after the definition."""
        n, kv_len, kv_head = self.q_lens[b], self.kv_lens[b], head * self.heads[1] // self.heads[0]
        position = kv_len - n + i
        query = self.q[row, head].double().tolist()
        scale = len(query) ** -0.5 if softmax_scale is None else softmax_scale
        scored = []
        for t in range(kv_len):
            if tree_mask is not None:
                j = t - (kv_len - n)
                if position < 0 or (j >= 0 and not tree_mask[b, i, j]):
                    continue
            elif causal and t > position:
                continue
            if window is not None and not position - t < window:
                continue
            if block_mask is not None:
                tile, tiles = t // 128, block_mask.shape[3]
                if tile > tiles or (tile < tiles and not block_mask[b, head, i // 128, tile]):
                    continue
            place = self.table[b][t // self.page], t % self.page, kv_head
            s = sum(x * y for x, y in zip(query, self.k[place].double().tolist(), strict=True)) * scale
            if soft_cap is not None:
                s = soft_cap * math.tanh(s / soft_cap)
            if alibi_slopes is not None:
                slope = alibi_slopes[head] if alibi_slopes.dim() == 1 else alibi_slopes[b, head]
                s -= float(slope) * abs(position - t)
            scored.append((s, self.v[place].double().tolist()))
        top = max((s for s, _ in scored), default=0.0)
        weights = [math.exp(s - top) for s, _ in scored]
        total = sum(weights)
        if sink is not None:
            total += math.exp(float(sink[head]) - top)
        if p_quant == "e4m3":
            weights = [e4m3(w * 256) / 256 for w in weights]
        out = [0.0] * self.v.shape[3]
        for w, (_, value) in zip(weights, scored, strict=True):
            out = [o + w * x / total for o, x in zip(out, value, strict=True)]
        return out, top + math.log(total) if total else -math.inf

    def check(self, out, lse, rows=None, **options):
        """Compare with brute_row in every row (or those of `rows`) and head."""
        for row, b, i in self.rows():
            if rows is not None and row not in rows:
                continue
            for head in range(self.heads[0]):
                want, want_lse = self.brute_row(row, b, i, head, **options)
                got, got_lse = out[row, head].tolist(), float(lse[row, head])
                where = f"row {row} (sequence {b}, query {i}), head {head}"
                assert got == pytest.approx(want, rel=1e-9, abs=1e-12), where
                assert got_lse == pytest.approx(want_lse, rel=1e-9, abs=1e-12), where


@pytest.fixture
def fresh_seed():
    """A seed that differs between runs; a failure prints it."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"fresh_seed = {seed}")
    return seed


@pytest.fixture(scope="session")
def small_batch():
    """The class `Batch`."""
    return Batch


@pytest.fixture(scope="session")
def round_e4m3():
    """The function `e4m3`."""
    return e4m3
