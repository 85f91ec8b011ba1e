"""V scales of every token and head in whole kernels: far apart, zero, negative, beside logits of every size; and texts that get them wrong."""

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import FP8, KV_PER_TOKEN, PARTS, UNSPLIT, bits, check, dominant_key, kernel_of, launch, plan_for, problem_for, run
from tests.checks.mutants import load_mutant, mutated
from tle_attn import emu
from tle_attn.codegen import generate
from tle_attn.runtime import plan
from tle_attn.runtime.executors import EmulatedExecutor
from tle_attn.testing import relative_rms, rms_of_rows
from tle_attn.verify import tolerance

LENGTHS = (1, 0, 63, 64, 65, 700)


def scales(problem):
    """The numbers of its V scales [pages, rows, heads, 32], to be changed in place."""
    return problem.v_scale.view(torch.float32)


def plainly(problem, kernel):
    """softmax(q k) v in float64, key by key from the page table alone; no poison is looked at."""
    out = torch.zeros(problem.q.shape, dtype=torch.float64)
    q = problem.q.double() * problem.q_scale.double()[..., None]
    group, page = kernel.problem.group, kernel.problem.page
    k_scale, v_scale = problem.k_scale.view(torch.float32), scales(problem)
    for b, length in enumerate(problem.kv_lens.tolist()):
        places = [(int(problem.block_ids[b, t // page]), t % page) for t in range(length)]
        for head in range(problem.k_cache.shape[2]) if places else ():
            read = lambda cache, scale, head=head: torch.stack([cache[p, t, head].double() * scale[p, t // 32, head, t % 32].double() for p, t in places])  # noqa: B023, E731
            k, v = read(problem.k_cache, k_scale), read(problem.v_cache, v_scale)
            for i in range(problem.query_tokens):
                seen = length - problem.query_tokens + i + 1
                if seen > 0:
                    row, heads = b * problem.query_tokens + i, slice(head * group, (head + 1) * group)
                    out[row, heads] = torch.softmax(q[row, heads] @ k[:seen].T / 128**0.5, 1) @ v[:seen]
    return out


def right(problem, result):
    """AssertionError unless each row is off by no more than the rounding of its weights explains, and its log-sum-exp is right.

    e4m3 rounds a weight by 2**-4 of itself at most (0.07 with the output's bf16), and by 2**-10 where the largest is 2**7: a key that is dominant and has a scale near 0 leaves the others that.
    """
    out, lse = result
    expected, expected_lse = problem.reference(p_quant=None, lse_base="e")
    numbers = scales(problem)
    size = evolve(problem, v_cache=problem.v_cache.float().abs().to(problem.v_cache.dtype), v_scale=numbers.abs()).reference(p_quant=None)[0]
    largest = (problem.v_cache.double().abs().amax(3).flatten(1).nan_to_num() * numbers.double().abs().permute(0, 1, 3, 2).flatten(1, 3).nan_to_num()).amax()
    keys = problem.kv_lens.repeat_interleave(problem.query_tokens).double()[:, None]
    rms = lambda rows: rows.square().mean(2).sqrt()  # noqa: E731
    assert out.isfinite().all()
    assert (rms(out.double() - expected) <= 0.07 * rms(size) + keys.sqrt() * 2.0**-17 * largest).all()
    assert ((lse - expected_lse).abs().nan_to_num() <= 2e-3 + 1e-6 * expected_lse.abs()).all() and (lse.isinf() == expected_lse.isinf()).all()


@pytest.mark.parametrize("options,page,tokens,target", [
    ({}, 64, 1, "cpu"), (PARTS, 16, 2, "cpu"), ({"softmax.maximum": "exact"}, 128, 1, "cpu"), ({}, 32, 3, "tle-emulated"),
])  # fmt: skip
def test_against_plain_attention(options, page, tokens, target, seed):
    """The oracle has a reader of scales of its own; this is a third one."""
    kernel = kernel_of(KV_PER_TOKEN, options, page=page, query_tokens=tokens)
    problem = problem_for(kernel, (5, 64, 0, 300), 2, seed=seed)
    out, _ = run(kernel, problem, target)
    assert rms_of_rows(out, plainly(problem, kernel)) < tolerance(kernel)[0]
    assert relative_rms(problem.reference(p_quant=None)[0], plainly(problem, kernel)) < 1e-12


@pytest.mark.parametrize("target", ["cpu", "tle-emulated"])
@pytest.mark.parametrize("change", [
    lambda s: s.mul_(torch.exp2(torch.randint(-12, 13, s.shape))), lambda s: s.mul_(torch.randint(0, 2, s.shape) * 2 - 1), lambda s: s.mul_(torch.randint(0, 2, s.shape)),
    lambda s: s.mul_(-1), lambda s: s.mul_(2.0**-60), lambda s: s.mul_(2.0**60),
], ids=["far apart", "of any sign", "some zero", "negative", "tiny", "huge"])  # fmt: skip
def test_scales_of_every_kind(change, target, seed):
    torch.manual_seed(seed)
    kernel = kernel_of(KV_PER_TOKEN, PARTS)
    problem = problem_for(kernel, LENGTHS, seed=seed)
    change(scales(problem))
    right(problem, run(kernel, problem, target))


def test_tiles_without_any_scale(seed):
    """All scales of a tile 0, of the first, of one in the middle, and of a whole sequence: its output is 0, not NaN."""
    kernel = kernel_of(KV_PER_TOKEN)
    problem = problem_for(kernel, (300, 200, 40), seed=seed)
    numbers = scales(problem)
    for sequence, page in ((0, 0), (0, 2), (1, 3), (2, 0)):
        numbers[problem.block_ids[sequence, page].long()] *= 0.0  # NaN stays where no token is
    result = run(kernel, problem)
    check(kernel, problem, result)
    assert not result[0][2].any()


@pytest.mark.parametrize("logit_std", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("maximum", ["lazy", "exact"])
def test_logits_of_great_size(maximum, logit_std, seed):
    """A key whose scale is 0 may have the largest logit by far: its P overflows before the maximum moves."""
    kernel = kernel_of(KV_PER_TOKEN, {"softmax.maximum": maximum})
    problem = problem_for(kernel, (700, 130), seed=seed, logit_std=logit_std)
    torch.manual_seed(seed)
    scales(problem).mul_(torch.randint(0, 2, scales(problem).shape))
    right(problem, run(kernel, problem))


@pytest.mark.parametrize("options", [{}, {"softmax.maximum": "exact"}], ids=["lazy", "exact"])
def test_one_dominant_key_among_diffuse_ones(options, seed):
    """V = 1 of every token, stored as another power of two in every tile, which its scales undo, gives 1 as with one scale for all."""
    kernel = kernel_of(KV_PER_TOKEN, UNSPLIT | options)
    problem = dominant_key(problem_for(kernel, (8193,), seed=seed, poison=False), seed)
    exponents = torch.randint(-6, 8, (len(problem.v_cache), 1, 1), generator=torch.Generator().manual_seed(seed)).expand(problem.v_cache.shape[:3])
    v_cache = torch.exp2(exponents.double())[..., None].expand(problem.v_cache.shape).to(problem.v_cache.dtype)
    v_scale = torch.exp2(-exponents.double()).float().reshape(-1, 2, 32, 1).permute(0, 1, 3, 2).contiguous()
    out, _ = run(kernel, evolve(problem, v_cache=v_cache, v_scale=v_scale), softmax_scale=1.0)
    assert (out.float() - 1).abs().max() < 0.02


def test_the_log_sum_exp_knows_nothing_of_them(seed):
    kernel = kernel_of(KV_PER_TOKEN)
    problem = problem_for(kernel, LENGTHS, seed=seed)
    _, lse = run(kernel, problem)
    scales(problem).mul_(torch.exp2(torch.randint(-12, 13, scales(problem).shape, generator=torch.Generator().manual_seed(seed))))
    assert bits(run(kernel, problem)[1]) == bits(lse)


def test_one_scale_for_all_is_the_plain_kernel(seed):
    """Every token's scale that of the tensor, a power of two: the same bits."""
    kernel, plain = kernel_of(KV_PER_TOKEN), kernel_of(FP8)
    problem = problem_for(kernel, LENGTHS, seed=seed)
    ones = torch.ones(problem.k_scale.view(torch.float32).shape)
    ours = evolve(problem, k_scale=ones, v_scale=ones * 0.25)
    theirs = evolve(problem, k_scale=torch.ones(1), v_scale=torch.tensor([0.25]))
    assert bits(run(kernel, ours)[0]) == bits(run(plain, theirs)[0])


def test_scales_in_the_cache_and_apart_are_the_same(seed):
    kernel = kernel_of(KV_PER_TOKEN)
    for layout in ("NHD", "HND"):
        problem = problem_for(kernel, LENGTHS, 2, seed=seed, layout=layout)
        apart = evolve(problem, v_scale=scales(problem).contiguous(), k_scale=problem.k_scale.view(torch.float32).contiguous())
        assert problem.v_scale.stride() != apart.v_scale.stride()
        assert bits(run(kernel, problem)[0]) == bits(run(kernel, apart)[0])


def test_all_schedules_give_the_same_bits(seed):
    kernel = kernel_of(KV_PER_TOKEN, {"ring.stages": 2})
    problem = problem_for(kernel, (700, 0, 130), seed=seed)
    assert len({bits(run(kernel, problem, seed=schedule)[0]) for schedule in range(6)}) == 1


class TestMutants:
    """Broken texts are noticed: by the emulation's protocol, or by numbers."""

    PROTOCOL = {
        "no wait for the scales": ("    barrier_wait(ratios_full[slot_of(i)], use_of(i))\n", "", {"Race", "Unwritten", "BarrierMisuse"}),
        "wait for the first use always": ("barrier_wait(ratios_full[slot_of(i)], use_of(i))", "barrier_wait(ratios_full[slot_of(i)], 0)", {"Race", "BarrierMisuse"}),
        "scales of the last tile not published": (
            "    if count > 0:\n        publish_value_scales(v_ratios, v_tops, ratios_full, count - 1, scales)\n", "", {"Deadlock"},
        ),
        "scales published before the slot is free": (
            "publish_value_scales(v_ratios, v_tops, ratios_full, i - 1, scales)", "publish_value_scales(v_ratios, v_tops, ratios_full, i, scales)", {"Race", "Deadlock", "BarrierMisuse"},
        ),
        "slot released before the top is read": (
            "            top = take_value_top(v_tops, i, o)\n            product, s = wgmma_wait(0, (product, s))\n            o = add_product(o, tile_product(product, top))\n            release(v_empty, i)\n",
            "            product, s = wgmma_wait(0, (product, s))\n            release(v_empty, i)\n            top = take_value_top(v_tops, i, o)\n            o = add_product(o, tile_product(product, top))\n",
            {"Race", "BarrierMisuse"},
        ),
    }  # fmt: skip
    NUMBERS = {
        "scales past the end": ("mask=(page >= 0) & (vec_index(TILE) < valid), other=0.0", "mask=page >= 0, other=0.0"),
        "the product as it is": ("return product * top[None, :]", "return product"),
        "weights as they are": ("where(p > limit, p, p * ratio[:, None])", "p"),
        "infinity times 0": ("where(p > limit, p, p * ratio[:, None])", "p * ratio[:, None]"),
        "signed top": ("maximum(reduce_max(absolute(scales), 0), LEAST_TOP)", "maximum(reduce_max(scales, 0), LEAST_TOP)"),
        "nothing to divide by": ("maximum(reduce_max(absolute(scales), 0), LEAST_TOP)", "reduce_max(absolute(scales), 0)"),
        "weights scaled twice": ("return m, l + p, o", "return m, l + p * ratio[:, None], o"),
    }  # fmt: skip

    @pytest.fixture
    def kernel(self):
        return kernel_of(KV_PER_TOKEN, {"ring.stages": 2})

    @pytest.fixture
    def text(self, kernel):
        return generate(kernel, "cpu").text

    def executor(self, kernel, text, folder, arithmetic):
        made = EmulatedExecutor(kernel, tle=False)
        made.SMS, made.arithmetic = 1, arithmetic
        made.module = load_mutant(text, folder)
        return made

    def verdict(self, kernel, problem, executor):
        try:
            launch(plan(kernel, **problem.geometry, target="cpu", executor=executor), problem)
        except emu.EmulationError as error:
            return type(error).__name__
        return "accepted"

    @pytest.mark.parametrize("name", PROTOCOL)
    def test_of_the_protocol(self, name, kernel, text, tmp_path, seed):
        old, new, kinds = self.PROTOCOL[name]
        problem = problem_for(kernel, (7 * 64 - 3,) * 2, seed=seed)
        executor = self.executor(kernel, mutated(text, old, new), tmp_path, False)
        for executor.seed in range(6):
            assert self.verdict(kernel, problem, executor) in kinds

    @pytest.mark.parametrize("name", [None, *NUMBERS])
    def test_of_the_numbers(self, name, kernel, text, tmp_path, seed):
        """A batch on which the text as it is passes: tiles without scales and of negative ones, poison, and a key of scale 0 with the largest logit by far."""
        problem = problem_for(kernel, (200, 70, 129), seed=seed, logit_std=0.25)
        numbers, generator = scales(problem), torch.Generator().manual_seed(seed)
        numbers.mul_(torch.exp2(torch.randint(-2, 3, numbers.shape, generator=generator)) * (torch.randint(0, 2, numbers.shape, generator=generator) * 2 - 1))
        numbers[problem.block_ids[0, 1].long()] *= 0.0
        numbers[problem.block_ids[1, 0].long()].abs_().neg_()
        loud = problem.block_ids[2, 1].long()  # the second tile: the reference maximum is that of the first
        numbers[loud, 0, 0, 7] = 0.0
        problem.k_cache[loud, 7, 0] = problem.q[2, 0]
        problem.k_scale.view(torch.float32)[loud, 0, 0, 7] = 4.0
        old_new = self.NUMBERS.get(name)
        executor = self.executor(kernel, mutated(text, *old_new) if old_new else text, tmp_path, True)
        result = launch(plan(kernel, **problem.geometry, target="cpu", executor=executor), problem)
        if name is None:
            assert result[1][2, 0] > 200
            right(problem, result)
        else:
            with pytest.raises(AssertionError):
                right(problem, result)


def test_a_plan_serves_both_places(seed):
    """A plan does not depend on where the scales lie."""
    kernel = kernel_of(KV_PER_TOKEN)
    problem = problem_for(kernel, LENGTHS, seed=seed)
    made = plan_for(kernel, problem)
    first = bits(launch(made, problem)[0])
    assert bits(launch(made, evolve(problem, v_scale=scales(problem).contiguous()))[0]) == first
