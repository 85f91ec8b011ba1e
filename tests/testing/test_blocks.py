"""The block-test helper fails where it should: wrong results, unwritten outputs, and descriptions that do not fit the function."""

import re

import pytest
import torch
from attrs import frozen

import tle_attn
from tle_attn.components.cores.small_m import SmallM
from tle_attn.components.masks.causal import Causal
from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.components.softmax.online import OnlineSoftmax
from tle_attn.components.v_operand.direct import DirectV
from tle_attn.errors import LinkError
from tle_attn.spec import Argument, Constant, DType, Function, Port, Problem
from tle_attn.testing.blocks import BlockRun, BlockTest, check_block
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel


class TestWrongResults:
    def test_a_wrong_definition(self):
        with pytest.raises(AssertionError, match=r"s: relative RMS error .* most at \[\d+, \d+\]"):
            check_block(SoftCap(cap=3.0), "soft_cap_scores", reference=lambda s: s.double())

    def test_a_mask_that_is_off_by_one(self):
        with pytest.raises(AssertionError, match="elements are of another kind"):
            check_block(Causal(), "causal_mask", inputs={"key": torch.arange(64)[:, None], "query": torch.full((1, 8), 9)},
                        reference=lambda s, key, query: torch.where(key < query, s, -torch.inf))  # fmt: skip

    def test_one_wrong_element_among_many(self):
        def reference(s):
            wrong = SoftCap(cap=3.0).reference(s)
            wrong[13, 5] += 0.01
            return wrong

        with pytest.raises(AssertionError, match=r"most at \[13, 5\]"):
            check_block(SoftCap(cap=3.0), "soft_cap_scores", reference=reference)

    @pytest.mark.parametrize("out,message", [
        (torch.tensor([1.0, torch.nan]), r"x\[1\] is nan, the reference 2.0"), (torch.tensor([1.0, torch.inf]), r"x\[1\] is inf, the reference 2.0"),
        (torch.tensor([1.0, 2.1]), "relative RMS error"), (torch.tensor([1.0]), r"x has shape \[1\], the reference \[2\]"),
    ])  # fmt: skip
    def test_comparison(self, out, message):
        with pytest.raises(AssertionError, match=message):
            BlockRun({"x": out}, {"x": torch.tensor([1.0, 2.0])}).compare(1e-3)

    def test_infinities_and_nan_of_the_reference_are_wanted(self):
        special = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0])
        BlockRun({"x": special}, {"x": special.clone()}).compare(0.0)
        with pytest.raises(AssertionError, match=r"x\[1\] is inf"):
            BlockRun({"x": torch.tensor([torch.inf, torch.inf])}, {"x": torch.tensor([torch.inf, -torch.inf])}).compare(1.0)

    def test_outputs_start_poisoned(self):
        """A scalar that the mini-kernel would not write stays what no result is."""
        outputs = {p.name: p for p in (Port("i", DType.I32, (), ()), Port("f", DType.F32, ("query",), (8,)))}
        from tle_attn.testing.blocks import _poison

        assert torch.isnan(_poison(outputs["f"], torch.device("cpu"))).all() and _poison(outputs["i"], torch.device("cpu")) < -(2**30)


class TestDescriptions:
    @pytest.mark.parametrize("make,message", [
        (lambda: check_block(SoftCap(cap=3.0), "cap_scores"), "score/soft_cap types no ports of cap_scores"),
        (lambda: check_block(DirectV(), "head_dim_of"), "v_operand/direct types no ports of head_dim_of; give ports="),
        (lambda: check_block(DirectV(), "clear_v"), "clear_v takes valid, which no port types: give it in inputs"),
        (lambda: check_block(SmallM(), "load_queries", inputs={"seq": 0, "head": 0}), "missing: ['q', 'q_head_stride', 'q_token_stride']"),
        (lambda: check_block(SoftCap(cap=3.0), "soft_cap_scores", reference=lambda s: (s, s)), "gives 2 results for the outputs s"),
        (lambda: check_block(SoftCap(cap=3.0), "soft_cap_scores", inputs={"slope": 3}), "not taken: ['slope']"),
    ])  # fmt: skip
    def test_what_does_not_fit(self, make, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()

    def test_a_function_that_is_not_there(self):
        ports = Function("cap_scores", (), (Port("s", DType.F32, ("key", "query"), (64, 8)),))
        with pytest.raises(ValueError, match="has no device function cap_scores; it has soft_cap_scores"):
            check_block(SoftCap(cap=3.0), "cap_scores", ports=ports)

    def test_a_block_without_a_reference(self):
        with pytest.raises(ValueError, match="has no reference; give reference="):
            BlockTest(block=frozen(type("Bare", (), {"label": staticmethod(lambda: "kind/bare")}))(), function="f").expected({})


class TestMiniKernel:
    def test_what_it_looks_like(self):
        text = tle_attn.generate(BlockTest(block=DirectV(), function="clear_v", inputs={"valid": 3}).kernel, "gluon").text
        body = text.split("def test(")[1]
        for line in (
            '"""clear_v of v_operand/direct."""',
            "v_tile = alloc([64, 128], BF16)",
            "fence_async()",
            "clear_v(v_tile, in_valid)",
            "v_tile_back = smem_load(v_tile)",
        ):
            assert line in body, body

    def test_constants_are_compile_time(self):
        text = tle_attn.generate(BlockTest(block=DirectV(), function="publish_p", inputs={"limit": Constant(3.0)}).kernel, "cpu").text
        assert "INPUT_LIMIT = constexpr(3.0)" in text and "publish_p(p_tile, p, INPUT_LIMIT)" in text

    def test_companions_bring_what_is_missing(self):
        kernel = BlockTest(block=OnlineSoftmax(), function="softmax_step").kernel
        assert [type(b) for _, b in kernel.blocks[:-1]] == [OnlineSoftmax, DirectV]
        with pytest.raises(LinkError, match="uses publish_p, which is no operation of the dialect"):
            tle_attn.generate(BlockTest(block=OnlineSoftmax(), function="softmax_step", companions=()).kernel, "cpu")

    def test_equal_tests_are_equal_kernels(self):
        make = lambda: mini_kernel("@jit\ndef test(args):\n    store(args.x, 1)\n", arguments=[Argument("x", "*i32", "")])  # noqa: E731
        assert make() == make() and hash(make()) == hash(make())

    def test_arguments_by_name(self):
        kernel = mini_kernel("@jit\ndef test(args):\n    store(args.x, args.n)\n", arguments=[Argument("x", "*i32", ""), Argument("n", "i32", "")])
        x = torch.zeros(1, dtype=torch.int32)
        run_kernel(kernel, {"n": 7, "x": x})
        assert x.item() == 7
        with pytest.raises(ValueError, match=re.escape("test takes n, x; missing: ['n'], not taken: ['m']")):
            run_kernel(kernel, {"m": 7, "x": x})

    def test_problem_reaches_the_blocks(self):
        kernel = BlockTest(block=SmallM(), function="qk_product", problem=Problem(query_tokens=2, head_dim=64)).kernel
        assert kernel.problem.columns == 16 and "q_smem = alloc([16, 64], BF16)" in tle_attn.generate(kernel, "cpu").text
