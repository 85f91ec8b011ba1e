"""Whole attention kernels as TLE modules on the emulation, against attention in float64."""

import math
import secrets

import pytest
import torch
from tle_modules import kernel_text, load_text

from tle_attn import emu

HEAD_DIM, PAGE, GROUP = 128, 64, 8
LOG2_E = math.log2(math.e)

FP8_MICRO = """
from triton.experimental.tle.raw import dialect
import triton.experimental.tle.language.raw as tle_raw


@dialect(name="cuda", file="v_transpose_fp8.cu", extern_func_name="v_transpose_fp8", deferred=True)
def v_transpose_fp8(dst, src):
    ...


@triton.jit
def token_order(tile):
    return tl.reshape(tl.permute(tl.reshape(tile, [tile.shape[0], 4, 2, 4, 2]), [0, 1, 3, 4, 2]), [tile.shape[0], 64])


@triton.jit
def load_v_transposed(buf):
    return tle_raw.call(v_transpose_fp8, [tl.zeros([128, 64], tl.float8e4nv), buf], output_indices=[0])
"""


def v_transpose_fp8(dst, src):
    """[64 tokens, 128] in shared memory -> [128, 64]: row r holds feature 2 r (r < 64), then the odd ones; tokens permuted as P is."""
    v = emu.ops.trans(emu.ops.smem_load(src)).reshape([64, 2, 64]).permute((1, 0, 2)).reshape([128, 64])
    return v.reshape([128, 4, 2, 4, 2]).permute((0, 1, 3, 4, 2)).reshape([128, 64])


class Paged:
    """A ragged batch over a paged cache with its pages in random order; page ids past a sequence's end are -1."""

    def __init__(self, lengths: list[int], kv_heads: int, dtype: torch.dtype):
        seed = secrets.randbelow(2**31)
        print("inputs from seed", seed)
        g = torch.Generator().manual_seed(seed)
        self.lengths, self.kv_heads = lengths, kv_heads
        counts = [-(-n // PAGE) for n in lengths]
        pages = sum(counts) + 2
        self.k, self.v = (torch.randn(pages, PAGE, kv_heads, HEAD_DIM, generator=g).to(dtype) for _ in range(2))
        self.table = torch.full((len(lengths), max(counts)), -1, dtype=torch.int32)
        order = torch.randperm(pages, generator=g).int()
        for row, first, n in zip(self.table, [sum(counts[:i]) for i in range(len(counts))], counts, strict=True):
            row[:n] = order[first : first + n]
        self.generator = g

    def descriptor(self, cache: torch.Tensor) -> emu.TensorDescriptor:
        page, token, head, feature = cache.stride()
        return emu.TensorDescriptor(cache, (cache.shape[0], self.kv_heads, PAGE, HEAD_DIM), (page, head, token, feature), (1, 1, PAGE, HEAD_DIM))

    def sequence(self, i: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one sequence in float64."""
        n = self.lengths[i]
        pages = self.table[i, : -(-n // PAGE)].long()
        return tuple(cache[pages, :, head].reshape(-1, HEAD_DIM)[:n].double() for cache in (self.k, self.v))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_decode(tmp_path, fp8):
    lengths, kv_heads = [1, 63, 64, 65, 130, 0, 400], 2
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    case = Paged(lengths, kv_heads, dtype)
    q = (torch.randn(len(lengths), kv_heads * GROUP, HEAD_DIM, generator=case.generator) * 2).to(dtype)
    out = torch.full(q.shape, float("nan"), dtype=torch.bfloat16)
    scale = HEAD_DIM**-0.5
    module = load_text(tmp_path, kernel_text("decode_fp8" if fp8 else "decode"), FP8_MICRO if fp8 else "", {"v_transpose_fp8": v_transpose_fp8})
    element = "*fp8" if fp8 else "*bf16"
    args = dict(
        q=(element, q),
        k_desc=case.descriptor(case.k),
        v_desc=case.descriptor(case.v),
        out=("*bf16", out),
        page_table=("*i32", case.table),
        kv_lens=("*i32", torch.tensor(lengths, dtype=torch.int32)),
        max_pages=("i32", case.table.shape[1]),
        kv_heads=("i32", kv_heads),
        scale=("f32", scale * LOG2_E),
    )
    emu.launch(module.decode, (len(lengths), kv_heads), args, seed=1)
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(len(lengths)):
        for head in range(kv_heads):
            k, v = case.sequence(i, head)
            rows = slice(head * GROUP, (head + 1) * GROUP)
            if len(k):
                expected[i, rows] = torch.softmax(q[i, rows].double() @ k.T * scale, -1) @ v
    assert relative_error(out, expected) < (2e-2 if fp8 else 4e-3)


def test_prefill(tmp_path):
    q_len, kv_len, heads, kv_heads = 190, 300, 4, 2
    case = Paged([kv_len], kv_heads, torch.bfloat16)
    q = torch.randn(q_len, heads, HEAD_DIM, generator=case.generator).bfloat16()
    out = torch.full(q.shape, float("nan"), dtype=torch.bfloat16)
    scale = HEAD_DIM**-0.5
    module = load_text(tmp_path, kernel_text("prefill"))
    args = dict(
        q_desc=emu.TensorDescriptor(q, q.shape, q.stride(), (64, 1, HEAD_DIM)),
        k_desc=case.descriptor(case.k),
        v_desc=case.descriptor(case.v),
        out=("*bf16", out),
        page_table=("*i32", case.table),
        q_len=("i32", q_len),
        kv_len=("i32", kv_len),
        heads=("i32", heads),
        group=("i32", heads // kv_heads),
        scale=("f32", scale * LOG2_E),
    )
    emu.launch(module.prefill, (-(-q_len // 128), heads), args, seed=2)
    expected = torch.empty(q.shape, dtype=torch.float64)
    visible = torch.arange(kv_len)[None, :] <= torch.arange(q_len)[:, None] + kv_len - q_len
    for head in range(heads):
        k, v = case.sequence(0, head // (heads // kv_heads))
        scores = (q[:, head].double() @ k.T * scale).masked_fill(~visible, float("-inf"))
        expected[:, head] = torch.softmax(scores, -1) @ v
    assert relative_error(out, expected) < 4e-3


@pytest.mark.parametrize("entry", ["last_arriver", "polling"])
def test_merge_of_splits(tmp_path, entry):
    splits, sequences = 4, 3
    module = load_text(tmp_path, kernel_text("split_merge"))
    x = torch.randn(sequences * splits, 8, 64)
    out, counter = torch.full((sequences, 8, 64), float("nan")), torch.zeros(2 * sequences, dtype=torch.int32)
    args = dict(x=("*f32", x), partial=("*f32", torch.empty_like(x)), out=("*f32", out), counter=("*i32", counter))
    emu.launch(getattr(module, entry), (splits, sequences), args, seed=3, workspace=("partial",))
    torch.testing.assert_close(out.double(), 2 * x.double().reshape(sequences, splits, 8, 64).sum(1), rtol=1e-6, atol=1e-6)
    assert not counter.any()
