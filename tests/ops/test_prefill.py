"""Prefill operators: what torch checks of them, what compilers see, which kernel and plan is behind a call."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tle_attn.ops import prefill_plans as plans
from tle_attn.testing import compare, make_contiguous_problem, make_prefill_problem

pytestmark = pytest.mark.usefixtures("emulated")
OPS = torch.ops.tle_attn
PAIRS = ((70, 130), (0, 5), (3, 3))
HEADS = (2, 1)


def paged(p):
    return (p.q, p.k_cache, p.v_cache, p.block_ids, p.cu_seqlens_q, p.kv_lens)


def scales(p):
    return (p.q_scale, p.k_scale, p.v_scale)


@pytest.fixture(scope="module")
def problem():
    return make_prefill_problem(*zip(*PAIRS), heads=HEADS, poison=False)


@pytest.fixture(scope="module")
def fp8():
    return {quant: make_prefill_problem(*zip(*PAIRS), heads=HEADS, dtype="fp8", quant=quant, mask_density=0.6, poison=False) for quant in (0, 1, "kv_per_token")}


class TestTorchsOwnChecks:
    def test_bf16(self, problem):
        torch.library.opcheck(OPS.attention_prefill_bf16.default, paged(problem))
        torch.library.opcheck(OPS.attention_prefill_bf16_out.default, paged(problem), {"out": problem.new_output()})

    def test_contiguous(self):
        p = make_contiguous_problem((70, 3), heads=HEADS, poison=False)
        arguments = (p.q, p.k_cache[:, 0], p.v_cache[:, 0], p.cu_seqlens_q, p.kv_lens)
        torch.library.opcheck(OPS.attention_prefill_contiguous_bf16.default, arguments)
        torch.library.opcheck(OPS.attention_prefill_contiguous_bf16_out.default, arguments, {"out": p.new_output()})

    def test_fp8(self, fp8):
        """Its check of the schema compares inputs by a product that torch does not have for float8."""
        rest = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(OPS.attention_prefill_fp8.default, (*paged(fp8[1]), *scales(fp8[1])), {"block_mask": fp8[1].block_mask}, test_utils=rest)


def test_shapes_are_known_without_data(problem):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = OPS.attention_prefill_bf16(*map(mode.from_tensor, paged(problem)))
    assert (out.shape, out.dtype) == (problem.q.shape, torch.bfloat16)
    assert OPS.attention_prefill_bf16(*(t.to("meta") for t in paged(problem))).shape == problem.q.shape


class TestResults:
    def test_bf16(self, problem):
        compare(OPS.attention_prefill_bf16(*paged(problem)), problem.reference()[0], rms=4e-3)
        compare(OPS.attention_prefill_bf16(*paged(problem), softmax_scale=0.3), problem.reference(softmax_scale=0.3)[0], rms=4e-3)

    @pytest.mark.parametrize("quant", [0, 1, "kv_per_token"])
    def test_fp8_with_and_without_a_mask(self, fp8, quant):
        p = fp8[quant]
        compare(OPS.attention_prefill_fp8(*paged(p), *scales(p), block_mask=p.block_mask), p.reference(p_quant=None)[0], rms=4e-2)
        compare(OPS.attention_prefill_fp8(*paged(p), *scales(p)), p.reference(p_quant=None, block_mask=None)[0], rms=4e-2)

    def test_bf16_with_a_mask(self):
        p = make_prefill_problem((200,), (300,), heads=HEADS, mask_density=0.5)
        compare(OPS.attention_prefill_bf16(*paged(p), block_mask=p.block_mask), p.reference()[0], rms=4e-3)

    def test_contiguous(self):
        p = make_contiguous_problem((70, 3), heads=HEADS)
        compare(OPS.attention_prefill_contiguous_bf16(p.q, p.k_cache[:, 0], p.v_cache[:, 0], p.cu_seqlens_q, p.kv_lens), p.reference()[0], rms=4e-3)


class TestPlans:
    def test_few_plans_serve_all_numbers_of_rows(self, problem):
        assert [plans.rows_of_plan(n) for n in (0, 1, 1024, 1025, 5000)] == [1024, 1024, 1024, 2048, 8192]
        before = plans.plan_for.cache_info().currsize
        for rows, made in ((5, 1), (60, 1), (200, 1), (400, 2), (700, 2)):
            OPS.attention_prefill_bf16(*paged(make_prefill_problem((rows, 0), (rows, 3), heads=(1, 1))))
            assert plans.plan_for.cache_info().currsize == before + made, "one for units of 64 rows where they keep the emulated device busy once, one for units of 128"

    def test_plans_own_no_memory(self, problem):
        OPS.attention_prefill_bf16(*paged(problem))
        plan = plans.plan_for("none", 64, False, 2, 3, 2, 1, 1024, torch.device("cpu"), "cpu")
        assert plan.workspace == {}
        workspace = plans.workspace_of(plan)
        assert {name: t.numel() >= plan.needs[name][1] for name, t in workspace.items()} == dict.fromkeys(plan.needs, True)

    def test_decode_and_prefill_share_the_streams_counters(self, problem):
        """They are zero between launches, whoever was first."""
        from tle_attn.testing import make_decode_problem

        d = make_decode_problem([700, 5], poison=False)
        for _ in range(2):
            OPS.attention_prefill_bf16(*paged(problem))
            OPS.attention_decode_bf16(d.q, d.k_cache, d.v_cache, d.block_ids, d.kv_lens)
        compare(OPS.attention_prefill_bf16(*paged(problem)), problem.reference()[0], rms=4e-3)

    @pytest.mark.parametrize("consumers", [1, 2])
    @pytest.mark.parametrize("kind,page", [("none", 64), ("tensor", 32), ("token_head", 128), ("token_head_kv", 16), ("contiguous", None)])
    def test_kernels(self, kind, page, consumers):
        kernel = plans.kernel_for(kind, page, 3, False, consumers)
        assert kernel.mainloop.consumers == consumers and kernel.problem.group == 3 and ("block_ids" in kernel.arguments) == (page is not None)
        assert page is None or kernel.problem.page == page


