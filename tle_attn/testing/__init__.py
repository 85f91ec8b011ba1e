"""What tests of attention kernels need: random problems with poisoned gaps, comparisons that say where, workloads."""

from tle_attn.testing.compare import compare, compare_lse, relative_rms, rms_of_rows
from tle_attn.testing.prefill import ContiguousProblem, PrefillProblem, make_contiguous_problem, make_prefill_problem
from tle_attn.testing.problems import ContiguousDecodeProblem, DecodeProblem, PagedProblem, make_contiguous_decode_problem, make_decode_problem
from tle_attn.testing.states import StatesProblem, make_states_problem
from tle_attn.testing.workloads import MERGE_WORKLOADS, PREFILL_WORKLOADS, WORKLOADS

__all__ = [
    "MERGE_WORKLOADS",
    "PREFILL_WORKLOADS",
    "WORKLOADS",
    "ContiguousDecodeProblem",
    "ContiguousProblem",
    "DecodeProblem",
    "PagedProblem",
    "PrefillProblem",
    "StatesProblem",
    "compare",
    "compare_lse",
    "make_contiguous_decode_problem",
    "make_contiguous_problem",
    "make_decode_problem",
    "make_prefill_problem",
    "make_states_problem",
    "relative_rms",
    "rms_of_rows",
]
