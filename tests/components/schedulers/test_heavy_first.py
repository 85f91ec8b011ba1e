"""Heavy first: the planner's records against a plan in Python, and the queue that hands units out."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tle_attn.components.schedulers.heavy_first import UNIT_WORDS, HeavyFirst
from tle_attn.spec import Argument, Constant, Kernel, Problem
from tle_attn.testing.mini_kernel import mini_kernel, prefill_companions, run_kernel

#: query rows of a unit: of two consumers, of one
ROWS = 128, 64
POISON = -77

#: every CTA takes units as the mainloop's producer does and notes (who took it, its record)
QUEUE = """
@jit
def test(args):
    units, only = open_queue(args)
    total = units * args.query_heads
    item = program_id(0)
    while item < total:
        seq, q_start, row0, q_len, kv_len = unit_at(args, item // args.query_heads, units, only)
        at = args.taken + item * 8
        # another CTA's mark stays visible: each unit is to be taken once
        store(at, load(at) + 1)
        store(at + 1, seq)
        store(at + 2, q_start)
        store(at + 3, row0)
        store(at + 4, q_len)
        store(at + 5, kv_len)
        item = take_unit(args, total)
    leave_queue(args, total)
"""


def kernel(rows: int) -> Kernel:
    arguments = [Argument("taken", "*i32", "what was taken [units * heads, 8]")]
    constants = {"UNIT_ROWS": Constant(rows, "query rows of a unit")}
    return mini_kernel(QUEUE, HeavyFirst(), arguments=arguments, constants=constants, companions=prefill_companions(Problem()))


def units_of(q_lens: list[int], rows: int) -> int:
    return sum(-(-q // rows) for q in q_lens)


def work(q_len: int, kv_len: int, unit: int, rows: int) -> int:
    """The class of a unit: how far it sees, in units, where its sequence's cache is cut into whole units too."""
    return -(-max(kv_len - q_len, 0) // rows) + unit + 1


def in_order(q_lens: list[int], kv_lens: list[int], rows: int) -> list[list[int]]:
    """Records by falling class; among equals in the order of the sequences."""
    starts = torch.tensor([0, *q_lens]).cumsum(0).tolist()
    found = []
    for seq, (q, kv) in enumerate(zip(q_lens, kv_lens)):
        found += [(-work(q, kv, unit, rows), [seq, starts[seq], unit * rows, q, kv]) for unit in range(-(-q // rows))]
    return [record for _, record in sorted(found, key=lambda entry: (entry[0], entry[1][0]))]


def cu_seqlens(q_lens: list[int]) -> torch.Tensor:
    return torch.tensor([0, *q_lens]).cumsum(0).int()


def planned(q_lens: list[int], kv_lens: list[int], rows: int, target: str = "cpu", device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """The planner's records, with a header and room that it must not touch behind them."""
    units = torch.full((1 + units_of(q_lens, rows) + 3, UNIT_WORDS), POISON, dtype=torch.int32, device=device)
    values = {"cu_seqlens_q": cu_seqlens(q_lens).to(device), "kv_lens": torch.tensor(kv_lens, dtype=torch.int32, device=device), "batch": len(q_lens), "units": units}
    run_kernel(kernel(rows), values, grid=(len(q_lens),), entry="plan_units", target=target, seed=seed)
    return units.cpu()


def check(q_lens: list[int], kv_lens: list[int], rows: int = 128, **where) -> None:
    units = planned(q_lens, kv_lens, rows, **where)
    count = units_of(q_lens, rows)
    records = units[1 : 1 + count, :5].tolist()
    assert units[0, 0] == count, "the header"
    assert (units[0, 1:] == POISON).all() and (units[1 : 1 + count, 5:] == POISON).all() and (units[1 + count :] == POISON).all(), "nothing else is written"
    classes = [work(q, kv, row0 // rows, rows) for _, _, row0, q, kv in records]
    assert classes == sorted(classes, reverse=True), "heavy ones first"
    assert records == in_order(q_lens, kv_lens, rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("batch", [1, 2, 31, 127, 128, 129, 300])
def test_random_batches(target, device, seed, batch, rows):
    """Ragged queries, some sequences without any, with caches in front of them or fewer keys than queries."""
    if target == "tle-emulated" and batch > 128:
        pytest.skip("the cpu target runs the same text")
    q_lens = [int(x) for x in torch.randint(0, 700, (batch,)) * torch.randint(0, 2, (batch,))]
    q_lens[0] = max(q_lens[0], 1)
    kv_lens = [max(q + int(x), 0) for q, x in zip(q_lens, torch.randint(-200, 900, (batch,)))]
    check(q_lens, kv_lens, rows, target=target, device=device, seed=seed)


@pytest.mark.parametrize("q_lens,kv_lens", [
    ([0, 0, 5], [0, 9, 5]), ([128, 129, 127], [128, 129, 127]), ([1] * 40, [640] * 40), ([5000, 3], [5000, 3]), ([300, 300, 300], [300, 300, 300]), ([200, 100], [0, 0]),
    ([128 * 33], [128 * 33]), ([7, 128 * 32, 128 * 32 + 1], [10000, 128 * 32, 4 * 128]),
])  # fmt: skip
def test_edges(target, device, q_lens, kv_lens):
    """No queries, whole units, equal ones, more units of a sequence than are placed at a time, no keys."""
    check(q_lens, kv_lens, target=target, device=device)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 4500), st.integers(0, 5000)), min_size=1, max_size=20))
def test_any_batch(pairs):
    q_lens, kv_lens = [q for q, _ in pairs], [kv for _, kv in pairs]
    check(q_lens, kv_lens)


def test_no_queries_at_all(target, device):
    units = planned([0, 0], [5, 0], 128, target=target, device=device)
    assert units[0, 0] == 0 and (units[1:] == POISON).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("ctas", [1, 2, 5, 64])
@pytest.mark.parametrize("q_lens,kv_lens", [([300, 0, 129, 64], [300, 7, 900, 64]), ([500], [777]), ([3, 0], [9, 9])])
def test_every_unit_is_taken_once(target, device, seed, ctas, rows, q_lens, kv_lens):
    """By few CTAs or by one each, heads innermost; the queue is left as it was found, so that the next launch may start."""
    heads, count = 3, units_of(q_lens, rows)
    units = planned(q_lens, kv_lens, rows, target=target, device=device, seed=seed).to(device)
    queue = torch.zeros(2, dtype=torch.int32, device=device)
    expected = [record for record in in_order(q_lens, kv_lens, rows) for _ in range(heads)]
    for launch in range(2):
        taken = torch.zeros(count * heads, 8, dtype=torch.int32, device=device)
        values = {
            "cu_seqlens_q": cu_seqlens(q_lens).to(device), "kv_lens": torch.tensor(kv_lens, dtype=torch.int32, device=device), "batch": len(q_lens),
            "units": units, "query_heads": heads, "queue": queue, "taken": taken,
        }  # fmt: skip
        run_kernel(kernel(rows), values, grid=(min(ctas, count * heads),), target=target, seed=seed + launch)
        assert taken.cpu()[:, :6].tolist() == [[1, *record] for record in expected]
        assert not queue.any()
