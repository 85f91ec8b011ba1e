"""Selected tiles: which tiles of a list count, whose pages are read, and that the others are not touched."""

import pytest
import torch

import tle_attn
from tests.cases.helpers import check, kernel_of, plan_for
from tle_attn.errors import InputError, SpecError
from tle_attn.random_problems import problem_for
from tle_attn.testing import compare
from tle_attn.verify import oracle_options

RECIPE = "variants/decode_bf16_selected"


def run(kernel, problem, lists, counts, **options):
    plan = plan_for(kernel, problem)
    return plan.run(**problem.inputs, out=problem.new_output(), selected_tiles=lists, selected_counts=counts, **options)


@pytest.mark.parametrize("page", [16, 64])
def test_tiles_that_are_not_selected_are_not_read(page):
    """Their page ids are poison, and the result is that of attention over the keys of the list."""
    kernel = kernel_of(RECIPE, {}, page=page, query_tokens=2)
    problem = problem_for(kernel, [700, 64, 3, 0], 2, seed=5)
    lists = torch.tensor([[[-1, 0, 7, 10], [2, 3, 9, 10]], [[0, 99, 99, 99]] * 2, [[0, 99, 99, 99]] * 2, [[99] * 4] * 2], dtype=torch.int32)
    counts = torch.tensor([4, 1, 1, 0], dtype=torch.int32)

    def rule(key, query, head, sequence):
        return ((key[:, None] // 64) == lists[sequence, :, : counts[sequence]][head // kernel.problem.group]).any(-1)

    expected, _ = problem.reference(p_quant=None, mask_steps=(rule,))
    table = problem.block_ids
    per_tile = 64 // page
    kept = {t for head in lists[0].tolist() for t in head}
    for tile in set(range(11)) - kept:
        table[0, tile * per_tile : (tile + 1) * per_tile] = 2**31 - 1
    out, _ = run(kernel, problem, lists, counts)
    compare(out, expected, rms=4e-3, name_row=problem.name_row)


def test_all_tiles_selected_is_plain_attention():
    kernel = kernel_of(RECIPE)
    problem = problem_for(kernel, [1000, 130], seed=6)
    lists = torch.arange(16, dtype=torch.int32).repeat(2, 1, 1)
    counts = torch.tensor([16, 3], dtype=torch.int32)
    check(kernel_of("hy3/decode_bf16"), problem, run(kernel, problem, lists, counts))


def test_refused():
    with pytest.raises(SpecError, match="pages of 128"):
        tle_attn.load(RECIPE).kernel(page=128)
    with pytest.raises(SpecError, match="two masks both say which tiles are loaded"):
        recipe = tle_attn.load(RECIPE)
        recipe.tables["mask"].append({"block": "sliding_window", "window": 100})
        recipe.kernel()
    with pytest.raises(SpecError, match="has no pages"):
        tle_attn.load(RECIPE).set({"loader.block": "contiguous_tma"}).kernel()
    kernel = kernel_of(RECIPE)
    problem = problem_for(kernel, [100], seed=1)
    with pytest.raises(InputError, match=r"selected_tiles: shape \(1, 2, 4\)"):
        run(kernel, problem, torch.zeros(1, 2, 4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    with pytest.raises(InputError, match="selected_width: not to be given"):
        run(kernel, problem, torch.zeros(1, 1, 4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), selected_width=4)
    with pytest.raises(InputError, match="selected_counts: this kernel needs it"):
        plan_for(kernel, problem).schedule(**problem.lengths)


def test_one_map_serves_lists_of_the_same_counts(seed):
    """As layers have them; a map with page ids in its records would be one list's."""
    kernel = kernel_of(RECIPE)
    problem = problem_for(kernel, [3000], 1, seed=seed)
    counts = torch.tensor([10], dtype=torch.int32)
    first, other = (torch.arange(start, start + 10, dtype=torch.int32).view(1, 1, 10) for start in (0, 37))
    plan = plan_for(kernel, problem)
    plan.schedule(**problem.lengths, selected_counts=counts)
    for lists in (first, other):
        given = {"selected_tiles": lists, "selected_counts": counts}
        out, _ = plan.run(**problem.inputs, out=problem.new_output(), **given, scheduled=True, debug=True)
        compare(out, problem.reference(p_quant=None, **oracle_options(kernel, given))[0], rms=4e-3)
