"""What decode kernels read and write: poison in everything unused, offsets past 2**31."""

import pytest
import torch

import tle_attn
from tests.gpu import kernels
from tests.gpu.helpers import check, compare_out, problem_for, run
from tle_attn.errors import InputError
from tle_attn.testing import DecodeProblem

CONFIGS = (*(kernels.config(kernels.DYNAMIC, q, page) for q, page in ((1, 64), (3, 16), (1, 128))), kernels.config(kernels.STATIC))
CONFIGS += (kernels.config(kernels.FP8), kernels.config(kernels.FP8_PER_TOKEN), kernels.config(kernels.FP8_PER_TOKEN, 1, 16))
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
