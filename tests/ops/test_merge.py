"""merge_states: against the oracle in every form, identities, alias, errors, and what torch checks of the operators."""

import math
import re
import secrets

import pytest
import torch
from attrs import evolve

import tle_attn
from tle_attn.errors import InputError, InputTypeError, TargetUnavailable
from tle_attn.ops import emulate
from tle_attn.testing import compare, compare_lse, make_states_problem

OPS = torch.ops.tle_attn
#: bf16: the result is rounded once, half a unit in the last place of 8 bits; fp32: arithmetic, and exp2 of rounded differences of log-sum-exps
RMS = {torch.bfloat16: 3e-3, torch.float32: 2e-6}
LSE_ATOL = 5e-6


@pytest.fixture
def seed() -> int:
    value = secrets.randbelow(2**31)
    print(f"seed {value}")
    return value


@pytest.mark.usefixtures("emulated")
class TestResults:
    @pytest.mark.parametrize("states", [1, 2, 3, 4, 5, 9])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("listed", [False, True])
    def test_numbers_of_states(self, states, dtype, listed, seed):
        problem = make_states_problem(states, 5, 3, dtype=dtype, base="e" if seed % 2 else "2", listed=listed, seed=seed)
        out, lse = tle_attn.merge_states(**problem.inputs, base=problem.base)
        expected, expected_lse = problem.reference()
        assert out.dtype == dtype
        compare(out, expected, rms=RMS[dtype], name_row=problem.name_row)
        compare_lse(lse, expected_lse, atol=LSE_ATOL, name_row=problem.name_row)

    @pytest.mark.parametrize("head_dim", [64, 256])
    def test_head_dims(self, head_dim, seed):
        problem = make_states_problem(3, 9, 2, head_dim=head_dim, seed=seed)
        compare(tle_attn.merge_states(**problem.inputs, base="e")[0], problem.reference()[0], rms=RMS[torch.bfloat16])

    def test_fp32_states_to_a_bf16_output(self, seed):
        problem = make_states_problem(2, 4, 2, dtype=torch.float32, listed=True, seed=seed)
        out, lse = tle_attn.merge_states(**problem.inputs, base="e", out=problem.new_output())
        assert out.dtype == torch.bfloat16
        compare(out, problem.reference()[0], rms=RMS[torch.bfloat16])

    def test_log_sum_exps_by_head(self, seed):
        """[heads, tokens] in memory, as other libraries have it."""
        problem = make_states_problem(2, 6, 4, seed=seed)
        turned = problem.lses.transpose(1, 2).contiguous().transpose(1, 2)
        compare_lse(tle_attn.merge_states(problem.outs, turned, base="e")[1], problem.reference()[1], atol=LSE_ATOL)

    @pytest.mark.parametrize("distance", [40.0, 1e4])
    def test_log_sum_exps_far_apart(self, distance, seed):
        problem = make_states_problem(3, 4, 2, empty=0.0, dtype=torch.float32, seed=seed)
        problem.lses[1] += distance
        problem.lses[2] -= distance
        out, lse = tle_attn.merge_states(problem.outs, problem.lses, base="2")
        assert torch.equal(lse[:-1], problem.lses[1, :-1])
        compare(out[:-1], problem.outs[1, :-1].double(), rms=1e-6)

    def test_12_empty_states(self, seed):
        """Two empty states are 0 with -inf; one of two is the identity, to the bit."""
        problem = make_states_problem(2, 5, 3, empty=0.0, listed=True, seed=seed)
        for given in (0, 1):
            outs, lses = [torch.full_like(problem.outs[0], math.nan)] * 2, [torch.full_like(problem.lses[0], -math.inf)] * 2
            out, lse = tle_attn.merge_states(outs, lses, base="2")
            assert (out == 0).all() and (lse == -math.inf).all()
            outs[given], lses[given] = problem.outs[given], problem.lses[given]
            out, lse = tle_attn.merge_states(outs, lses, base="2")
            assert torch.equal(out[:-1], problem.outs[given, :-1]) and torch.equal(lse, problem.lses[given])

    @pytest.mark.parametrize("states", [2, 4, 6])
    def test_12_in_place(self, states, seed):
        problem = make_states_problem(states, 5, 3, seed=seed)
        expected, expected_lse = problem.reference()
        out, lse = tle_attn.merge_states(problem.outs, problem.lses, base="e", out=problem.outs[1], lse=problem.lses[1])
        assert out.data_ptr() == problem.outs[1].data_ptr()
        compare(problem.outs[1], expected, rms=RMS[torch.bfloat16])
        compare_lse(problem.lses[1], expected_lse, atol=LSE_ATOL)

    def test_it_can_be_repeated(self, seed):
        """Merging is associative up to rounding: a fold of pairs is the merge of all."""
        problem = make_states_problem(4, 5, 3, dtype=torch.float32, seed=seed)
        out, lse = problem.outs[0], problem.lses[0]
        for i in range(1, 4):
            out, lse = tle_attn.merge_states([out, problem.outs[i]], [lse, problem.lses[i]], base="e")
        compare(out, problem.reference()[0], rms=2 * RMS[torch.float32])
        compare_lse(lse, problem.reference()[1], atol=2 * LSE_ATOL)


@pytest.mark.usefixtures("emulated")
class TestErrors:
    @pytest.mark.parametrize("change,error,message", [
        ({"base": "10"}, InputError, "base: '10' where \"e\" or \"2\" is wanted"),
        ({"base": 2}, InputError, "base: 2 where \"e\" or \"2\" is wanted"),
        ({"outs": []}, InputTypeError, "outs: a tensor [states, ...] or a list of tensors, one at least, is wanted"),
        ({"outs": 3}, InputTypeError, "outs: a tensor [states, ...] or a list"),
        ({"lses": [torch.zeros(5, 3)]}, InputError, "lses: 1 tensors for 2 in outs; every state has both"),
        ({"outs": [torch.zeros(5, 3, 128, dtype=torch.float16)] * 2}, InputTypeError, "outs: dtype float16 where bfloat16 or float32 is wanted"),
        ({"outs": [torch.zeros(5, 128)] * 2}, InputError, "outs: shape (5, 128) where [tokens, heads, head_dim] is wanted"),
        ({"outs": [torch.zeros(5, 3, 128), torch.zeros(4, 3, 128)]}, InputError, "outs[1]: shape (4, 3, 128)"),
        ({"outs": [torch.zeros(5, 3, 40)] * 2}, InputError, "outs: head_dim cannot be 40"),
        ({"outs": [torch.zeros(5, 3, 128)] * 5, "lses": [torch.zeros(5, 3)] * 4 + [torch.zeros(5, 2)]}, InputError, "lses[4]: torch.float32 (5, 2) on cpu, but lses[0]"),
        ({"out": torch.zeros(5, 3, 128, dtype=torch.float16)}, InputTypeError, "out: dtype float16"),
    ])  # fmt: skip
    def test_errors_name_the_tensor(self, change, error, message):
        arguments = {"outs": [torch.zeros(5, 3, 128)] * 2, "lses": [torch.zeros(5, 3)] * 2, "base": "e", **change}
        with pytest.raises(error, match=re.escape(message)):
            tle_attn.merge_states(**arguments)


def test_nothing_falls_back():
    with pytest.raises(TargetUnavailable, match="emulate"):
        tle_attn.merge_states(torch.zeros(2, 5, 3, 128), torch.zeros(2, 5, 3), base="e")


@pytest.mark.usefixtures("emulated")
class TestTorch:
    @pytest.mark.parametrize("listed", [False, True])
    def test_torchs_own_checks(self, listed):
        problem = make_states_problem(2, 3, 2, listed=True, empty=0.0)
        outs, lses = ([o[:2] for o in problem.outs], [l[:2] for l in problem.lses]) if listed else ([problem.outs[:, :2].contiguous()], [problem.lses[:, :2].contiguous()])
        torch.library.opcheck(OPS.merge_states.default, (outs, lses, "e"))
        torch.library.opcheck(OPS.merge_states_out.default, (outs, lses, "e"), {"out": torch.zeros(2, 2, 128, dtype=torch.bfloat16), "lse": torch.zeros(2, 2)})

    def test_meta(self):
        out, lse = tle_attn.merge_states(torch.empty(4, 6, 8, 128, device="meta"), torch.empty(4, 6, 8, device="meta"), base="e")
        assert (out.shape, out.dtype, lse.shape) == ((6, 8, 128), torch.float32, (6, 8))

    def test_compiled_in_place(self):
        """torch.compile keeps the write into one of the inputs."""
        problem = make_states_problem(2, 4, 2)
        problem = evolve(problem, outs=problem.outs.contiguous())
        expected, _ = problem.reference()

        def merge(outs, lses):
            tle_attn.merge_states(outs, lses, base="e", out=outs[0], lse=lses[0])
            return outs[0] + 1

        with emulate():
            result = torch.compile(merge, fullgraph=True, backend="aot_eager")(list(problem.outs), list(problem.lses))
        compare(problem.outs[0], expected, rms=RMS[torch.bfloat16])
        assert torch.equal(result, problem.outs[0] + 1)
