"""Operators on CPU tensors, in emulation."""

import pytest

from tle_attn.ops import emulate
from tle_attn.testing import DecodeProblem, make_decode_problem


@pytest.fixture
def emulated():
    with emulate():
        yield


@pytest.fixture(scope="module")
def problem() -> DecodeProblem:
    return make_decode_problem([5, 130], poison=False)


@pytest.fixture(scope="module")
def fp8_problem() -> DecodeProblem:
    return make_decode_problem([5, 130], dtype="fp8", quant=0, poison=False)
