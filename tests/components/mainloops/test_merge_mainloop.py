"""The merge kernel on every target, and as compiled: bound by memory, so its loads and stores must be whole vectors and nothing may spill."""

import re

import pytest
import torch

import tle_attn
from tle_attn.runtime.executors import compile_kernel
from tle_attn.testing import compare, compare_lse, make_states_problem

OPTIONS = [
    {}, {"source.dtype": "f32", "epilogue.dtype": "f32"}, {"source.unroll": 1}, {"problem.head_dim": 64, "mainloop.base": "2"},
    {"problem.head_dim": 256, "source.dtype": "f32"}, {"source.block": "list", "source.count": 2}, {"source.block": "list", "source.count": 4, "epilogue.lse": "2"},
]  # fmt: skip


def by_options(function):
    return pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(f"{k.split('.')[1]}={v}" for k, v in o.items()) or "default")(function)


@by_options
def test_against_the_oracle(options, target, device, seed):
    """Every option, states in another base than the result's among them."""
    kernel = tle_attn.load("merge/stack").set(options).kernel()
    source = kernel.mainloop.source
    dtype = {"bf16": "bfloat16", "f32": "float32"}
    problem = make_states_problem(
        source.STATES or 6, 7, 3, head_dim=kernel.problem.head_dim, dtype=getattr(torch, dtype[source.dtype.value]), base=kernel.mainloop.base,
        listed=source.STATES is not None, seed=seed, device=device,
    )
    out = problem.new_output(getattr(torch, dtype[kernel.mainloop.epilogue.dtype.value]))
    lse = torch.full(out.shape[:2], torch.nan, device=device)
    tle_attn.plan(kernel, target=target).run(**problem.inputs, out=out, lse=lse)
    expected, expected_lse = problem.reference(lse_base=kernel.mainloop.epilogue.lse)
    compare(out, expected, rms=2e-6 if out.dtype == torch.float32 else 3e-3, name_row=problem.name_row)
    compare_lse(lse, expected_lse, atol=5e-6, name_row=problem.name_row)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_state_that_is_no_number_shows(wrong, target, device, seed):
    """In the row's output and log-sum-exp, so that a later merge does not take it for a row without keys; other rows are as without it."""
    kernel = tle_attn.load("merge/stack").set({"epilogue.lse": "e"}).kernel()
    problem = make_states_problem(3, 7, 3, head_dim=kernel.problem.head_dim, base=kernel.mainloop.base, seed=seed, device=device)
    outs, lses = (problem.inputs[name].clone() for name in ("outs", "lses"))
    right, right_lse = tle_attn.plan(kernel, target=target).run(outs=outs, lses=lses)
    lses[1, 2, 1] = wrong
    out, lse = tle_attn.plan(kernel, target=target).run(outs=outs, lses=lses)
    assert out[2, 1].isnan().all() and lse[2, 1].isnan()
    right[2, 1] = out[2, 1] = 0.0
    assert torch.equal(out, right)


@by_options
def test_as_compiled(options):
    kernel = tle_attn.load("merge/stack").set(options).kernel()
    compiled = compile_kernel(kernel, "merge")
    facts, source, epilogue = compiled.facts, kernel.mainloop.source, kernel.mainloop.epilogue
    assert (facts.spill_stores, facts.spill_loads, facts.shared_bytes) == (0, 0, 0)
    assert facts.registers <= 65536 // (8 * 128)
    loads = re.findall(r"ld\.global\S*", compiled.asm["ptx"])
    states = source.STATES or source.unroll
    vectors = max(1, kernel.mainloop.tile_rows(kernel.problem) * kernel.mainloop.width(kernel.problem) * source.dtype.nbytes // (128 * 16))
    assert sorted(loads) == sorted(["ld.global.b32"] * states + ["ld.global.v4.b32"] * states * vectors), "a log-sum-exp and 16 bytes a thread of each state"
    stores = set(re.findall(r"st\.global\S*", compiled.asm["ptx"]))
    assert stores == {"st.global.b32", "st.global.v4.b32" if epilogue.dtype.nbytes >= source.dtype.nbytes else "st.global.v2.b32"}
