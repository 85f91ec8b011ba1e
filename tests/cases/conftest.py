"""Random inputs are new in every run."""

import secrets

import pytest


@pytest.fixture(autouse=True)
def seed() -> int:
    """A new one for every test; a failure shows it."""
    value = secrets.randbelow(2**31)
    print(f"seed {value}")
    return value
