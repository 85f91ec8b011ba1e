"""Cases and problems of the prefill benchmark: they are the reference's, their right values are the oracle's."""

import math

import pytest
import torch
from attrs import evolve

from benchmarks import prefill_compare
from benchmarks.prefill_cases import GROUPS, KINDS, Case, all_cases, dense_case, select, square
from benchmarks.prefill_problems import kept_tiles, make_problem, reference_rows, sampled_error
from benchmarks.records import read
from tle_attn.testing import ContiguousProblem

CASES = all_cases()
BASELINE = {
    (r["op"], r["quant"], bool(r["masked"]), r["q"], r["kv"], r["layout"]): r for r in read(prefill_compare.BASELINE)["prefill"]
}  # fmt: skip


def recorded(case: Case, operator: str) -> dict:
    return BASELINE[operator, case.quant, case.masked, *case.pairs[0], case.layout if case.paged else "-"]


class TestCases:
    def test_every_case_of_the_reference_is_there(self):
        counts = {group: sum(c.group == group for c in CASES) for group in GROUPS}
        assert (counts["fp8"], counts["bf16"], counts["contiguous"]) == (24, 10, 3)
        assert {tuple(c.pairs[0]) for c in CASES if c.group == "fp8"} == {(127, 127), (512, 4096), (512, 32768)}
        assert len({c.label for c in CASES}) == len(CASES)

    @pytest.mark.parametrize("group,operator", [("fp8", "blocksparse"), ("bf16", "kvcache"), ("contiguous", "contiguous")])
    def test_work_is_what_the_baseline_counted(self, group, operator):
        """Operations of dense cases to the last one; the share of tiles that a mask drops to all digits that were recorded."""
        for case in (c for c in CASES if c.group == group):
            row = recorded(case, operator)
            if case.masked:
                assert 1 - kept_tiles(case) / case.tiles == pytest.approx(row["skip"], abs=5e-5)
            else:
                assert case.flops == row["flops"]

    def test_heads_of_the_baseline(self):
        assert {(r["hq"], r["hkv"]) for r in BASELINE.values()} == {c.heads for c in CASES if c.reference}

    def test_tiles(self):
        case = Case(group="square", name="", pairs=((129, 300), (1, 1), (0, 50), (200, 10)), heads=(2, 1))
        # 129 on 300: rows 0..127 end at key 298, row 128 at key 299; 200 on 10: rows 0..127 see none, the others up to key 9
        assert case.tiles == 2 * ((3 + 3) + 1 + 0 + (0 + 1))
        assert kept_tiles(case) == case.tiles

    def test_selection_brings_what_others_are_compared_with(self):
        ragged = select(["ragged"], ["64 random fp8 quant 1"], ["NHD"])
        assert [c.label for c in ragged] == ["square 8k fp8 quant 1 NHD", "ragged 64 random fp8 quant 1 NHD"]
        assert [c.label for c in select(["fp8"], ["512/32k"], ["HND"])] == [
            f"fp8 512/32k{m} fp8 quant {q} HND" for q in (0, 1) for m in ("", " masked")
        ]  # fmt: skip
        everything = select(list(GROUPS), [], ["NHD", "HND"])
        assert everything == CASES
        for case in (c for c in CASES if c.group in ("mask", "ragged")):
            assert everything.index(dense_case(case)) < everything.index(case)


def small(dtype="bf16", quant=None, **changes) -> Case:
    options = {"group": "ragged", "name": "small", "pairs": ((130, 300), (1, 200), (0, 5), (257, 257)), "heads": (4, 2), "dtype": dtype, "quant": quant}
    return Case(**{**options, **changes})


class TestProblems:
    @pytest.mark.parametrize("dtype,quant", KINDS)
    @pytest.mark.parametrize("changes", [{}, {"layout": "HND"}, {"density": 0.4}, {"reference": True}], ids=str)
    def test_rows_are_those_of_the_oracle(self, dtype, quant, changes):
        problem = make_problem(small(dtype, quant, **changes), "cpu")
        expected, _ = problem.reference(p_quant=None)
        assert not expected.isnan().any(), "a slot without a token reached the result"
        for b, rows in ((0, [0, 1, 127, 128, 129]), (1, [0]), (3, [0, 5, 256])):
            start = int(problem.cu_seqlens_q[b])
            for head in (0, 3):
                rows_of = reference_rows(problem, b, head, torch.tensor(rows))
                torch.testing.assert_close(rows_of, expected[start + torch.tensor(rows), head], rtol=1e-9, atol=1e-12)
        assert sampled_error(problem, expected) < 1e-9

    def test_contiguous(self):
        problem = make_problem(small(pairs=square(130, 3), paged=False), "cpu")
        assert isinstance(problem, ContiguousProblem) and problem.inputs["block_ids"] is None
        expected, _ = problem.reference()
        assert sampled_error(problem, expected) < 1e-9

    def test_layout_in_memory(self):
        nhd, hnd = (make_problem(small(layout=layout), "cpu") for layout in ("NHD", "HND"))
        assert nhd.k_cache.is_contiguous() and hnd.k_cache.permute(0, 2, 1, 3).is_contiguous()
        assert torch.equal(nhd.q, hnd.q) and torch.equal(nhd.k_cache.nan_to_num(7.0), hnd.k_cache.nan_to_num(7.0))

    def test_scores_use_the_scales(self):
        """FP8 of unit variance is the bf16 problem, rounded; the reference's numbers are not scaled back."""
        exact = make_problem(small(), "cpu").reference()[0]
        for quant in (0, 1):
            rounded = make_problem(small("fp8", quant), "cpu").reference(p_quant=None)[0]
            assert 0 < (rounded - exact).norm() / exact.norm() < 0.08

    def test_errors_show(self):
        problem = make_problem(small(), "cpu")
        expected, _ = problem.reference()
        lost = expected.clone()
        lost[77, 1] = math.nan
        assert math.isnan(sampled_error(problem, lost))
        shifted = expected.roll(1, 0)
        assert sampled_error(problem, shifted) > 0.5
        assert sampled_error(evolve(problem, q=problem.q * 1.5), expected) > 0.05
