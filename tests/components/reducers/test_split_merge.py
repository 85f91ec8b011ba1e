"""Split merge against `merge_states` in float64: by the last arriver, by rows and by slices; any order of arrival, counters zero afterwards."""

from functools import lru_cache

import pytest
import torch
from attrs import frozen

import tle_attn
from tle_attn.components.epilogues.store import StoreEpilogue
from tle_attn.components.reducers.split_merge import SplitMerge
from tle_attn.errors import SpecError
from tle_attn.oracle import merge_states
from tle_attn.spec import Argument, DType, Kernel, Problem
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel

#: CTA c has state c of the inputs, and the task that record c describes: pair, sequence, head, slot, first slot, parts, flags
TEXT = """
@jit
def test(args):
    cta = program_id(0)
    record = args.records + cta * 8
    o_tile = mma_zeros(HEAD_DIM, COLUMNS, DTYPE)
    l_tile = mma_zeros(TILE, COLUMNS, DTYPE)
    o = load(args.state_o + cta * (HEAD_DIM * COLUMNS) + (rows(o_tile) * COLUMNS)[:, None] + cols(o_tile)[None, :])
    l = load(args.state_l + cta * (TILE * COLUMNS) + (rows(l_tile) * COLUMNS)[:, None] + cols(l_tile)[None, :])
    m = load(args.state_m + cta * COLUMNS + cols(o_tile))
    finish(args, o, m, l, 1.0, load(record + 1), load(record + 2), load(record + 3), load(record + 4), load(record + 5), load(record + 6), 0, 0, 0)
"""


@frozen
class Split:
    """States of every part of every (sequence, head) pair: o [CTAs, d, n], l [CTAs, 64, n] per key row, m [CTAs, n]; one record a CTA."""

    records: torch.Tensor
    o: torch.Tensor
    l: torch.Tensor
    m: torch.Tensor
    problem: Problem
    kv_heads: int

    def rows_of(self, pair: int) -> list[int]:
        return [c for c, r in enumerate(self.records.tolist()) if r[0] == pair and r[3] != -2]

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(out [tokens, heads, d], base-2 lse [tokens, heads]) in float64."""
        p = self.problem
        pairs = int(self.records[:, 0].max()) + 1
        out = torch.zeros(pairs // self.kv_heads * p.query_tokens, self.kv_heads * p.group, p.head_dim, dtype=torch.float64)
        lse = torch.full(out.shape[:2], -torch.inf, dtype=torch.float64)
        for pair in range(pairs):
            rows = self.rows_of(pair)
            sums = self.l[rows].double().sum(1)[:, : p.rows]
            states = (self.o[rows].double()[:, :, : p.rows] / sums[:, None]).transpose(1, 2), self.m[rows].double()[:, : p.rows] + torch.log2(sums)
            merged, merged_lse = merge_states(*states, lse_base="2")
            seq, head = divmod(pair, self.kv_heads)
            tokens, heads = slice(seq * p.query_tokens, (seq + 1) * p.query_tokens), slice(head * p.group, (head + 1) * p.group)
            out[tokens, heads] = merged.view(p.query_tokens, p.group, p.head_dim)
            lse[tokens, heads] = merged_lse.view(p.query_tokens, p.group)
        return out, lse


def split(parts: list[int], *, problem: Problem, kv_heads: int = 1, resident: bool = True, idle: int = 0, spread: float = 20.0) -> Split:
    """Random states for `parts[pair]` parts of each pair; CTAs of different pairs interleave."""
    n, d = problem.columns, problem.head_dim
    records, first = [], 0
    for pair, count in enumerate(parts):
        for part in range(count):
            records.append([pair, pair // kv_heads, pair % kv_heads, first + part if count > 1 else -1, first, count, int(resident), 0])
        first += count if count > 1 else 0
    records += [[0, 0, 0, -2, 0, 1, int(resident), 0]] * idle
    records = [records[i] for i in torch.randperm(len(records)).tolist()]
    ctas = len(records)
    m = spread * torch.randn(ctas, n)
    return Split(torch.tensor(records, dtype=torch.int32), 30 * torch.randn(ctas, d, n), torch.rand(ctas, 64, n), m, problem, kv_heads)


@lru_cache
def merge_kernel(problem: Problem, poll_above: int, slice_above: int) -> Kernel:
    names = {"records": "*i32", "state_o": "*f32", "state_l": "*f32", "state_m": "*f32"}
    blocks = SplitMerge(poll_above=poll_above, slice_above=slice_above if poll_above else None), StoreEpilogue(dtype=DType.F32, lse="2")
    return mini_kernel(TEXT, *blocks, problem=problem, arguments=[Argument(n, t, "") for n, t in names.items()])


def run(
    work: Split, *, poll_above: int = 1, slice_above: int = 8, target: str = "cpu", device: str = "cpu", seed: int = 0, counters: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, lse, counters) of a launch; the outputs start poisoned, the counters at zero unless they are given."""
    p, ctas = work.problem, len(work.records)
    pairs = int(work.records[:, 0].max()) + 1
    out = torch.full((pairs // work.kv_heads * p.query_tokens, work.kv_heads * p.group, p.head_dim), torch.nan, device=device)
    lse = torch.full(out.shape[:2], torch.nan, device=device)
    counters = torch.zeros(2 * pairs, dtype=torch.int32, device=device) if counters is None else counters
    values = {
        "records": work.records, "state_o": work.o, "state_l": work.l, "state_m": work.m, "partial_o": torch.empty(ctas * p.columns * p.head_dim),
        "partial_ml": torch.empty(ctas * 2 * p.columns), "kv_heads": work.kv_heads, "out_token_stride": out.stride(0), "out_head_stride": out.stride(1),
    }  # fmt: skip
    values = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    run_kernel(merge_kernel(p, poll_above, slice_above), {**values, "out": out, "lse": lse, "counters": counters}, grid=(ctas,), target=target, seed=seed)
    return out.cpu(), lse.cpu(), counters.cpu()


def check(work: Split, results: tuple[torch.Tensor, ...]) -> None:
    out, lse, counters = results
    expected, expected_lse = work.expected()
    assert (out.double() - expected).norm() <= 1e-5 * expected.norm()
    finite = torch.isfinite(expected_lse)
    assert torch.equal(torch.isfinite(lse), finite) and ((lse.double() - expected_lse).abs() < 1e-4 + 1e-6 * expected_lse.abs())[finite].all()
    assert not counters.any(), "the next launch finds them at zero"


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_last_arriver(target, device, problem, seed, parts):
    work = split([parts], problem=problem)
    check(work, run(work, poll_above=parts, target=target, device=device, seed=seed))


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_shares_of_rows(target, device, problem, seed, parts):
    work = split([parts], problem=problem)
    check(work, run(work, target=target, device=device, seed=seed))


@pytest.mark.parametrize("parts", [9, 17, 40])
def test_shares_of_slices(target, device, problem, seed, parts):
    work = split([parts], problem=problem)
    check(work, run(work, target=target, device=device, seed=seed))


@pytest.mark.parametrize("slice_above,parts", [(0, 3), (1, 2), (100, 20)])
def test_shares_of_either_kind_for_any_number_of_parts(target, device, problem, seed, slice_above, parts):
    """Fewer parts than shares, and more partials than are read at a time."""
    work = split([parts, 1, parts + 1], problem=problem)
    check(work, run(work, slice_above=slice_above, target=target, device=device, seed=seed))


def test_rows_give_the_bits_of_the_last_arriver(problem, seed):
    work = split([7, 3], problem=problem)
    shared, alone = run(work, seed=seed), run(work, poll_above=8, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(shared, alone))


@pytest.mark.parametrize("head_dim", [64, 256])
def test_other_head_dims(target, device, seed, head_dim):
    work = split([3, 12, 8], problem=Problem(head_dim=head_dim, query_tokens=3))
    check(work, run(work, target=target, device=device, seed=seed))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_many_sequences_in_one_launch(target, device, seed, kv_heads):
    """Unsplit ones, short and long merges, and idle CTAs, in any order of launch."""
    work = split([1, 12, 3, 1, 9, 2], problem=Problem(query_tokens=2), kv_heads=kv_heads, idle=3)
    check(work, run(work, target=target, device=device, seed=seed))


def test_no_polling_where_not_all_ctas_are_resident(target, device, seed):
    """The records say so: then the last arriver merges, however many parts there are."""
    work = split([20, 11], problem=Problem(), resident=False)
    check(work, run(work, target=target, device=device, seed=seed))


def test_never_polling(target, device, seed):
    work = split([20], problem=Problem())
    check(work, run(work, poll_above=0, target=target, device=device, seed=seed))


@pytest.mark.parametrize("parts", [4, 12])
def test_empty_parts_and_empty_rows(target, device, seed, parts):
    """A part that saw no key for a row has sum 0; a row without any key gives 0 and -inf."""
    problem = Problem()
    work = split([parts], problem=problem)
    work.l[1:3], work.o[1:3], work.m[1:3] = 0.0, 0.0, -1e30
    work.l[:, :, 2], work.o[:, :, 2], work.m[:, 2] = 0.0, 0.0, -1e30
    out, lse, counters = run(work, target=target, device=device, seed=seed)
    assert not out[0, 2].any() and lse[0, 2] == -torch.inf
    rest = [0, 1, 3, 4, 5, 6, 7]
    work.l[:, :, 2] = 1.0  # the reference divides by it
    expected, _ = work.expected()
    assert (out[0, rest].double() - expected[0, rest]).norm() <= 1e-5 * expected[0, rest].norm() and not counters.any()


def test_distant_maxima_do_not_overflow(target, device, seed):
    work = split([12, 5], problem=Problem(), spread=1000.0)
    check(work, run(work, target=target, device=device, seed=seed))


@pytest.mark.parametrize("parts", [5, 11])
def test_the_order_of_arrival_changes_no_bit(parts):
    work = split([parts, parts], problem=Problem(head_dim=64))
    results = {run(work, seed=seed)[0].numpy().tobytes() for seed in range(12)}
    assert len(results) == 1


def test_a_launch_leaves_the_workspace_ready_for_the_next():
    """The counters of one launch serve the next one, with other states."""
    counters = torch.zeros(4, dtype=torch.int32)
    for seed in range(4):
        work = split([10, 3] if seed % 2 else [2, 14], problem=Problem(head_dim=64))
        check(work, run(work, seed=seed, counters=counters))


@pytest.mark.parametrize("recipe,options", [("hy3/decode_bf16_static", {}), ("hy3/decode_bf16", {"reduce.poll_above": 0})])
def test_slices_where_nobody_waits_are_refused(recipe, options):
    with pytest.raises(SpecError, match="reduce.slice_above: slice_above has no effect where the last CTA to arrive always merges"):
        tle_attn.load(recipe).set(options | {"reduce.slice_above": 3}).kernel()
    assert not tle_attn.load(recipe).set(options).kernel().mainloop.reduce.slice_above
