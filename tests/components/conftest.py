"""Blocks are tested on every target that this machine has."""

import secrets

import pytest
import torch

from tle_attn.build import has_hopper
from tle_attn.spec import DType, Problem

TARGETS = ["cpu", "tle-emulated", pytest.param("gluon", marks=pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU"))]


@pytest.fixture(params=TARGETS)
def target(request) -> str:
    return request.param


@pytest.fixture
def device(target) -> str:
    return "cuda" if target == "gluon" else "cpu"


#: 8, 16 and 32 columns, with and without padding rows
PROBLEMS = [Problem(), Problem(group=5), Problem(query_tokens=2), Problem(query_tokens=3), Problem(head_dim=64, query_tokens=2, group=3)]


@pytest.fixture(params=PROBLEMS, ids=lambda p: f"{p.query_tokens}x{p.group}-d{p.head_dim}")
def problem(request) -> Problem:
    return request.param


@pytest.fixture
def fp8() -> Problem:
    return Problem(dtype=DType.FP8)


@pytest.fixture(autouse=True)
def seed() -> int:
    """A new one for every test; a failure shows it."""
    value = secrets.randbelow(2**31)
    print(f"seed {value}")
    torch.manual_seed(value)
    return value
