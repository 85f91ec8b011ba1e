"""Length mask against its definition, and a kernel that uses it against the oracle."""

import random

import pytest
import torch

from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.masks.length import Length
from tle_attn.spec import Kernel, Problem
from tle_attn.testing.blocks import check_block
from tle_attn.verify import oracle_options, verify_kernel


def test_random_positions(target, problem, seed):
    check_block(Length(), "length_mask", problem=problem, target=target, seed=seed)


@pytest.mark.parametrize("kv_len,visible", [(31, 0), (32, 0), (33, 1), (70, 38), (96, 64), (1000, 64)])
def test_keys_up_to_the_length(target, kv_len, visible):
    """A tile that starts at key 32."""
    run = check_block(Length(), "length_mask", inputs={"key": 32 + torch.arange(64)[:, None], "kv_len": kv_len}, target=target)
    seen = torch.isfinite(run.outputs["s"])
    assert seen[:visible].all() and not seen[visible:].any()


def test_a_kernel_with_it():
    """Several query tokens, all of which see every key; a causal kernel on the same problems is wrong."""
    kernel = Kernel(name="all keys", problem=Problem(query_tokens=3, group=4), mainloop=DecodeMainloop(mask=(Length(),)))
    assert oracle_options(kernel) == {"causal": False}
    seed = random.randrange(2**16)
    result = verify_kernel(kernel, "cpu", seed=seed)
    assert result.ok, result.failure


def test_a_kernel_with_it_is_not_causal(monkeypatch):
    causal = Kernel(name="causal", problem=Problem(query_tokens=3, group=4), mainloop=DecodeMainloop())
    monkeypatch.setattr("tle_attn.verify.oracle_options", lambda *_: {"causal": False})
    assert not verify_kernel(causal, "cpu").ok
