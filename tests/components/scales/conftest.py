"""Ports of `query_factor` with the query columns, which decide what scale is read."""

import pytest

from tle_attn.spec import DType, Function, Port


@pytest.fixture
def query_factor_ports():
    def make(problem):
        n = problem.columns
        s = Port("s", DType.F32, ("key", "query"), (64, n), layout="mma")
        return Function("query_factor", (s, Port("column", DType.I32, ("query",), (n,))), (Port("factor", DType.F32, ("query",), (n,)),))

    return make
