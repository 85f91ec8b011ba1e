"""Every rule for the tensors of a run: its error names the tensor and the rule; nothing was launched, and nothing written."""

import re

import pytest
import torch

from tle_attn.errors import InputError, InputTypeError, SpecError
from tle_attn.runtime.inputs import check_argument
from tle_attn.spec import Argument
from tle_attn.testing import make_decode_problem

BF16, F32 = torch.bfloat16, torch.float32


def odd(tensor: torch.Tensor, by: int = 1) -> torch.Tensor:
    """The same values, `by` elements further on in memory."""
    flat = torch.zeros(tensor.numel() + by, dtype=tensor.dtype)
    flat[by:] = tensor.reshape(-1)
    return flat[by:].view(tensor.shape)


def padded(tensor: torch.Tensor, dim: int, by: int) -> torch.Tensor:
    """The same values in a tensor that is `by` elements wider in `dim`."""
    shape = list(tensor.shape)
    shape[dim] += by
    wide = torch.zeros(shape, dtype=tensor.dtype)
    view = wide.narrow(dim, 0, tensor.shape[dim])
    view.copy_(tensor)
    return view


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, two elements apart in the last dimension."""
    return torch.stack([tensor, tensor], -1)[..., 0]


CASES = {
    # q: [batch * query_tokens, query_heads, head_dim] = (3, 8, 128)
    "q is no tensor": ("q", lambda t: t.tolist(), InputTypeError, "q: a torch.Tensor is wanted, not list"),
    "q dtype": ("q", lambda t: t.float(), InputTypeError, "q: dtype float32 where bfloat16 is wanted"),
    "q device": ("q", lambda t: t.to("meta"), InputError, "q: on meta, but the plan is for cpu"),
    "q heads": ("q", lambda t: t[:, :4], InputError, "q: shape (3, 4, 128) where [batch * query_tokens, query_heads, head_dim] = (3, 8, 128) is wanted"),
    "q rank": ("q", lambda t: t[0], InputError, "q: shape (8, 128) where"),
    "q of more tokens": (
        "q", lambda t: torch.cat([t, t]), InputError,
        "q: 6 rows for a batch of 3 are 2 query tokens per request, but the plan is for 1; make a plan with query_tokens=2 (supported: query_tokens * group <= 64)",
    ),
    "q rows": ("q", lambda t: t[:2], InputError, "q: shape (2, 8, 128) where"),
    "q last stride": ("q", strided, InputError, "q: stride 2 in the last dimension where 1 is wanted"),
    "q token stride": ("q", lambda t: padded(t.view(3, 1024), 1, 8).view(3, 8, 128), InputError, "q: token stride 1032 is not a multiple of 16 (16-byte loads)"),
    "q head stride": ("q", lambda t: padded(t, 2, 8), InputError, "q: head stride 136 is not a multiple of 16 (16-byte loads)"),
    "q address": ("q", odd, InputError, "q: address"),
    # caches: [pages, page, kv_heads, head_dim]
    "k dtype": ("k_cache", lambda t: t.half(), InputTypeError, "k_cache: dtype float16 where bfloat16 is wanted"),
    "v dtype": ("v_cache", lambda t: t.float(), InputTypeError, "v_cache: dtype float32 where bfloat16 is wanted"),
    "k page": ("k_cache", lambda t: t[:, :32], InputError, "where [pages, page, kv_heads, head_dim] = (any, 64, 1, 128) is wanted"),
    "v pages": ("v_cache", lambda t: t[1:], InputError, "v_cache: "),
    "v head_dim": ("v_cache", lambda t: t[..., :64], InputError, "v_cache: shape"),
    "no pages": ("k_cache", lambda t: t[:0], InputError, "k_cache: no pages; TMA cannot describe an empty cache"),
    "k last stride": ("k_cache", strided, InputError, "k_cache: stride 2 in the last dimension where 1 is wanted (TMA)"),
    "k page stride": ("k_cache", lambda t: padded(t.view(-1, 8192), 1, 4).view(-1, 64, 1, 128), InputError, "k_cache: page stride in bytes 16392 is not a multiple of 16 (TMA)"),
    "v token stride": ("v_cache", lambda t: padded(t, 3, 2), InputError, "v_cache: token stride in bytes 260 is not a multiple of 16 (TMA)"),
    "v address": ("v_cache", lambda t: odd(t, 4), InputError, "v_cache: address"),
    # tables
    "block_ids dtype": ("block_ids", lambda t: t.long(), InputTypeError, "block_ids: dtype int64 where int32 is wanted"),
    "block_ids rows": ("block_ids", lambda t: t[:2], InputError, "block_ids: shape (2, 7) where [batch, pages of the longest sequence] = (3, any) is wanted"),
    "block_ids stride": ("block_ids", lambda t: t.T.contiguous().T, InputError, "block_ids: stride 3 in the last dimension where 1 is wanted"),
    "kv_lens dtype": ("kv_lens", lambda t: t.long(), InputTypeError, "kv_lens: dtype int64 where int32 is wanted"),
    "kv_lens length": ("kv_lens", lambda t: t[:1], InputError, "kv_lens: shape (1,) where [batch] = (3) is wanted"),
    "kv_lens stride": ("kv_lens", strided, InputError, "kv_lens: stride 2 where 1 is wanted"),
    # outputs
    "out is no tensor": ("out", lambda _: 3, InputTypeError, "out: a torch.Tensor is wanted, not int"),
    "out dtype": ("out", lambda _: torch.zeros(3, 8, 128), InputTypeError, "out: dtype float32 where bfloat16 is wanted"),
    "out shape": ("out", lambda _: torch.zeros(3, 8, 64, dtype=BF16), InputError, "out: shape (3, 8, 64) where"),
    "out stride": ("out", lambda _: strided(torch.zeros(3, 8, 128, dtype=BF16)), InputError, "out: stride 2 in the last dimension where 1 is wanted"),
    "out of one row": ("out", lambda _: torch.zeros(1, 8, 128, dtype=BF16).expand(3, 8, 128), InputError, "out: strides (0, 128, 1) of shape (3, 8, 128) put two elements"),
    "out of rows that overlap": ("out", lambda _: torch.zeros(4096, dtype=BF16).as_strided((3, 8, 128), (512, 128, 1)), InputError, "out: strides (512, 128, 1) of shape"),
    "lse of a kernel without": ("lse", lambda _: torch.zeros(3, 8), InputError, 'lse: this kernel writes none; set epilogue.lse to "e" or "2" in the recipe'),
    # numbers
    "scale": ("softmax_scale", lambda _: float("nan"), InputError, "softmax_scale: nan is not finite"),
    "infinite scale": ("softmax_scale", lambda _: float("inf"), InputError, "softmax_scale: inf is not finite"),
    "scales of bf16": ("k_scale", lambda _: torch.ones(1), InputError, "takes bf16 tensors, which have no scales"),
    # switches
    "new_kv_included": ("new_kv_included", lambda _: "no", InputTypeError, "new_kv_included: True or False is wanted, not 'no'"),
    "scheduled too early": ("scheduled", lambda _: True, InputError, "scheduled: schedule() has not filled this plan's tasks"),
    # arguments of variants
    "unknown argument": ("slopes", lambda _: torch.zeros(8), InputError, "slopes: hy3/decode_bf16 has no such argument"),
    "argument of the plan": ("slots", lambda _: 3, InputError, "slots: not to be given"),
    "workspace": ("partial_o", lambda _: torch.zeros(3), InputError, "partial_o: not to be given"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_before_anything_happens(name, make_plan, executor, arguments):
    which, change, kind, message = CASES[name]
    plan = make_plan()
    outputs = {"out": torch.full((3, 8, 128), 7.0, dtype=BF16)}
    before = {key: tensor.clone() for key, tensor in plan.workspace.items()}
    with pytest.raises(kind, match=re.escape(message)) as caught:
        plan.run(**{**arguments, **outputs, which: change(arguments.get(which))})
    assert str(caught.value).startswith(f"{which}: ") and "\n" not in str(caught.value)
    assert not executor.launches
    assert (outputs["out"] == 7.0).all()
    assert all(torch.equal(plan.workspace[key].view(torch.uint8), before[key].view(torch.uint8)) for key in before)


class TestLse:
    @pytest.mark.parametrize("lse,kind,message", [
        (torch.zeros(3, 8, dtype=BF16), InputTypeError, "lse: dtype bfloat16 where float32 is wanted"),
        (torch.zeros(8, 3), InputError, "lse: shape (8, 3) where [batch * query_tokens, query_heads] = (3, 8) is wanted"),
        (torch.zeros(3, 16)[:, :8], InputError, "lse: must be contiguous"),
        (torch.zeros(8, 3).T, InputError, "lse: stride 3 in the last dimension where 1 is wanted"),
    ])  # fmt: skip
    def test_refused(self, make_plan, executor, arguments, lse, kind, message):
        with pytest.raises(kind, match=re.escape(message)):
            make_plan(options={"epilogue.lse": "e"}).run(**arguments, lse=lse)
        assert not executor.launches

    def test_given_or_made(self, make_plan, arguments):
        plan = make_plan(options={"epilogue.lse": "2"})
        lse = torch.zeros(3, 8)
        assert plan.run(**arguments, lse=lse)[1] is lse
        made = plan.run(**arguments)[1]
        assert made.shape == (3, 8) and made.dtype == F32


class TestAccepted:
    """Views that hold the same values another way."""

    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    def test_layouts_of_the_cache(self, make_plan, executor, layout):
        problem = make_decode_problem([5, 64, 200], heads=(16, 2), layout=layout)
        make_plan(query_heads=16, kv_heads=2).run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
        _, _, values = executor.launches[-1]
        box, address, shape, strides = values["k_desc"]
        pages = problem.k_cache.shape[0]
        assert (shape, address) == ([pages, 2, 64, 128], problem.k_cache.data_ptr()), "(page, head, token, dim) whatever the layout"
        assert strides == ([16384, 128, 256, 1] if layout == "NHD" else [16384, 8192, 128, 1])

    def test_slices(self, make_plan, executor, arguments):
        wide_q = torch.zeros(3, 24, 128, dtype=BF16)  # q, k and v of one projection
        both = torch.zeros(20, 2, 64, 1, 128, dtype=BF16)  # k and v in one cache
        out = torch.zeros(3, 16, 128, dtype=BF16)
        table = torch.zeros(3, 40, dtype=torch.int32)
        changed = {"q": wide_q[:, 8:16], "k_cache": both[:, 0], "v_cache": both[:, 1], "block_ids": table[:, :9]}
        make_plan().run(**{**arguments, **changed}, out=out[:, :8])
        _, _, values = executor.launches[-1]
        assert (values["q_token_stride"], values["q_head_stride"], values["q"].data_ptr()) == (3072, 128, wide_q.data_ptr() + 8 * 256)
        assert (values["block_ids_stride"], values["out_token_stride"], values["out_head_stride"]) == (40, 2048, 128)
        assert values["v_desc"][1] == both.data_ptr() + 64 * 256 and values["v_desc"][3] == [16384, 128, 128, 1]

    def test_a_batch_of_none(self, make_plan, executor):
        problem = make_decode_problem([], extra_pages=1)
        out, lse = make_plan(batch=0).run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
        assert out.shape == (0, 8, 128) and lse is None and not executor.launches

    def test_a_batch_of_none_is_checked_too(self, make_plan):
        problem = make_decode_problem([], extra_pages=1)
        with pytest.raises(InputTypeError, match="q: dtype float32"):
            make_plan(batch=0).run(problem.q.float(), problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)


class TestDebug:
    """`debug` reads lengths and page ids on the host first."""

    def run(self, make_plan, arguments, **changes):
        make_plan().run(**{**arguments, **changes}, debug=True)

    def test_right_values(self, make_plan, executor, arguments):
        self.run(make_plan, arguments)
        assert executor.launches

    @pytest.mark.parametrize("sequence,length", [(0, -1), (2, 7 * 64 + 1)])
    def test_lengths(self, make_plan, executor, arguments, sequence, length):
        lens = arguments["kv_lens"].clone()
        lens[sequence] = length
        with pytest.raises(InputError, match=re.escape(f"kv_lens[{sequence}]: {length} tokens, but block_ids has 7 pages of 64 a sequence")):
            self.run(make_plan, arguments, kv_lens=lens)
        assert not executor.launches

    @pytest.mark.parametrize("page", [-1, 2**31 - 1, 9])
    def test_page_ids(self, make_plan, executor, arguments, page):
        table = arguments["block_ids"].clone()
        table[2, 3] = page
        pages = arguments["k_cache"].shape[0]
        message = f"block_ids[2, 3]: page {page} is in use, but the cache has pages 0 to {pages - 1} (batch 2, logical page 3)"
        with pytest.raises(InputError, match=re.escape(message)):
            self.run(make_plan, arguments, block_ids=table)
        assert not executor.launches

    def test_ids_past_the_end_are_not_looked_at(self, make_plan, executor, arguments):
        assert (arguments["block_ids"][2, 4:] != 0).any(), "poison stands there"
        self.run(make_plan, arguments)

    def test_new_tokens_count(self, make_plan, arguments):
        lens = torch.tensor([5, 64, 7 * 64], dtype=torch.int32)
        arguments["block_ids"].clamp_(0, 3)
        self.run(make_plan, arguments, kv_lens=lens)
        with pytest.raises(InputError, match=re.escape("kv_lens[2]: 449 tokens")):
            self.run(make_plan, arguments, kv_lens=lens, new_kv_included=False)


def test_without_debug_no_value_is_read(make_plan, executor, arguments, monkeypatch):
    """Nothing that would wait for the device: no tolist, item, cpu or comparison of values."""

    def refuse(*_, **__):
        raise AssertionError("a value was read on the host")

    plan = make_plan()
    for name in ("tolist", "item", "cpu", "__bool__", "__int__", "__float__", "numpy", "__eq__", "__lt__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    plan.run(**arguments)
    assert [entry for entry, *_ in executor.launches] == ["plan_tasks", "decode"]


PER_TOKEN, PER_TENSOR, KV_PER_TOKEN = "hy3/decode_fp8_per_token", "hy3/decode_fp8", "variants/decode_fp8_kv_per_token"
QUANT = {PER_TOKEN: 0, PER_TENSOR: 1, KV_PER_TOKEN: "kv_per_token"}
SCALE_CASES = {
    "missing": (PER_TENSOR, "v_scale", lambda t: None, InputError, "v_scale: missing; hy3/decode_fp8 takes fp8 tensors, which mean nothing without their scales (scale/per_tensor)"),
    "q dtype": (PER_TENSOR, "q_scale", lambda t: t.double(), InputTypeError, "q_scale: dtype float64 where float32 is wanted"),
    "q shape": (PER_TENSOR, "q_scale", lambda t: t[:2], InputError, "q_scale: shape (2, 8) where [batch * query_tokens, query_heads] = (3, 8) is wanted"),
    "q stride": (PER_TENSOR, "q_scale", lambda t: t.T.contiguous().T, InputError, "q_scale: stride 3 in the last dimension where 1 is wanted"),
    "k per tensor": (PER_TENSOR, "k_scale", lambda t: torch.ones(2), InputError, "k_scale: shape (2,) where [1] = (1) is wanted"),
    "v per tensor": (PER_TENSOR, "v_scale", lambda t: torch.ones(1, 1), InputError, "v_scale: shape (1, 1) where [1] = (1) is wanted"),
    "v per head": (PER_TOKEN, "v_scale", lambda t: torch.ones(2), InputError, "v_scale: shape (2,) where [kv_heads] = (1) is wanted"),
    "k is no tensor": (PER_TOKEN, "k_scale", lambda t: 1.0, InputTypeError, "k_scale: a torch.Tensor is wanted, not float"),
    "k dtype": (PER_TOKEN, "k_scale", lambda t: t.view(torch.float32).half(), InputTypeError, "k_scale: dtype float16 where float32 is wanted"),
    "k rows": (PER_TOKEN, "k_scale", lambda t: t[:, :1], InputError, "k_scale: shape"),
    "k pages": (PER_TOKEN, "k_scale", lambda t: t[:-1], InputError, "pages, but the cache has"),
    "k last stride of bytes": (PER_TOKEN, "k_scale", lambda t: strided(t.view(torch.uint8)).view(torch.float8_e4m3fn), InputError, "k_scale: strides"),
    "k page stride of bytes": (
        PER_TOKEN, "k_scale", lambda t: padded(t.contiguous().view(torch.uint8).view(-1, 256), 1, 2).view(-1, 2, 1, 128).view(torch.float8_e4m3fn), InputError,
        "k_scale: strides (258, 128, 128, 1) where 1 in the last dimension and multiples of 4 bytes in the others are wanted",
    ),
    "v per token": (KV_PER_TOKEN, "v_scale", lambda t: torch.ones(1), InputError, "v_scale: shape (1,) where [pages, ceil(page / 32), kv_heads, 32] = (any, 2, 1, 32) is wanted"),
    "v missing": (KV_PER_TOKEN, "v_scale", lambda t: None, InputError, "v_scale: missing; variants/decode_fp8_kv_per_token takes fp8 tensors, which mean nothing without their scales"),
    "v dtype": (KV_PER_TOKEN, "v_scale", lambda t: t.view(torch.float32).double(), InputTypeError, "v_scale: dtype float64 where float32 is wanted"),
    "v rows": (KV_PER_TOKEN, "v_scale", lambda t: t[:, :1], InputError, "v_scale: shape"),
    "v pages": (KV_PER_TOKEN, "v_scale", lambda t: t[:-1], InputError, "pages, but the cache has"),
    "v last stride": (KV_PER_TOKEN, "v_scale", lambda t: strided(t.contiguous().view(torch.float32)), InputError, "v_scale: stride 2 in the last dimension where 1 is wanted"),
    "v of other strides": (
        KV_PER_TOKEN, "v_scale", lambda t: padded(t.contiguous().view(torch.uint8).view(-1, 256), 1, 2).view(-1, 2, 1, 128).view(torch.float8_e4m3fn), InputError,
        "v_scale: strides (258, 128, 128, 1) where 1 in the last dimension and multiples of 4 bytes in the others are wanted",
    ),
    "k last stride": (PER_TOKEN, "k_scale", lambda t: strided(t.contiguous().view(torch.float32)), InputError, "k_scale: stride 2 in the last dimension where 1 is wanted"),
}  # fmt: skip


class TestScales:
    """Scales of fp8 tensors: all of them, in the form that the kernel's scale block takes."""

    def arguments(self, recipe: str) -> dict[str, torch.Tensor]:
        problem = make_decode_problem([5, 64, 200], dtype="fp8", quant=QUANT[recipe])
        names = ("q", "k_cache", "v_cache", "block_ids", "kv_lens", "q_scale", "k_scale", "v_scale")
        return {name: getattr(problem, name) for name in names}

    @pytest.mark.parametrize("name", SCALE_CASES)
    def test_refused(self, name, make_plan, executor):
        recipe, which, change, kind, message = SCALE_CASES[name]
        arguments = self.arguments(recipe)
        with pytest.raises(kind, match=re.escape(message)) as caught:
            make_plan(recipe).run(**{**arguments, which: change(arguments[which])})
        assert str(caught.value).startswith(f"{which}: ") and not executor.launches

    def test_scale_of_several_heads_lies_together(self, make_plan, executor):
        problem = make_decode_problem([5, 64], heads=(16, 2), dtype="fp8", quant=0)
        plan = make_plan(PER_TOKEN, batch=2, query_heads=16, kv_heads=2)
        with pytest.raises(InputError, match="v_scale: stride 2 where 1 is wanted"):
            plan.run(
                problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, q_scale=problem.q_scale, k_scale=problem.k_scale, v_scale=strided(problem.v_scale),
            )  # fmt: skip

    @pytest.mark.parametrize("recipe", [PER_TOKEN, PER_TENSOR, KV_PER_TOKEN])
    def test_accepted(self, recipe, make_plan, executor):
        make_plan(recipe).run(**self.arguments(recipe))
        assert [entry for entry, *_ in executor.launches] == ["plan_tasks", "decode"]

    @pytest.mark.parametrize("recipe,name", [(PER_TOKEN, "k_scale"), (KV_PER_TOKEN, "k_scale"), (KV_PER_TOKEN, "v_scale")])
    def test_scales_in_the_cache_and_apart_are_the_same(self, make_plan, executor, recipe, name):
        """Rows of the cache's own pages, as bytes, and a float32 tensor of their own: strides in elements of float32."""
        arguments = self.arguments(recipe)
        inside = arguments[name]
        make_plan(recipe).run(**arguments)
        make_plan(recipe).run(**{**arguments, name: inside.contiguous().view(torch.float32)})
        within, apart = (values for entry, _, values in executor.launches if entry == "decode")
        assert within[name].data_ptr() == inside.data_ptr() and torch.equal(within[name].view(torch.int32), apart[name].view(torch.int32))
        strides = [f"{name}_{what}_stride" for what in ("page", "row", "head")]
        assert [within[s] for s in strides] == [n // 4 for n in inside.stride()[:3]]
        assert [apart[s] for s in strides] == [64, 32, 32]


class TestBlockArguments:
    """What `run` is given for an argument that a block of a variant brings."""

    SLOPES = Argument("slopes", "*f32", "slope of each query head")

    @pytest.mark.parametrize("value,kind,message", [
        (None, InputTypeError, "slopes: a torch.Tensor is wanted, not NoneType"),
        ([1.0], InputTypeError, "slopes: a torch.Tensor is wanted, not list"),
        (torch.zeros(8, dtype=torch.float64), InputTypeError, "slopes: dtype float64 where float32 is wanted"),
        (torch.zeros(8, device="meta"), InputError, "slopes: on meta, but the plan is for cpu"),
        (torch.zeros(16)[::2], InputError, "slopes: must be contiguous"),
    ])  # fmt: skip
    def test_a_tensor_of_another_kind(self, value, kind, message):
        with pytest.raises(kind, match=re.escape(message)):
            check_argument(self.SLOPES, value, torch.device("cpu"), {})

    @pytest.mark.parametrize("type,value", [("i32", 1.5), ("i32", True), ("f32", "1"), ("f32", torch.ones(1))])
    def test_no_number(self, type, value):
        with pytest.raises(InputTypeError, match="limit: a"):
            check_argument(Argument("limit", type, "keys"), value, torch.device("cpu"), {})

    def test_accepted(self):
        check_argument(self.SLOPES, torch.zeros(2, 4), torch.device("cpu"), {})
        check_argument(Argument("limit", "i64", "keys"), 1 << 40, torch.device("cpu"), {})
        check_argument(Argument("factor", "f32", "factor"), 2, torch.device("cpu"), {})

    @pytest.mark.parametrize("shape,message", [
        ((7,), "slopes: shape (7,) where [query_heads] = (8) is wanted"), ((1, 8), "slopes: shape (1, 8) where [query_heads] = (8) is wanted"),
    ])  # fmt: skip
    def test_a_tensor_of_another_shape(self, shape, message):
        argument = Argument("slopes", "*f32", "slope of each query head", shape=("query_heads",))
        with pytest.raises(InputError, match=re.escape(message)):
            check_argument(argument, torch.zeros(shape), torch.device("cpu"), {"query_heads": 8})

    def test_extents_that_nobody_knows(self):
        with pytest.raises(SpecError, match="no extent is called 'query_head'"):
            Argument("slopes", "*f32", "", shape=("query_head",))

    def test_shapes_with_numbers_and_free_extents(self):
        argument = Argument("table", "*u8", "bytes", shape=("batch", 4, None))
        given = torch.ones(2, 4, 7, dtype=torch.bool)
        taken = check_argument(argument, given, torch.device("cpu"), {"batch": 2})
        assert taken.dtype == torch.uint8 and taken.data_ptr() == given.data_ptr()
        with pytest.raises(InputError, match=re.escape("[batch, 4, any] = (2, 4, any)")):
            check_argument(argument, torch.ones(2, 3, 7, dtype=torch.uint8), torch.device("cpu"), {"batch": 2})
