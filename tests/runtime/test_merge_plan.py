"""Merge plans: every rule for the tensors of a run, what is launched, outputs in the place of inputs, and where nothing is to be done."""

import math
import re

import pytest
import torch
from attrs import evolve

import tle_attn
from tests.runtime.conftest import RecordingExecutor
from tests.runtime.test_inputs import odd, padded, strided
from tle_attn.errors import InputError, InputTypeError, SpecError
from tle_attn.testing import compare, compare_lse, make_states_problem

F32 = torch.float32


@pytest.fixture
def executor() -> RecordingExecutor:
    return RecordingExecutor()


def plan_of(name: str, executor=None, options=None, **problem):
    return tle_attn.plan(tle_attn.load(name).set(options or {}), target="cpu", executor=executor, **problem)


CASES = {
    "no tensor": ("stack", "outs", lambda t: t.tolist(), InputTypeError, "outs: a torch.Tensor is wanted, not list"),
    "type": ("stack", "outs", lambda t: t.float(), InputTypeError, "outs: dtype float32 where bfloat16 is wanted"),
    "dimensions": ("stack", "outs", lambda t: t[0], InputError, "outs: shape (5, 3, 128) where [states, tokens, heads, head_dim] = (any, any, any, 128) is wanted"),
    "head_dim": ("stack", "outs", lambda t: t[..., :64], InputError, "outs: shape (2, 5, 3, 64) where"),
    "no states": ("stack", ("outs", "lses"), lambda t: t[:0], InputError, "outs: no states; one is wanted at least"),
    "last stride": ("stack", "outs", strided, InputError, "outs: stride 2 in the last dimension where 1 is wanted"),
    "token stride": ("stack", "outs", lambda t: padded(t, 3, 8), InputError, "outs: stride of dimension 0 2040 is not a multiple of 16 (counted in elements; rows are read or written in vectors)"),
    "address": ("stack", "outs", odd, InputError, "outs: address"),
    "lse type": ("stack", "lses", lambda t: t.double(), InputTypeError, "lses: dtype float64 where float32 is wanted"),
    "lse states": ("stack", "lses", lambda t: t[:1], InputError, "lses: shape (1, 5, 3) where [states, tokens, heads] = (2, 5, 3) is wanted"),
    "list: a tensor": ("list", "outs", torch.stack, InputTypeError, "outs: a list of 2 tensors is wanted, not Tensor"),
    "list: too many": ("list", "lses", lambda t: [*t, t[0]], InputError, "lses: 3 tensors where merge/list merges 2"),
    "list: tokens": ("list", "outs", lambda t: [t[0], t[1][:4]], InputError, "outs[1]: shape (4, 3, 128) where [tokens, heads, head_dim] = (5, 3, 128) is wanted"),
    "list: type": ("list", "outs", lambda t: [t[0], t[1].float()], InputTypeError, "outs[1]: dtype float32 where bfloat16 is wanted"),
    "list: address": ("list", "outs", lambda t: [t[0], odd(t[1])], InputError, "outs[1]: address"),
    "list: lse": ("list", "lses", lambda t: [t[0][:, :2], t[1]], InputError, "lses[0]: shape (5, 2) where [tokens, heads] = (5, 3) is wanted"),
    "out type": ("stack", "out", lambda t: t.float(), InputTypeError, "out: dtype float32 where bfloat16 is wanted"),
    "out shape": ("stack", "out", lambda t: t[:, :2], InputError, "out: shape (5, 2, 128) where [tokens, heads, head_dim] = (5, 3, 128) is wanted"),
    "out stride": ("stack", "out", lambda t: padded(t, 2, 8), InputError, "out: stride of dimension 0 408 is not a multiple of 16"),
    "out address": ("stack", "out", odd, InputError, "out: address"),
    "out in one place": ("stack", "out", lambda t: t[:1].expand(5, -1, -1), InputError, "put two elements in one place"),
    "lse of the result": ("stack", "lse", lambda t: padded(t, 1, 1), InputError, "lse: must be contiguous"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rules(case, executor):
    form, names, change, error, message = CASES[case]
    problem = make_states_problem(2, 5, 3, listed=form == "list")
    arguments = {**problem.inputs, "out": problem.new_output(), "lse": torch.full((5, 3), math.nan)}
    for name in (names,) if isinstance(names, str) else names:
        arguments[name] = change(arguments[name])
    with pytest.raises(error, match=re.escape(message)):
        plan_of(f"merge/{form}", executor).run(**arguments)
    assert not executor.launches


class TestPlaces:
    @pytest.mark.parametrize("listed", [False, True])
    @pytest.mark.parametrize("state", [0, 1])
    def test_the_output_may_be_an_input(self, listed, state):
        """Case 12: tokens and heads that fill no whole tile of rows."""
        problem = make_states_problem(2, 7, 3, listed=listed, seed=torch.seed() % 2**31)
        expected, expected_lse = problem.reference()
        out, lse = plan_of("merge/list" if listed else "merge/stack").run(**problem.inputs, out=problem.outs[state], lse=problem.lses[state])
        assert out.data_ptr() == problem.outs[state].data_ptr() and lse.data_ptr() == problem.lses[state].data_ptr()
        compare(out, expected, rms=3e-3)
        compare_lse(lse, expected_lse, atol=1e-5)

    @pytest.mark.parametrize("listed", [False, True])
    @pytest.mark.parametrize("name,message", [("out", "out: shares memory with outs[1]"), ("lse", "lse: shares memory with lses[1]")])
    def test_but_not_be_moved_against_one(self, listed, name, message, executor):
        memory = make_states_problem(3, 6, 3, listed=listed)
        problem = evolve(memory, outs=memory.outs[:2], lses=memory.lses[:2])
        second = getattr(problem, name + "s")[1]
        one_token_on = torch.as_strided(second, second.shape, second.stride(), second.storage_offset() + second.stride(0))
        with pytest.raises(InputError, match=re.escape(message)):
            plan_of("merge/list" if listed else "merge/stack", executor).run(**problem.inputs, **{name: one_token_on})
        assert not executor.launches


class TestLaunch:
    def test_strides_of_a_dimension_of_one_do_not_matter(self, executor):
        """Their promise to be multiples of 16 is kept by passing 0."""
        outs = torch.zeros(2 * 128, dtype=torch.bfloat16).as_strided((1, 1, 2, 128), (7, 3, 128, 1))
        plan_of("merge/stack", executor).run(outs, torch.zeros(1, 1, 2))
        ((entry, grid, values),) = executor.launches
        assert (entry, grid) == ("merge", (1,))
        assert [values[f"outs_{axis}_stride"] for axis in ("state", "token", "head")] == [0, 0, 128]

    @pytest.mark.parametrize("head_dim,dtype,rows", [(128, "bf16", 8), (64, "bf16", 16), (256, "f32", 4)])
    def test_grid(self, head_dim, dtype, rows, executor):
        plan = plan_of("merge/stack", executor, {"source.dtype": dtype}, head_dim=head_dim)
        plan.run(torch.zeros(3, 10, 5, head_dim, dtype={"bf16": torch.bfloat16, "f32": F32}[dtype]), torch.zeros(3, 10, 5))
        ((_, grid, values),) = executor.launches
        assert grid == (-(-50 // rows),) and (values["states"], values["row_count"], values["kv_heads"]) == (3, 50, 5)

    @pytest.mark.parametrize("tokens,heads", [(0, 3), (4, 0)])
    def test_nothing_to_merge(self, tokens, heads, executor):
        out, lse = plan_of("merge/stack", executor).run(torch.zeros(2, tokens, heads, 128, dtype=torch.bfloat16), torch.zeros(2, tokens, heads))
        assert not executor.launches and out.shape == (tokens, heads, 128) and lse.shape == (tokens, heads)

    def test_without_lse(self, executor):
        plan = plan_of("merge/stack", executor, {"epilogue.lse": "none"})
        problem = make_states_problem(2, 5, 3)
        assert plan.run(**problem.inputs)[1] is None and "lse" not in executor.launches[0][2]
        with pytest.raises(InputError, match="lse: this kernel writes none"):
            plan.run(**problem.inputs, lse=torch.zeros(5, 3))


class TestPlan:
    @pytest.mark.parametrize("name", ["batch", "max_query_rows"])
    def test_a_merge_is_told_no_geometry(self, name):
        with pytest.raises(InputError, match=f"{name}: merge/stack merges states of any number of tokens and heads"):
            tle_attn.plan(tle_attn.load("merge/stack").kernel(), target="cpu", **{name: 3})

    def test_attention_is_told_its_geometry(self):
        with pytest.raises(InputError, match="batch: None where an integer"):
            tle_attn.plan("hy3/decode_bf16", target="cpu")

    @pytest.mark.parametrize("key,value", [("group", 8), ("query_tokens", 2), ("page", 16), ("dtype", "fp8")])
    def test_what_a_merge_has_not(self, key, value):
        with pytest.raises(SpecError, match=f"problem.{key}: a merge has no {key}"):
            tle_attn.load("merge/stack").set({f"problem.{key}": value}).kernel()

    def test_a_base_must_be_named(self):
        with pytest.raises(SpecError, match="mainloop.base"):
            tle_attn.load("merge/stack").set({"mainloop.base": "10"}).kernel()
