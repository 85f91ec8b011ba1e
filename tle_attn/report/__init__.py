"""Reports: what a recipe is (explain), how two differ (compare), what a family of kernels came to (family), and the time floor of the work (floor)."""

from __future__ import annotations

from .compare import Difference, code_diff, differences
from .explain import explain
from .floor import H200, Work, Workload, work_of
from .table import Table

__all__ = ["H200", "Difference", "Table", "Work", "Workload", "code_diff", "differences", "explain", "work_of"]
