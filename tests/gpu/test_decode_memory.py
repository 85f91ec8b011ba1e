"""What decode kernels read and write: poison in everything unused, offsets past 2**31."""

import pytest
import torch
from attrs import evolve

import tle_attn
from tests.gpu import kernels
from tests.gpu.helpers import check, compare_out, problem_for, run
from tle_attn.errors import InputError
from tle_attn.testing import DecodeProblem

CONFIGS = (*(kernels.config(kernels.DYNAMIC, q, page) for q, page in ((1, 64), (3, 16), (1, 128))), kernels.config(kernels.STATIC))
CONFIGS += (kernels.config(kernels.FP8), kernels.config(kernels.FP8_PER_TOKEN), kernels.config(kernels.FP8_PER_TOKEN, 1, 16))
CONFIGS += (kernels.config(kernels.KV_PER_TOKEN), kernels.config(kernels.KV_PER_TOKEN, 1, 16), kernels.config(kernels.KV_PER_TOKEN, 2, 128))
PARTIAL = (1, 13, 63, 65, 127, 3000, 0, 9001)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.label)
def test_poisoned_slots_change_nothing(config):
    """NaN in every slot without a key and in its scale, and block ids -1 and 2**31 - 1 where no page is: bit-equal to the run with zeros."""
    poisoned, zeros = (problem_for(config, PARTIAL, seed=20, poison=poison) for poison in (True, False))
    assert poisoned.v_cache.float().isnan().any()
    plan = config.plan(len(PARTIAL))
    assert torch.equal(run(plan, poisoned)[0], run(plan, zeros)[0])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.label)
def test_poisoned_workspace_changes_nothing(config):
    problem = problem_for(config, PARTIAL, seed=21)
    plan = config.plan(len(PARTIAL))
    first, _ = run(plan, problem)
    for name, tensor in plan.workspace.items():
        if name != "counters":
            tensor.fill_(torch.nan if tensor.is_floating_point() else -(2**30))
    assert torch.equal(run(plan, problem)[0], first)


def test_used_page_out_of_range_in_debug_mode():
    config = CONFIGS[0]
    problem = problem_for(config, PARTIAL, seed=22)
    pages = problem.k_cache.shape[0]
    problem.block_ids[5, 7] = pages
    out = problem.new_output()
    with pytest.raises(InputError, match=rf"block_ids\[5, 7\]: page {pages} .*batch 5, logical page 7"):
        run(config.plan(len(PARTIAL)), problem, out, debug=True)
    assert out.isnan().all(), "something was launched"


def test_offsets_past_2_31():
    """K and V as slices of one cache of 2**31 elements and some more (4.3 GB): the last pages start beyond 2**31."""
    pages, page, heads, dim = 16386, 64, 8, 128
    cache = torch.empty(pages, 2, page, heads, dim, dtype=torch.bfloat16, device="cuda")
    generator = torch.Generator("cuda").manual_seed(23)
    used = (16383, 16384, 0, 16385)
    for number in used:
        cache[number] = torch.randn(cache.shape[1:], generator=generator, device="cuda")
    problem = DecodeProblem(
        q=torch.randn(2, 64, dim, generator=generator, dtype=torch.bfloat16, device="cuda"),
        k_cache=cache[:, 0],
        v_cache=cache[:, 1],
        block_ids=torch.tensor(used, dtype=torch.int32, device="cuda").view(2, 2),
        kv_lens=torch.tensor([100, 128], dtype=torch.int32, device="cuda"),
        q_scale=None,
        k_scale=None,
        v_scale=None,
        query_tokens=1,
    )
    config = kernels.config(kernels.DYNAMIC, kv_heads=8)
    plan = config.plan(2)
    compare_out(plan, problem, run(plan, problem)[0])


@pytest.mark.parametrize("recipe", [kernels.FP8, kernels.FP8_PER_TOKEN, kernels.KV_PER_TOKEN])
def test_fp8_offsets_past_2_31(recipe):
    """The same in fp8; the packed scales of the last pages are 2**31 float32 numbers and more (8.6 GB) behind the first."""
    config = kernels.config(recipe, kv_heads=8)
    small = problem_for(config, (65, 128), seed=26, extra_pages=0)
    extra = 0 if recipe == kernels.FP8 else 2
    pages = 2**31 // (2 * (64 + extra) * 8 * 128 // (4 if extra else 1)) + 3
    joint = torch.empty(pages, 2, 64 + extra, 8, 128, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    used = torch.tensor([pages - 3, pages - 2, 0, pages - 1], device="cuda")
    block_ids = small.block_ids.clone()
    for new, old in enumerate(range(len(small.k_cache))):
        page = used[new]
        joint[page, 0, :64], joint[page, 1, :64] = small.k_cache[old], small.v_cache[old]
        if extra:
            joint[page, 0, 64:] = small.k_scale[old]
        if recipe == kernels.KV_PER_TOKEN:
            joint[page, 1, 64:] = small.v_scale[old]
        block_ids[small.block_ids == old] = page.int()
    changed = {"k_cache": joint[:, 0, :64], "v_cache": joint[:, 1, :64], "block_ids": block_ids} | ({"k_scale": joint[:, 0, 64:]} if extra else {})
    if recipe == kernels.KV_PER_TOKEN:
        changed["v_scale"] = joint[:, 1, 64:]
    plan = config.plan(2)
    assert torch.equal(run(plan, evolve(small, **changed))[0], run(plan, small)[0])


def test_query_rows_of_padding():
    """24 query rows of which 21 are valid, the others NaN: valid rows are right, other output rows as they were."""
    config = kernels.config(kernels.DYNAMIC, 3)
    problem = problem_for(config, (64, 3, 1, 130, 65, 9, 12_800), seed=27)
    rows, heads, dim = problem.q.shape
    q = torch.full((24, heads, dim), torch.nan, dtype=torch.bfloat16, device="cuda")
    q[:rows] = problem.q
    out = torch.full((24, heads, dim), 7.0, dtype=torch.bfloat16, device="cuda")
    plan = config.plan(7)
    run(plan, evolve(problem, q=q[:rows]), out[:rows])
    compare_out(plan, problem, out[:rows])
    assert (out[rows:] == 7.0).all()


def test_wide_page_table_rows():
    """A page table that is a slice of a wider one."""
    config = CONFIGS[0]
    problem = problem_for(config, seed=24)
    wide = torch.full((problem.block_ids.shape[0], 5000), -1, dtype=torch.int32, device="cuda")
    wide[:, : problem.block_ids.shape[1]] = problem.block_ids
    plan = config.plan(len(problem.kv_lens))
    out = problem.new_output()
    plan.run(problem.q, problem.k_cache, problem.v_cache, wide[:, : problem.block_ids.shape[1]], problem.kv_lens, out=out)
    compare_out(plan, problem, out)


def test_empty_batch():
    plan = tle_attn.plan(kernels.config(kernels.DYNAMIC).kernel(), batch=0, query_heads=8, kv_heads=1)
    cache = torch.zeros(1, 64, 1, 128, dtype=torch.bfloat16, device="cuda")
    empty = torch.empty(0, 8, 128, dtype=torch.bfloat16, device="cuda")
    ids = torch.empty(0, 4, dtype=torch.int32, device="cuda")
    out, _ = plan.run(empty, cache, cache, ids, ids[:, 0])
    assert out.shape == (0, 8, 128)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.label)
def test_every_sequence_is_empty(config):
    check(config, problem_for(config, (0, 0, 0), seed=25))
