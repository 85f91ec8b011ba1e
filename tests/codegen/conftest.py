"""Compiles of these tests go to a cache of their own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
