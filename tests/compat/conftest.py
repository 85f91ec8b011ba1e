"""Operators on CPU tensors, in emulation."""

import pytest

from tle_attn.compat import emulate


@pytest.fixture
def emulated():
    with emulate():
        yield
