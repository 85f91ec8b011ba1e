"""Operators: what torch checks of them, what compilers see, and that torch.compile keeps results and in-place writes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tle_attn import ops
from tle_attn.compat import hpc_ops as hpc
from tle_attn.errors import InputError
from tle_attn.testing import compare, make_decode_problem

pytestmark = pytest.mark.usefixtures("emulated")
OPS = torch.ops.tle_attn
RMS, FP8_RMS = 4e-3, 4e-2


def tensors(problem):
    return problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens


def scales(problem):
    return problem.q_scale, problem.k_scale, problem.v_scale


class TestTorchsOwnChecks:
    def test_bf16(self, problem):
        torch.library.opcheck(OPS.attention_decode_bf16.default, tensors(problem))

    def test_bf16_out(self, problem):
        torch.library.opcheck(OPS.attention_decode_bf16_out.default, tensors(problem), {"out": problem.new_output()})

    def test_task_map(self, problem):
        torch.library.opcheck(OPS.plan_decode_tasks.default, (problem.kv_lens, ops.new_task_map(2, 1), 1))

    def test_fp8(self, fp8_problem):
        """Its check of the schema compares inputs by a product that torch does not have for float8; here they are compared as bytes."""
        rest = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        arguments = (*tensors(fp8_problem), *scales(fp8_problem))
        before = [t.contiguous().view(torch.uint8).clone() for t in arguments]
        torch.library.opcheck(OPS.attention_decode_fp8.default, arguments, test_utils=rest)
        torch.library.opcheck(OPS.attention_decode_fp8_out.default, arguments, {"out": fp8_problem.new_output()}, test_utils=rest)
        assert all(torch.equal(t.contiguous().view(torch.uint8), b) for t, b in zip(arguments, before, strict=True))


class TestFakes:
    """Shape and type of results are known without running anything."""

    def test_new_outputs(self, problem, fp8_problem):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            for operator, inputs in (
                (OPS.attention_decode_bf16, tensors(problem)),
                (OPS.attention_decode_fp8, (*tensors(fp8_problem), *scales(fp8_problem))),
            ):
                out = operator(*map(mode.from_tensor, inputs))
                assert (out.shape, out.dtype, out.device.type) == ((2, 8, 128), torch.bfloat16, "cpu")

    def test_meta(self, problem):
        out = OPS.attention_decode_bf16(*(t.to("meta") for t in tensors(problem)))
        assert (out.shape, out.dtype) == ((2, 8, 128), torch.bfloat16)


class TestResults:
    def test_bf16(self, problem):
        compare(OPS.attention_decode_bf16(*tensors(problem)), problem.reference()[0], rms=RMS)

    def test_fp8_by_the_shape_of_k_scale(self, fp8_problem):
        compare(OPS.attention_decode_fp8(*tensors(fp8_problem), *scales(fp8_problem)), fp8_problem.reference(p_quant=None)[0], rms=FP8_RMS)
        per_tensor = make_decode_problem([70, 3], dtype="fp8", quant=1)
        compare(OPS.attention_decode_fp8(*tensors(per_tensor), *scales(per_tensor)), per_tensor.reference(p_quant=None)[0], rms=FP8_RMS)

    def test_fp8_by_the_shape_of_v_scale(self):
        problem = make_decode_problem([70, 3], dtype="fp8", quant="kv_per_token")
        compare(OPS.attention_decode_fp8(*tensors(problem), *scales(problem)), problem.reference(p_quant=None)[0], rms=FP8_RMS)

    def test_options(self):
        problem = make_decode_problem([40, 300], query_tokens=2)
        want, _ = problem.reference(softmax_scale=0.3)
        options = {"query_tokens": 2, "softmax_scale": 0.3}
        compare(OPS.attention_decode_bf16(*tensors(problem), split=False, **options), want, rms=RMS)
        problem.kv_lens.sub_(2)
        tasks = ops.new_task_map(2, 1)
        OPS.plan_decode_tasks(problem.kv_lens, tasks, 1, 2, new_kv_included=False, min_tokens=64)
        compare(OPS.attention_decode_bf16(*tensors(problem), new_kv_included=False, tasks=tasks, **options), want, rms=RMS)

    def test_empty_batch(self):
        problem = make_decode_problem([])
        assert OPS.attention_decode_bf16(*tensors(problem)).shape == (0, 8, 128)
        OPS.plan_decode_tasks(problem.kv_lens, ops.new_task_map(0, 1), 1)

    def test_errors_use_this_librarys_names(self, problem):
        q, k_cache, v_cache, block_ids, kv_lens = tensors(problem)
        with pytest.raises(InputError, match="query_tokens: 6 where 1 to 5 are supported"):
            OPS.attention_decode_bf16(*tensors(problem), query_tokens=6)
        with pytest.raises(InputError, match="k_cache: page cannot be 24"):
            OPS.attention_decode_bf16(q, k_cache[:, :24], v_cache[:, :24], block_ids, kv_lens)
        with pytest.raises(InputError, match="min_tokens: 100 where a multiple of 64 is wanted"):
            OPS.plan_decode_tasks(kv_lens, ops.new_task_map(2, 1), 1, min_tokens=100)
        with pytest.raises(InputError, match="split: False keeps requests whole"):
            OPS.attention_decode_bf16(*tensors(problem), split=False, tasks=ops.new_task_map(2, 1))
        with pytest.raises(InputError, match="batch: 1000000000 sequences of 1 kv heads are .* tasks, and a task map has 268435455 at most"):
            ops.new_task_map(10**9, 1)


class TestCompiled:
    """torch.compile(fullgraph=True): one graph, no break.  aot_eager functionalises in-place writes as inductor does, without its C++ compiler."""

    @pytest.fixture(autouse=True)
    def fresh(self):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def test_operators(self, problem):
        def layer(q, k_cache, v_cache, block_ids, kv_lens, tasks, out):
            OPS.plan_decode_tasks(kv_lens, tasks, 1, min_tokens=64)
            OPS.attention_decode_bf16_out(q, k_cache, v_cache, block_ids, kv_lens, tasks=tasks, out=out)
            return OPS.attention_decode_bf16(q * 2, k_cache, v_cache, block_ids, kv_lens, softmax_scale=128**-0.5 / 2), out * 2

        out = problem.new_output()
        again, doubled = torch.compile(layer, fullgraph=True, backend="aot_eager")(*tensors(problem), ops.new_task_map(2, 1), out)
        want, _ = problem.reference()
        for got, expected in ((out, want), (again, want), (doubled, want * 2)):
            compare(got, expected, rms=RMS)

    def test_drop_in_functions(self, fp8_problem, problem):
        def step(bf16, fp8, task_map, output):
            hpc.assign_attention_decode_task(bf16[4], task_map, 1, 1, True, 64)
            first = hpc.attention_decode_bf16(*bf16, new_kv_included=True, task_map=task_map)
            quant_type = hpc.QuantType.QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD
            second = hpc.attention_decode_fp8(*fp8, new_kv_included=True, quant_type=quant_type, task_map=task_map, output=output)
            return first + 0, second + 0

        task_map = hpc.get_attention_decode_task_workspace(2, 256, 1)
        output = fp8_problem.new_output()
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        first, second = compiled(tensors(problem), (*tensors(fp8_problem), *scales(fp8_problem)), task_map, output)
        compare(first, problem.reference()[0], rms=RMS)
        for got in (second, output):
            compare(got, fp8_problem.reference(p_quant=None)[0], rms=FP8_RMS)

    def test_other_batches_without_another_graph(self, problem):
        graphs = []

        def backend(module, inputs):
            graphs.append(module)
            return module.forward

        compiled = torch.compile(lambda *inputs: OPS.attention_decode_bf16(*inputs) + 0, fullgraph=True, backend=backend, dynamic=True)
        for lengths in ([5, 130], [1, 64, 65], [7, 8, 9, 10]):
            other = make_decode_problem(lengths, poison=False)
            compare(compiled(*tensors(other)), other.reference()[0], rms=RMS)
        assert len(graphs) == 1
