"""The prefill surface: signatures, defaults, in-place behaviour, small points of the grids, errors before a launch, and compilers."""

import inspect
import re

import pytest
import torch
from attrs import evolve

from tests.compat.hpc_prefill_cases import PrefillCase, attend, check_case, make_problem
from tle_attn.compat import hpc_ops as hpc
from tle_attn.testing import compare, make_prefill_problem

Q1 = hpc.QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR
FP8 = ["q", "kcache", "vcache", "qscale", "kscale", "vscale", "cu_seqlens_q", "block_ids", "seqlens_kvcache", "max_seqlens_q"]
SIGNATURES = {
    "attention_prefill_bf16": (["q", "k", "v", "seqlens_q", "cu_seqlens_q", "max_seqlens_q"], {"output": None}),
    "attention_with_kvcache_prefill_bf16": (["q", "kcache", "vcache", "cu_seqlens_q", "block_ids", "seqlens_kvcache", "max_seqlens_q"], {"output": None}),
    "attention_with_kvcache_prefill_fp8": (FP8, {"quant_type": Q1, "output": None}),
    "attention_with_kvcache_blocksparse_prefill_fp8": (FP8, {"quant_type": Q1, "block_mask": None, "output": None}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_argument_order_and_defaults(name):
    required, defaults = SIGNATURES[name]
    parameters = inspect.signature(getattr(hpc, name)).parameters
    assert list(parameters) == [*required, *defaults]
    assert {n: p.default for n, p in parameters.items() if p.default is not p.empty} == defaults
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())


SMALL = [
    PrefillCase("contiguous", None, 2, 130, 130), PrefillCase("kvcache", None, 2, 100, 200), PrefillCase("dense", 1, 2, 100, 260),
    PrefillCase("dense", 0, 1, 140, 140, (4, 2)), PrefillCase("blocksparse", 1, 2, 260, 260, skip=0.5), PrefillCase("blocksparse", 0, 1, 260, 260, skip=0.5),
    PrefillCase("blocksparse", 1, 1, 70, 70),
]  # fmt: skip


@pytest.mark.usefixtures("emulated")
class TestResults:
    @pytest.mark.parametrize("case", SMALL, ids=lambda c: c.label)
    def test_small_points_of_the_grids(self, case):
        check_case(case, "cpu")

    def test_rows_behind_the_last_sequence_stay_as_they_are(self):
        problem = make_prefill_problem((3, 70), (3, 80), padding_rows=5, heads=(4, 1))
        output = torch.full(problem.q.shape, 7.0, dtype=torch.bfloat16)
        attend(problem, "kvcache", output=output)
        compare(output[:73], problem.reference()[0][:73], rms=4e-3)
        assert (output[73:] == 7.0).all()

    def test_caches_of_other_types_of_one_byte(self):
        problem = make_problem(SMALL[2], "cpu")
        bytes_ = evolve(problem, k_cache=problem.k_cache.view(torch.uint8), v_cache=problem.v_cache.view(torch.int8))
        assert torch.equal(attend(bytes_, "dense"), attend(problem, "dense"))

    def test_compiled(self):
        problem = make_problem(SMALL[1], "cpu")


        output = problem.new_output()
        longest = problem.max_q_len
        compiled = torch.compile(
            lambda q, output: hpc.attention_with_kvcache_prefill_bf16(
                q * 0.5, problem.k_cache, problem.v_cache, problem.cu_seqlens_q, problem.block_ids, problem.kv_lens, longest, output=output) + 1,
            fullgraph=True, backend="aot_eager",
        )  # fmt: skip
        result = compiled(problem.q * 2, output)
        assert torch.equal(result, output + 1)
        compare(output, problem.reference()[0], rms=4e-3)



REFUSED = {
    "quant type": ("dense", {}, {"quant_type": 2}, "quant_type: 2 where 0 (K per token and head, V per head) or 1 (K and V per tensor) is supported"),
    "quant type of other scales": ("dense", {}, {"quant_type": 0}, "kscale: shape (1,) where quant_type 0 wants [pages, page / 32, num_head_kv, 32]"),
    "V scales of every token": ("dense", {"v_scale": lambda t: torch.ones(7, 2, 1, 32)}, {}, "vscale: shape (7, 2, 1, 32) where quant_type 1 wants [1]"),
    "q scales": ("dense", {"q_scale": lambda t: t[:, :, :99]}, {}, "qscale: 99 in the last dimension where max_seqlens_q is 100"),
    "lengths": ("dense", {"kv_lens": lambda t: t.long()}, {}, "seqlens_kvcache: dtype int64 where int32 is wanted"),
    "cache": ("dense", {"v_cache": lambda t: t.float()}, {}, "vcache: dtype float32 where float8_e4m3fn is wanted"),
    "heads": ("dense", {"q": lambda t: t[:, :3]}, {}, "qscale: shape (2, 4, 128) where [batch, num_head_q, queries of the longest sequence or more] = (2, 3, any)"),
    "head dim": ("dense", {"q": lambda t: t[..., :64]}, {}, "q: head_dim 64 where 128 is wanted"),
    "output": ("dense", {}, {"output": torch.zeros(200, 4, 128)}, "output: dtype float32 where bfloat16 is wanted"),
    "mask rows": ("blocksparse", {"block_mask": lambda t: torch.ones(2, 4, 2, 3, dtype=torch.uint8)}, {}, "block_mask: shape (2, 4, 2, 3), strides"),
    "mask strides": ("blocksparse", {"block_mask": lambda t: torch.ones(2, 4, 1, 6, dtype=torch.uint8)[..., ::2]}, {}, "where a contiguous [2, 4, 1, key tiles] is wanted"),
    "mask type": ("blocksparse", {"block_mask": lambda t: torch.ones(2, 4, 1, 3)}, {}, "block_mask: dtype float32 where uint8 is wanted"),
    "page": ("dense", {"k_cache": lambda t: t.view(-1, 8, 1, 128), "v_cache": lambda t: t.view(-1, 8, 1, 128)}, {}, "kcache: page cannot be 8"),
}


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_their_words_before_a_launch(what, monkeypatch):
    operator, changes, options, message = REFUSED[what]
    problem = make_problem(SMALL[2], "cpu")
    monkeypatch.setattr("tle_attn.runtime.executors.EmulatedExecutor.launch", lambda *_: pytest.fail("something was launched"))
    wrong = evolve(problem, **{name: change(getattr(problem, name)) for name, change in changes.items()})
    with pytest.raises(hpc.HpcOpsError, match=re.escape(message)) as caught:
        attend(wrong, operator, **options)
    assert isinstance(caught.value, RuntimeError)
