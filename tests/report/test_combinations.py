"""The page of combinations is what composing says now, and a sample of its cells is run again."""

import pytest

from tle_attn.recipe import list_recipes, load
from tle_attn.report import combinations
from tle_attn.report.combinations import Cell
from tle_attn.verify import EMULATED


def test_the_page_is_current():
    """Every cell that is not refused is "ok" (TLE has no clusters in warp-specialised kernels): a wrong one would show as a difference."""
    cells = {names: combinations.pair(*names, run=False) for names in combinations.pairs()}
    recipes = {}
    for name in list_recipes():
        kernel = load(name).kernel()
        without = ("tle-emulated",) if kernel.resources.cluster > 1 else ()
        recipes[name] = (kernel.mainloop.PHASE, {target: Cell("-" if target in without else "ok") for target in EMULATED})
    assert combinations.WRITTEN.read_text() == combinations.render(cells, recipes), "run python -m tle_attn.report.combinations"


@pytest.mark.parametrize("names", combinations.sampled(8), ids=" + ".join)
def test_a_sample_of_pairs(names):
    cell = combinations.pair(*names)
    assert cell.text in ("ok", "-"), cell.reason


def test_a_wrong_kernel_is_not_ok(monkeypatch):
    from tle_attn.components.scores.alibi import Alibi

    monkeypatch.setattr(Alibi, "oracle_options", lambda self, problem, given: {})
    cell = combinations.pair("decode", "ALiBi", "2 query tokens")
    assert cell.text == "WRONG" and "relative RMS" in cell.reason
