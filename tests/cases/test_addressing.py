"""Cases 1 to 3: offsets past 2**31, page ids that are not pages, tensors of the wrong integer type."""

import re

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import DYNAMIC, FAMILY, FP8, FP8_PER_TOKEN, KV_PER_TOKEN, STATIC, bits, check, kernel_of, launch, plan_for, problem_for, run
from tle_attn.errors import InputError, InputTypeError
from tle_attn.testing import DecodeProblem


def sparse(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that takes memory only where it is written: the system commits the pages of a large allocation one by one."""
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        pytest.skip(f"this machine does not lend {torch.Size(shape).numel() * dtype.itemsize:,} bytes of address space: {error}")


def spread_out(tensor: torch.Tensor, offset: int = 2**31) -> torch.Tensor:
    """The same values with the last index of the first dimension `offset` elements or more from the first."""
    stride = -(-offset // (len(tensor) - 1) // 64) * 64
    wide = sparse((stride * (len(tensor) - 1) + tensor[0].numel(),), tensor.dtype)
    view = wide.as_strided(tensor.shape, (stride, *tensor.contiguous().stride()[1:]))
    view.copy_(tensor)
    return view


@pytest.mark.parametrize("recipe", [*FAMILY, KV_PER_TOKEN])
def test_1_pages_past_2_31_elements(recipe, seed):
    """K, V and the packed scales of one joint cache [pages, 2, rows, 8, 128]; the pages in use end beyond 2**31 elements of their own types."""
    kernel = kernel_of(recipe)
    small = problem_for(kernel, (65, 128), kv_heads=8, seed=seed, extra_pages=0)
    extra = 0 if small.k_scale is None or small.k_scale.dim() == 1 else 2
    per_page = 2 * (64 + extra) * 8 * 128
    # fp8 scales are counted in float32: a fourth of the elements
    pages = 2**31 // (per_page // (4 if extra else 1)) + 3
    joint = sparse((pages, 2, 64 + extra, 8, 128), small.k_cache.dtype)
    used = torch.tensor([pages - 3, pages - 2, 0, pages - 1])
    joint[used, 0, :64], joint[used, 1, :64] = small.k_cache, small.v_cache
    changed = {"k_cache": joint[:, 0, :64], "v_cache": joint[:, 1, :64], "block_ids": small.block_ids.clone()}
    if extra:
        joint[used, 0, 64:] = small.k_scale
        changed["k_scale"] = joint[:, 0, 64:]
    if recipe == KV_PER_TOKEN:
        joint[used, 1, 64:] = small.v_scale
        changed["v_scale"] = joint[:, 1, 64:]
    live = small.block_ids.clamp(0, len(used) - 1).long()
    changed["block_ids"][:, :2] = used[live[:, :2]].int()
    problem = evolve(small, **changed)
    assert int(problem.block_ids[:, :2].max()) * per_page >= 2**31
    check(kernel, problem, run(kernel, problem))


@pytest.mark.parametrize("recipe,name", [(STATIC, "q"), (STATIC, "block_ids"), (FP8, "q"), (FP8, "q_scale")])
def test_1_other_tensors_past_2_31_elements(recipe, name, seed):
    """The same fault in what else has a stride that the caller chooses."""
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (100, 0, 65), seed=seed)
    far = evolve(problem, **{name: spread_out(getattr(problem, name))})
    assert getattr(far, name).stride(0) * 2 >= 2**31
    check(kernel, far, run(kernel, far))


@pytest.mark.parametrize("recipe,page", [(DYNAMIC, 64), (DYNAMIC, 16), (FP8, 64), (FP8_PER_TOKEN, 16)])
def test_2_unused_block_ids_change_nothing(recipe, page, seed):
    """-1 and 2**31 - 1 past a sequence's pages, also where a tile of several pages ends within them."""
    kernel = kernel_of(recipe, page=page)
    problem = problem_for(kernel, (1, 0, 130, 64, page + 1), seed=seed, poison=False)
    width, page_counts = problem.block_ids.shape[1], -(-problem.kv_lens // page)
    unused = torch.arange(width) >= page_counts[:, None]
    assert unused.any(1).all()
    expected = bits(run(kernel, problem)[0])
    for number in (-1, 2**31 - 1):
        marked = evolve(problem, block_ids=torch.where(unused, number, problem.block_ids))
        assert bits(run(kernel, marked)[0]) == expected
        assert bits(run(kernel, marked, debug=True)[0]) == expected, "debug mode looks at used ids only"


@pytest.mark.parametrize("recipe", FAMILY)
@pytest.mark.parametrize("number", [-1, 2**31 - 1, "pages"])
def test_2_used_page_out_of_range_in_debug_mode(recipe, number, seed):
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (5, 200), seed=seed)
    pages = problem.k_cache.shape[0]
    number = pages if number == "pages" else number
    problem.block_ids[1, 2] = number
    out = problem.new_output()
    with pytest.raises(InputError, match=re.escape(f"block_ids[1, 2]: page {number} is in use, but the cache has pages 0 to {pages - 1} (batch 1, logical page 2)")):
        run(kernel, problem, out=out, debug=True)
    assert out.isnan().all(), "something was launched"


def test_2_caches_of_different_sizes(seed):
    """A page that K has and V has not: refused without a look at the page ids."""
    kernel = kernel_of(DYNAMIC)
    problem = problem_for(kernel, (200,), seed=seed)
    cut = evolve(problem, v_cache=problem.v_cache[: int(problem.block_ids[0, :4].max())])
    with pytest.raises(InputError, match=r"v_cache: \d+ pages where k_cache has \d+"):
        run(kernel, cut)


def test_2_pages_before_a_window_are_not_in_use(seed):
    """A server gives pages back that no query will see again."""
    kernel = kernel_of("variants/decode_bf16_window", {"mask[1].window": 100})
    problem = problem_for(kernel, (400,), seed=seed)
    problem.block_ids[0, : (400 - 100) // 64] = -1
    check(kernel, problem, run(kernel, problem, debug=True))


@pytest.mark.parametrize("recipe", FAMILY)
@pytest.mark.parametrize("name", ["block_ids", "kv_lens"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32])
def test_3_wrong_integer_type_names_the_tensor(recipe, name, dtype):
    kernel = kernel_of(recipe)
    problem = problem_for(kernel, (5, 64))
    wrong: DecodeProblem = evolve(problem, **{name: getattr(problem, name).to(dtype)})
    plan = plan_for(kernel, problem)
    with pytest.raises(InputTypeError, match=rf"^{name}: dtype {str(dtype).removeprefix('torch.')} where int32 is wanted$"):
        launch(plan, wrong)
    assert issubclass(InputTypeError, TypeError)


def test_3_lengths_of_the_planner():
    kernel = kernel_of(DYNAMIC)
    problem = problem_for(kernel, (5, 64))
    with pytest.raises(TypeError, match="^kv_lens: dtype int64 where int32 is wanted$"):
        plan_for(kernel, problem).schedule(problem.kv_lens.long())


@pytest.mark.parametrize("name,dtype", [("q_scale", torch.float64), ("k_scale", torch.bfloat16), ("v_scale", torch.float16)])
def test_3_scales_of_the_wrong_type(name, dtype):
    """The same fault in the scales."""
    for recipe in (FP8, FP8_PER_TOKEN):
        kernel = kernel_of(recipe)
        problem = problem_for(kernel, (5,))
        with pytest.raises(InputTypeError, match=f"^{name}: dtype"):
            run(kernel, evolve(problem, **{name: torch.ones(problem.k_scale.shape if name == "k_scale" else getattr(problem, name).shape, dtype=dtype)}))
