"""Static split: every sequence cut by its own length alone."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tle_attn.components.schedulers.static_split import StaticSplit
from tle_attn.errors import SpecError
from tle_attn.spec import Argument
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel

TEXT = """
@jit
def tile_range(args, seq, kv_len):
    return kv_len * 0, cdiv(kv_len, TILE)


@jit
def test(args):
    seq, head, first, count, kv_len, slot, first_slot, parts, flags = task(args)
    out = args.read + (program_id(1) * num_programs(0) + program_id(0)) * 8
    store(out, seq * args.kv_heads + head)
    store(out + 1, first)
    store(out + 2, count)
    store(out + 3, kv_len)
    store(out + 4, slot)
    store(out + 5, first_slot)
    store(out + 6, parts)
    store(out + 7, flags)
"""


def tasks(lengths, kv_heads, splits, *, min_tokens=512, new_tokens=0, target="cpu", device="cpu") -> torch.Tensor:
    """Records [pair, part, 8]."""
    kernel = mini_kernel(TEXT, StaticSplit(splits=splits, min_tokens=min_tokens), arguments=[Argument("read", "*i32", "")])
    pairs = len(lengths) * kv_heads
    read = torch.full((pairs, splits, 8), -99, dtype=torch.int32, device=device)
    values = {"read": read, "kv_lens": torch.tensor(lengths, dtype=torch.int32, device=device), "new_tokens": new_tokens, "kv_heads": kv_heads}
    run_kernel(kernel, values, grid=(splits, pairs), target=target)
    return read.cpu()


def check(read: torch.Tensor, lengths: list[int], kv_heads: int, splits: int, min_tokens: int = 512) -> None:
    for pair, records in enumerate(read.tolist()):
        tiles = -(-lengths[pair // kv_heads] // 64)
        active = [r for r in records if r[4] != -2]
        assert all(r[0] == pair and r[3] == lengths[pair // kv_heads] and r[5] == pair * splits and r[7] == 0 for r in records)
        assert all(r[2] == 0 for r in records if r[4] == -2), "idle CTAs have nothing to do"
        assert [t for r in active for t in range(r[1], r[1] + r[2])] == list(range(tiles)), "every tile once, in order"
        assert len(active) == active[0][6] <= splits
        chunk = max(-(-tiles // splits), min_tokens // 64)
        assert all(r[2] == chunk for r in active[:-1]) and active[-1][2] <= chunk
        assert [r[4] for r in active] == ([-1] if len(active) == 1 else [pair * splits + i for i in range(len(active))])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(1, 2000), st.integers(1, 1_000_000)), min_size=1, max_size=6),
    kv_heads=st.integers(1, 3), splits=st.integers(1, 16), min_tokens=st.sampled_from([64, 512]),
)  # fmt: skip
def test_any_batch(lengths, kv_heads, splits, min_tokens):
    check(tasks(lengths, kv_heads, splits, min_tokens=min_tokens), lengths, kv_heads, splits, min_tokens)


@pytest.mark.parametrize("lengths,kv_heads,splits", [([0], 1, 4), ([1, 512, 513, 100_000], 2, 16), ([64 * 9], 1, 2)])
def test_batches_by_hand(target, device, lengths, kv_heads, splits):
    check(tasks(lengths, kv_heads, splits, target=target, device=device), lengths, kv_heads, splits)


def test_the_cut_does_not_depend_on_the_batch():
    alone = tasks([5000], 1, 8)[0]
    among = tasks([70_000, 5000, 3], 1, 8)[1]
    assert torch.equal(alone[:, 1:4], among[:, 1:4]) and torch.equal(alone[:, 6], among[:, 6])
    assert torch.equal(alone[:, 4] % 8, among[:, 4] % 8)


def test_new_tokens_are_added(target, device):
    assert tasks([63], 1, 2, new_tokens=2, target=target, device=device)[0, 0, 2:4].tolist() == [2, 65]


@pytest.mark.parametrize("make,message", [
    (lambda: StaticSplit(splits=0), "splits cannot be 0"), (lambda: StaticSplit(splits=129), "splits cannot be 129"), (lambda: StaticSplit(min_tokens=100), "min_tokens cannot be 100"),
])  # fmt: skip
def test_options(make, message):
    with pytest.raises(SpecError, match=message):
        make()
