"""The page of combinations is what composing says now, and a sample of its cells is run again."""

import pytest

from tle_attn.recipe import list_recipes, load
from tle_attn.report import combinations
from tle_attn.report.combinations import Cell
from tle_attn.verify import EMULATED


def test_the_page_is_current():
    """Every cell that is not refused is "ok": a wrong one would show as a difference."""
    cells = {names: combinations.pair(*names, run=False) for names in combinations.pairs()}
    recipes = {name: (load(name).kernel().mainloop.PHASE, dict.fromkeys(EMULATED, Cell("ok"))) for name in list_recipes()}
    assert combinations.WRITTEN.read_text() == combinations.render(cells, recipes), "run python -m tle_attn.report.combinations"


@pytest.mark.parametrize("names", combinations.sampled(6), ids=" + ".join)
def test_a_sample_of_pairs(names):
    cell = combinations.pair(*names)
    assert cell.text in ("ok", "-"), cell.reason


def test_a_wrong_kernel_is_not_ok(monkeypatch):
    from tle_attn.components.scores.alibi import Alibi

    monkeypatch.setattr(Alibi, "oracle_options", lambda self, problem, given: {})
    cell = combinations.pair("ALiBi", "2 query tokens")
    assert cell.text == "WRONG" and "relative RMS" in cell.reason
