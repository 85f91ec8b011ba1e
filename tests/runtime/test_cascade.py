"""Cascade: requests that share prefixes, against the oracle over each request's whole sequence."""

import secrets

import pytest
import torch
from attrs import evolve

import tle_attn
from tests.runtime.shared_prefixes import check, run, shared
from tle_attn.errors import InputError, InputTypeError
from tle_attn.runtime.cascade import Layout
from tle_attn.testing import compare, compare_lse

BF16, FP8, STATIC, CAP = "hy3/decode_bf16", "hy3/decode_fp8", "hy3/decode_bf16_static", "variants/decode_bf16_soft_cap"


@pytest.fixture
def seed() -> int:
    value = secrets.randbelow(2**31)
    print(f"seed {value}")
    return value


@pytest.mark.parametrize("prefixes,suffixes", [
    ((300,), ((5, 1, 130, 64, 65),)),
    ((200, 0, 65), ((3, 70), (1,), (64, 2, 9, 100))),  # groups of several sizes, one without a prefix
    ((129,), ((7,),)),  # one request
    ((130, 64), ((0, 5), (0,))),  # empty suffixes
    ((0,), ((0, 3),)),  # nothing at all for a request
])  # fmt: skip
def test_ragged(prefixes, suffixes, seed):
    plan = check(BF16, shared(prefixes, suffixes, query_tokens=1, seed=seed))
    assert plan.prefix.kernel.problem.rows <= 64


@pytest.mark.parametrize("query_tokens,width", [(2, 4), (3, 2), (5, 1)])
def test_several_query_tokens(query_tokens, width, seed):
    """Chunks of as many requests as fit 64 query rows; the last one is not full."""
    case = shared((150,), ((5, 64, 66, 130, 10),), query_tokens=query_tokens, seed=seed)
    plan = check(BF16, case, {"ring.stages": 2} if query_tokens == 5 else {})
    assert plan.layout.width == width and plan.prefix.kernel.problem.query_tokens == query_tokens * width


def test_heads_pages_and_layout(seed):
    check(BF16, shared((70, 33), ((5, 1, 40), (64,)), heads=(6, 2), page=16, layout="HND", seed=seed))


@pytest.mark.parametrize("quant,name", [(1, FP8), (0, "hy3/decode_fp8_per_token"), ("kv_per_token", "variants/decode_fp8_kv_per_token")])
def test_fp8(quant, name, seed):
    check(name, shared((140, 64), ((5, 70, 1), (9, 64)), dtype="fp8", quant=quant, heads=(8, 1), seed=seed))


def test_without_a_task_map_and_with_a_soft_cap(seed):
    check(STATIC, shared((300,), ((5, 64, 66),), seed=seed))
    check(CAP, shared((130,), ((5, 64),), seed=seed, logit_std=30.0), oracle={"soft_cap": tle_attn.load(CAP).kernel().mainloop.score[0].cap})


def test_passes_of_several_launches(seed):
    """Both passes plan, attend and merge in kernels of their own."""
    check("variants/decode_bf16_detached", shared((900, 65), ((5, 640, 66), (700,)), seed=seed), {"schedule.min_tokens": 64})


def test_a_softmax_scale(seed):
    check(BF16, shared((130,), ((5, 64),), seed=seed), oracle={"softmax_scale": 0.2}, softmax_scale=0.2)


def test_a_cascade_is_the_recipe_over_whole_sequences(seed):
    """A prefix of whole pages: its page ids before the suffix's own are the request's whole sequence, which the recipe's kernel reads by itself."""
    case = shared((192, 64), ((5, 1, 130), (0, 64)), seed=seed)
    _, out, lse = run(BF16, case)
    p, n = case.problem, len(case.groups)
    whole = torch.zeros(sum(case.groups), 3 + p.block_ids.shape[1], dtype=torch.int32)
    group_of = [g for g, count in enumerate(case.groups) for _ in range(count)]
    for row, g in enumerate(group_of):
        pages = int(p.kv_lens[g]) // 64
        whole[row] = torch.cat([p.block_ids[g, :pages], p.block_ids[n + row], whole[row, : 3 - pages]])
    plan = tle_attn.load(BF16).set({"epilogue.lse": "e"}).plan(batch=5, query_heads=8, kv_heads=1, target="cpu")
    expected, expected_lse = plan.run(case.tensors["q"], p.k_cache, p.v_cache, whole, p.kv_lens[group_of] + p.kv_lens[n:])
    compare(out, expected.double(), rms=5e-3)
    compare_lse(lse, expected_lse, atol=1e-3)


def test_a_nan_in_a_prefix_is_not_lost(seed):
    """As plain decode gives NaN, and not what the suffix alone would give."""
    case = shared((192,), ((5, 70),), seed=seed)
    p = case.problem
    k_cache = p.k_cache.clone()
    k_cache[p.block_ids[0, 1].long(), 3] = torch.nan
    _, out, lse = run(BF16, evolve(case, problem=evolve(p, k_cache=k_cache)))
    assert out.isnan().all() and lse.isnan().all()


def test_scheduled_and_new_tokens_not_counted(seed):
    case = shared((200,), ((5, 64, 3),), seed=seed)
    tensors = case.tensors
    plan = tle_attn.cascade(BF16, groups=case.groups, query_heads=8, kv_heads=1, target="cpu")
    tensors["suffix_lens"] = tensors["suffix_lens"] - 1
    plan.schedule(*(tensors[name] for name in ("prefix_lens", "suffix_lens")), **{name: tensors[name] for name in ("prefix_ids", "suffix_ids")}, new_kv_included=False)
    out, lse = plan.run(**tensors, new_kv_included=False, scheduled=True)
    assert lse is None
    compare(out, case.reference()[0], rms=4e-3)


class TestLayout:
    @pytest.mark.parametrize("groups", [(1,), (8,), (3, 1, 9), (16, 16), (2, 2, 2)])
    @pytest.mark.parametrize("rows", [1, 8, 24, 64])
    def test_every_request_has_its_place(self, groups, rows):
        layout = Layout.of(groups, rows)
        group_of_request = [g for g, n in enumerate(groups) for _ in range(n)]
        assert layout.width * rows <= 64 and len(layout.request_of) == layout.width * len(layout.group_of)
        assert [layout.request_of[place] for place in layout.place_of] == list(range(sum(groups)))
        for place, request in enumerate(layout.request_of):
            assert layout.group_of[place // layout.width] == group_of_request[request], "no request of another group in a chunk"

    def test_what_is_in_order_is_not_copied(self):
        """Groups of whole chunks: no index is kept, and nothing is gathered."""
        plan = tle_attn.cascade(BF16, groups=[8, 16], query_heads=8, kv_heads=1, target="cpu")
        assert set(plan._index) == {"group_of"}
        assert not tle_attn.cascade(BF16, groups=[2, 2], query_heads=8, kv_heads=1, target="cpu")._index


class TestRefused:
    GEOMETRY = {"query_heads": 8, "kv_heads": 1, "target": "cpu"}

    @pytest.mark.parametrize("groups,error,message", [
        (3, InputTypeError, "groups: a list of counts is wanted, not int"),
        ([2, 0], InputError, "groups: 0 where every group has an integer of requests from 1 up"),
        ([True], InputError, "groups: True where"),
    ])  # fmt: skip
    def test_groups(self, groups, error, message):
        with pytest.raises(error, match=message):
            tle_attn.cascade(BF16, groups=groups, **self.GEOMETRY)

    def test_positions(self):
        with pytest.raises(InputError, match="a cascade cannot have mask/sliding_window; allowed: .*score/soft_cap.*positions are others"):
            tle_attn.cascade("variants/decode_bf16_window", groups=[2], **self.GEOMETRY)

    def test_other_phases(self):
        with pytest.raises(InputError, match="merge/stack: its mainloop merge is for merge, and a cascade is made of decode kernels"):
            tle_attn.cascade(tle_attn.load("merge/stack").kernel(), groups=[2], **self.GEOMETRY)

    @pytest.mark.parametrize("name,change,message", [
        ("prefix_ids", lambda t: t[:0], r"prefix_ids: shape \(0, 4\) where \[groups, pages\] = \(1, any\) is wanted"),
        ("prefix_lens", lambda t: t.long(), "prefix_lens: dtype int64 where int32 is wanted"),
        ("suffix_ids", lambda t: t[:1], r"suffix_ids: shape \(1, 4\) where \[batch, pages\] = \(2, any\) is wanted"),
        ("suffix_lens", lambda t: t.float(), "suffix_lens: dtype float32"),
        ("q", lambda t: t[:1], r"q: shape \(1, 8, 128\) where"),
    ])  # fmt: skip
    def test_tensors(self, name, change, message):
        case = shared((64,), ((5, 3),))
        plan = tle_attn.cascade(BF16, groups=case.groups, **self.GEOMETRY)
        tensors = case.tensors
        with pytest.raises((InputError, InputTypeError), match=message):
            plan.run(**{**tensors, name: change(tensors[name])})

    def test_a_kernel(self):
        """Composed in Python, and of heads that it is not for."""
        kernel = tle_attn.load(BF16).kernel(group=4)
        assert tle_attn.cascade(evolve(kernel, name="mine"), groups=[2], query_heads=8, kv_heads=2, target="cpu").suffix.kernel.name == "mine/suffix"
        with pytest.raises(InputError, match="query_heads: 8 for 1 kv heads"):
            tle_attn.cascade(kernel, groups=[2], **self.GEOMETRY)
