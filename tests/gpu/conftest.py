"""GPU tests are skipped without a Hopper GPU; one that hangs ends the process, with its name on the console."""

import os

import pytest

from benchmarks.watchdog import watch
from tle_attn.build import has_hopper

SECONDS = 30.0


def pytest_collection_modifyitems(items):
    if not has_hopper():
        for item in items:
            if "tests/gpu" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA Hopper GPU (compute capability 9.0)"))


@pytest.fixture(scope="session")
def console(request):
    """Standard error as it was before pytest captured it."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return os.fdopen(os.dup(2), "w")


@pytest.fixture(autouse=True)
def no_hang(request, console):
    with watch(request.node.nodeid, SECONDS, console):
        yield
