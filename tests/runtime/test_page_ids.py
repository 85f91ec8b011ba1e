"""Page ids in task records: what the planner writes, whose page table a map is for, and what is refused."""

import pytest
import torch

import tle_attn
from tests.cases.helpers import check, kernel_of, launch, plan_for
from tle_attn.errors import InputError, SpecError
from tle_attn.random_problems import problem_for
from tle_attn.spec.tasks import IDLE, RECORD, RECORD_PAGES, SLOT_WORD
from tle_attn.verify import verify_kernel

IDS = {"schedule.page_ids": True, "schedule.min_tokens": 64}
LENGTHS = [1, 0, 64, 65, 3000, 700, 129]


def made(recipe="hy3/decode_bf16", options=IDS, lengths=LENGTHS, **problem):
    kernel = kernel_of(recipe, options, **problem)
    case = problem_for(kernel, lengths, 1, seed=5)
    return kernel, case, plan_for(kernel, case)


@pytest.mark.parametrize("page", [16, 64, 128])
def test_records_hold_the_first_ids_of_their_task(page):
    kernel, case, plan = made(page=page)
    plan.schedule(**case.lengths)
    records = plan.workspace["tasks"].view(-1, RECORD + RECORD_PAGES)
    busy = [record for record in records.tolist() if record[SLOT_WORD] != IDLE]
    assert len(busy) > len(LENGTHS)
    for record in busy:
        seq, first, kv_len = record[0], record[1] * 64 // page, record[3]
        row = case.block_ids[seq].tolist()
        expected = [row[i] if i * page < kv_len else -1 for i in range(first, first + RECORD_PAGES)]
        assert record[RECORD:] == expected


@pytest.mark.parametrize("recipe", ["hy3/decode_fp8", "hy3/decode_fp8_per_token", "variants/decode_fp8_kv_per_token", "variants/decode_bf16_window", "variants/decode_bf16_selected", "variants/decode_bf16_detached"])
@pytest.mark.parametrize("page", [16, 64])
def test_results(recipe, page):
    """Blocks that choose pages, scales that are found through them, and an early launch."""
    early = {"schedule.pdl": True} if page == 64 else {}
    report = verify_kernel(kernel_of(recipe, IDS | early, page=page))
    assert report.ok, report.failure


def test_a_task_of_more_pages_than_a_record_holds():
    kernel, case, plan = made(options={"schedule.page_ids": True}, lengths=[RECORD_PAGES * 16 * 3 + 5], page=16)
    check(kernel, case, launch(plan, case))


def test_a_map_needs_its_page_table():
    kernel, case, plan = made()
    with pytest.raises(InputError, match=r"block_ids: missing; the task records of hy3/decode_bf16 hold page ids \(schedule.page_ids\)"):
        plan.schedule(case.kv_lens)
    with pytest.raises(InputError, match=r"block_ids: shape \(2, .*\) where \[batch, pages of the longest sequence\]"):
        plan.schedule(case.kv_lens, block_ids=case.block_ids[:2])


def test_debug_names_a_map_of_another_batch():
    """A page that moves, and for every recipe with a task map a length that changes."""
    kernel, case, plan = made()
    plan.schedule(**case.lengths)
    plan.run(**case.inputs, scheduled=True, debug=True)
    moved = case.block_ids.clone()
    moved[4, [0, 1]] = moved[4, [1, 0]]
    with pytest.raises(InputError, match="scheduled: the task map is another batch's; plan it again where kv_lens or block_ids change"):
        plan.run(**case.inputs | {"block_ids": moved}, scheduled=True, debug=True)
    kernel, case, plan = made(options={})
    plan.schedule(**case.lengths)
    with pytest.raises(InputError, match="scheduled: the task map is another batch's"):
        plan.run(**case.inputs | {"kv_lens": case.kv_lens // 2}, scheduled=True, debug=True)


@pytest.mark.parametrize("page_ids", [True, False])
def test_debug_does_not_look_at_what_an_earlier_batch_left(page_ids):
    """A batch with fewer tasks leaves the records behind its own as they were, but idle."""
    kernel = kernel_of("hy3/decode_bf16", IDS | {"schedule.page_ids": page_ids})
    plan = plan_for(kernel, problem_for(kernel, [3000], 1, seed=1))
    for length in (3000, 64):
        case = problem_for(kernel, [length], 1, seed=length)
        plan.schedule(**case.lengths)
        plan.run(**case.inputs, scheduled=True, debug=True)


def test_a_map_of_ids_serves_every_layer():
    """Caches of other layers have the same page table."""
    kernel, case, plan = made()
    other = problem_for(kernel, LENGTHS, 1, seed=6)
    plan.schedule(**case.lengths)
    for layer in (case, other):
        tensors = layer.inputs | {"block_ids": case.block_ids, "kv_lens": case.kv_lens}
        if layer is other:
            pages = torch.empty_like(layer.k_cache), torch.empty_like(layer.v_cache)
            for cache, source in zip(pages, (layer.k_cache, layer.v_cache)):
                cache.fill_(float("nan"))
                for b, length in enumerate(LENGTHS):
                    used = -(-length // kernel.problem.page)
                    cache[case.block_ids[b, :used].long()] = source[layer.block_ids[b, :used].long()]
            tensors |= dict(zip(("k_cache", "v_cache"), pages))
        check(kernel, layer, plan.run(**tensors, scheduled=True))


def test_cascade_takes_both_tables():
    plan = tle_attn.cascade(tle_attn.load("hy3/decode_bf16").set(IDS), groups=[2], query_heads=8, kv_heads=1, target="cpu")
    prefix, suffix = torch.tensor([64], dtype=torch.int32), torch.tensor([5, 70], dtype=torch.int32)
    ids = {"prefix_ids": torch.zeros(1, 1, dtype=torch.int32), "suffix_ids": torch.tensor([[1, 0], [2, 3]], dtype=torch.int32)}
    for name in ids:
        with pytest.raises(InputError, match=f"{name}: missing"):
            plan.schedule(prefix, suffix, **{other: ids[other] for other in ids if other != name})
    with pytest.raises(InputError, match="suffix_lens: shape"):
        plan.schedule(prefix, suffix[:1], **ids)
    plan.schedule(prefix, suffix, **ids)


def test_refused():
    with pytest.raises(SpecError, match="contiguous_tma has no pages"):
        kernel_of("variants/decode_bf16_contiguous", {"schedule.page_ids": True})
    with pytest.raises(SpecError, match="page_ids"):
        kernel_of("hy3/decode_bf16_static", {"schedule.page_ids": True})
