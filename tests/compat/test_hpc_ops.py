"""The surface: signatures, defaults, in-place behaviour, what mtp and lengths mean, errors before a launch, and where it runs."""

import inspect
import re

import pytest
import torch
from attrs import evolve

from tests.compat.hpc_cases import assigned, attend, quant_type
from tle_attn.compat import emulate
from tle_attn.compat import hpc_ops as hpc
from tle_attn.errors import TargetUnavailable
from tle_attn.testing import compare, make_decode_problem

DECODE = ["q", "kcache", "vcache", "block_ids", "num_seq_kvcache"]
LATER = {"splitk": True, "task_map": None, "split_flag": None, "output": None}
SIGNATURES = {
    "attention_decode_bf16": (DECODE, {"mtp": 0, "new_kv_included": False, **LATER}),
    "attention_decode_fp8": (
        [*DECODE, "qscale", "kscale", "vscale"],
        {"mtp": 0, "new_kv_included": False, "quant_type": hpc.QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR, **LATER},
    ),
    "get_attention_decode_task_workspace": (["max_num_batch", "max_seqlen", "num_head_kv"], {"min_process_len": 512}),
    "assign_attention_decode_task": (["num_seq_kvcache", "task_map", "num_head_kv", "mtp", "new_kv_included"], {"min_process_len": 512}),
}


class TestSurface:
    @pytest.mark.parametrize("name", SIGNATURES)
    def test_argument_order_and_defaults(self, name):
        required, defaults = SIGNATURES[name]
        parameters = inspect.signature(getattr(hpc, name)).parameters
        assert list(parameters) == [*required, *defaults]
        assert {n: p.default for n, p in parameters.items() if p.default is not p.empty} == defaults
        assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())

    def test_quant_types(self):
        assert {q.name: q.value for q in hpc.QuantType} == {
            "QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD": 0, "QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR": 1,
            "QPERTENSOR_KPERTENSOR_VPERTENSOR": 2, "QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD_QKHADAMARD": 3,
        }  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    return make_decode_problem([5, 130, 64], seed=1)


@pytest.fixture(scope="module")
def fp8_problem():
    return make_decode_problem([5, 130, 64], dtype="fp8", quant=1, seed=2)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).clone()


@pytest.mark.usefixtures("emulated")
class TestResults:
    def test_output_is_written_and_returned(self, problem, fp8_problem):
        for p, rms in ((problem, 4e-3), (fp8_problem, 4e-2)):
            output = p.new_output()
            assert attend(p, output=output) is output
            compare(output, p.reference(p_quant=None)[0], rms=rms)

    def test_nothing_beside_a_strided_output_is_written(self, problem):
        wide = torch.full((3, 10, 144), 7.0, dtype=torch.bfloat16)
        attend(problem, output=wide[:, 1:9, 8:136])
        compare(wide[:, 1:9, 8:136], problem.reference()[0], rms=4e-3)
        assert (wide[:, 0] == 7).all() and (wide[:, 9] == 7).all() and (wide[:, :, :8] == 7).all() and (wide[:, :, 136:] == 7).all()

    def test_without_output_a_new_bf16_tensor(self, problem, fp8_problem):
        for p in (problem, fp8_problem):
            first, second = attend(p), attend(p)
            assert first.dtype == torch.bfloat16 and first.shape == p.q.shape and first.is_contiguous()
            assert first.data_ptr() != second.data_ptr() and torch.equal(first, second)

    def test_inputs_are_only_read(self, problem):
        tensors = (problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
        task_map = assigned(problem, 64)
        split_flag = torch.zeros(3, 1, dtype=torch.int32)
        before = [bits(t) for t in (*tensors, task_map)]
        attend(problem, task_map=task_map, split_flag=split_flag)
        attend(problem, split_flag=split_flag)
        assert all(torch.equal(bits(t), b) for t, b in zip((*tensors, task_map), before, strict=True))
        assert not split_flag.any()

    @pytest.mark.parametrize("nq", [1, 3])
    def test_lengths_without_this_steps_tokens(self, nq):
        """The default: mtp + 1 tokens are added."""
        counted = make_decode_problem([4, 65, 130], query_tokens=nq, seed=3)
        before = evolve(counted, kv_lens=counted.kv_lens - nq)
        task_map = assigned(before, 64, new_kv_included=False)
        for options in ({}, {"task_map": task_map}):
            out = attend(before, new_kv_included=False, **options)
            compare(out, counted.reference()[0], rms=4e-3, name_row=counted.name_row)

    def test_defaults_are_one_token_not_counted(self):
        counted = make_decode_problem([6, 100], seed=4)
        out = hpc.attention_decode_bf16(counted.q, counted.k_cache, counted.v_cache, counted.block_ids, counted.kv_lens - 1)
        compare(out, counted.reference()[0], rms=4e-3)

    def test_splitk_off(self, problem):
        compare(attend(problem, splitk=False), problem.reference()[0], rms=4e-3)

    def test_quant_type_by_number(self, fp8_problem):
        assert torch.equal(attend(fp8_problem, quant_type=1), attend(fp8_problem, quant_type=hpc.QuantType(1)))

    def test_caches_as_bytes(self, fp8_problem):
        as_bytes = evolve(fp8_problem, k_cache=fp8_problem.k_cache.view(torch.uint8), v_cache=fp8_problem.v_cache.view(torch.int8))
        assert torch.equal(attend(as_bytes), attend(fp8_problem))

    def test_many_requests_take_the_other_static_split(self):
        """Above 32 requests: 4 parts of at least 4096 tokens."""
        many = make_decode_problem([3] * 32 + [70], seed=5)
        compare(attend(many), many.reference()[0], rms=4e-3)

    def test_pages_and_groups_beyond_theirs(self):
        wide = make_decode_problem([200, 1, 129], heads=(6, 2), page=128, seed=6)
        compare(attend(wide), wide.reference()[0], rms=4e-3)


def replaced(problem, **tensors):
    return lambda: attend(evolve(problem, **tensors))


@pytest.mark.usefixtures("emulated")
class TestErrors:
    """Each is raised before a launch, is a RuntimeError as in hpc-ops, and names their argument."""

    def refuses(self, action, message: str) -> None:
        with pytest.raises(RuntimeError, match=re.escape(message)) as caught:
            action()
        assert isinstance(caught.value, hpc.HpcOpsError)

    @pytest.fixture(autouse=True)
    def no_launch(self, monkeypatch):
        monkeypatch.setattr("tle_attn.runtime.executors.EmulatedExecutor.launch", lambda *_: pytest.fail("something was launched"))

    @pytest.mark.parametrize("mtp", [-1, 5])
    def test_mtp(self, problem, fp8_problem, mtp):
        for p in (problem, fp8_problem):
            self.refuses(lambda: attend(p, mtp=mtp), f"mtp: {mtp} draft tokens where 0 to 4 are supported")

    def test_rows_of_q(self, problem):
        self.refuses(lambda: attend(problem, mtp=1), "q: 3 rows where 6 are wanted: 2 = (mtp + 1) for each of 3 sequences")

    def test_head_dim(self, problem):
        self.refuses(replaced(problem, q=problem.q[..., :64]), "q: head_dim 64 where 128 is wanted")

    def test_page(self, problem):
        self.refuses(replaced(problem, k_cache=problem.k_cache[:, :48], v_cache=problem.v_cache[:, :48]), "kcache: page cannot be 48; allowed: (16, 32, 64, 128)")

    def test_group(self, problem):
        self.refuses(replaced(problem, q=torch.zeros(3, 65, 128, dtype=torch.bfloat16)), "q: 1 query tokens x 65 heads are 65 query rows")
        two = torch.zeros(4, 64, 2, 128, dtype=torch.bfloat16)
        self.refuses(replaced(problem, q=problem.q[:, :7], k_cache=two, v_cache=two), "q: 7 heads, which is no multiple of the 2 heads of kcache")

    def test_types(self, problem, fp8_problem):
        self.refuses(replaced(problem, q=problem.q.half()), "q: dtype float16 where bfloat16 is wanted")
        self.refuses(replaced(problem, block_ids=problem.block_ids.long()), "block_ids: dtype int64 where int32 is wanted")
        self.refuses(replaced(problem, kv_lens=problem.kv_lens.long()), "num_seq_kvcache: dtype int64 where int32 is wanted")
        self.refuses(replaced(problem, v_cache=problem.v_cache.half()), "vcache: dtype float16")
        self.refuses(replaced(fp8_problem, v_cache=fp8_problem.v_cache.bfloat16()), "vcache: dtype bfloat16 where float8_e4m3fn is wanted")
        p = fp8_problem
        q = p.q.view(torch.uint8)
        self.refuses(
            lambda: hpc.attention_decode_fp8(q, p.k_cache, p.v_cache, p.block_ids, p.kv_lens, p.q_scale, p.k_scale, p.v_scale),
            "q: dtype uint8 where float8_e4m3fn is wanted",
        )

    def test_output(self, problem):
        self.refuses(lambda: attend(problem, output=torch.empty(3, 8, 128)), "output: dtype float32 where bfloat16 is wanted")
        self.refuses(lambda: attend(problem, output=torch.empty(3, 8, 64, dtype=torch.bfloat16)), "output: shape (3, 8, 64)")

    def test_strides(self, problem):
        self.refuses(replaced(problem, block_ids=problem.block_ids.repeat(1, 2)[:, ::2]), "block_ids: stride 2")
        self.refuses(replaced(problem, kv_lens=problem.kv_lens.repeat(2)[::2]), "num_seq_kvcache: stride 2")

    def test_scales(self, fp8_problem):
        self.refuses(replaced(fp8_problem, q_scale=fp8_problem.q_scale[:2]), "qscale: shape (2, 8)")
        self.refuses(replaced(fp8_problem, v_scale=fp8_problem.v_scale.double()), "vscale: dtype float64 where float32 is wanted")

    @pytest.mark.parametrize("quant", [2, 3])
    def test_quant_types_that_decode_does_not_know(self, fp8_problem, quant):
        for given in (quant, hpc.QuantType(quant)):
            self.refuses(lambda: attend(fp8_problem, quant_type=given), f"quant_type: {given} where 0 (K per token and head, V per head) or 1")

    def test_scales_of_the_other_quant_type(self, fp8_problem):
        self.refuses(lambda: attend(fp8_problem, quant_type=0), "kscale: shape (1,) where quant_type 0 wants [pages, page / 32, num_head_kv, 128 bytes]")
        per_token = make_decode_problem([5, 70], dtype="fp8", quant=0)
        assert quant_type(per_token) is hpc.QuantType(0)
        self.refuses(lambda: attend(per_token, quant_type=1), "where quant_type 1 wants [1]")
        of_values = make_decode_problem([5, 70], dtype="fp8", quant="kv_per_token")
        self.refuses(lambda: attend(of_values, quant_type=0), "vscale: shape (6, 2, 1, 128) where quant_type 0 wants [num_head_kv]")

    def test_task_map(self, problem):
        task_map = hpc.get_attention_decode_task_workspace(3, 4096, 1)
        self.refuses(lambda: attend(problem, task_map=task_map, splitk=False), "splitk: must be True with a task_map")
        self.refuses(lambda: attend(problem, task_map=task_map.view(torch.uint8)), "task_map: dtype uint8 where int32 or int8 is wanted")
        self.refuses(lambda: attend(problem, task_map=task_map[::2]), "task_map: must be contiguous and start at a multiple of 16 bytes")
        self.refuses(lambda: attend(problem, task_map=task_map[1:]), "task_map: must be contiguous and start at a multiple of 16 bytes")
        self.refuses(lambda: attend(problem, task_map=task_map[:-64]), "task_map: 320 bytes where 384 are wanted for a batch of 3 with 1 num_head_kv")

    def test_assign(self, problem):
        task_map = hpc.get_attention_decode_task_workspace(3, 4096, 1)
        for nq in (0, 6):
            self.refuses(lambda: hpc.assign_attention_decode_task(problem.kv_lens, task_map, 1, nq, True), f"mtp: {nq} where 1 to 5 are supported; in this function")
        self.refuses(lambda: hpc.assign_attention_decode_task(problem.kv_lens.long(), task_map, 1, 1, True), "num_seq_kvcache: dtype int64")
        self.refuses(lambda: hpc.assign_attention_decode_task(problem.kv_lens[None], task_map, 1, 1, True), "num_seq_kvcache: shape (1, 3)")
        self.refuses(lambda: hpc.assign_attention_decode_task(problem.kv_lens.repeat(10), task_map, 1, 1, True), "task_map: 384 bytes where 2496 are wanted for a batch of 30")
        self.refuses(lambda: hpc.assign_attention_decode_task(problem.kv_lens, task_map, 0, 1, True), "num_head_kv: 0 where an integer from 1 up is wanted")

    def test_workspace(self):
        self.refuses(lambda: hpc.get_attention_decode_task_workspace(-1, 4096, 1), "batch: -1 where an integer from 0 up is wanted")


class TestWhereItRuns:
    """The emulation is chosen, never a fallback."""

    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch):
        monkeypatch.delenv("TLE_ATTN_EMULATE", raising=False)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="tensors would be on the GPU")
    def test_every_function_says_so_in_one_line(self, problem, fp8_problem):
        with emulate():
            task_map = hpc.get_attention_decode_task_workspace(3, 4096, 1)
        for action in (
            lambda: attend(problem),
            lambda: attend(fp8_problem),
            lambda: hpc.get_attention_decode_task_workspace(3, 4096, 1),
            lambda: hpc.assign_attention_decode_task(problem.kv_lens, task_map, 1, 1, True),
        ):
            with pytest.raises(TargetUnavailable, match="on a Hopper GPU, and these tensors are on cpu") as caught:
                action()
            assert "\n" not in str(caught.value) and "emulate" in str(caught.value)

    def test_chosen_by_the_environment(self, problem, monkeypatch):
        monkeypatch.setenv("TLE_ATTN_EMULATE", "1")
        compare(attend(problem), problem.reference()[0], rms=4e-3)
        monkeypatch.setenv("TLE_ATTN_EMULATE", "0")
        with pytest.raises(TargetUnavailable):
            attend(problem)

    def test_the_context_ends(self, problem):
        with emulate():
            attend(problem)
        with pytest.raises(TargetUnavailable):
            attend(problem)
