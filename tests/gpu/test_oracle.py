"""The oracle on CUDA tensors gives what it gives on the CPU."""

import pytest
import torch

from tle_attn.testing import compare, compare_lse, make_decode_problem, make_prefill_problem

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("dtype", "quant"), [("bf16", None), ("fp8", 0), ("fp8", 1)])
def test_equal_on_both_devices(dtype, quant, layout):
    tree = torch.tensor([[1, 0], [1, 1]], dtype=torch.uint8).expand(3, 2, 2)
    decode = make_decode_problem([0, 65, 300], query_tokens=2, heads=(4, 2), dtype=dtype, quant=quant, layout=layout)
    prefill = make_prefill_problem([0, 65, 140], [0, 65, 300], heads=(4, 2), dtype=dtype, quant=quant, layout=layout)
    mask = (torch.rand(3, 4, 2, 2) < 0.5).to(torch.uint8)
    slopes, sink = torch.rand(4), torch.randn(4)
    runs = [
        (decode, {"tree_mask": tree}),
        (decode, {"window": 20, "soft_cap": 2.0}),
        (prefill, {"block_mask": mask, "alibi_slopes": slopes, "sink": sink}),
    ]
    for problem, options in runs:
        # P is left exact: a last-bit difference between the devices' exp could round it to another e4m3 number.
        want, want_lse = problem.reference(lse_base="2", p_quant=None, **options)
        on_gpu = problem.to("cuda")
        assert on_gpu.k_cache.stride() == problem.k_cache.stride()
        moved = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        out, lse = on_gpu.reference(lse_base="2", p_quant=None, **moved)
        assert out.is_cuda
        compare(out.cpu(), want, rms=1e-11)
        compare_lse(lse.cpu(), want_lse, atol=1e-10)
