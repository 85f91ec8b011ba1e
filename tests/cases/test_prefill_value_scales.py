"""V scales of every token and head in whole prefill kernels: far apart, zero, negative; and texts that get the numbers wrong."""

import pytest
import torch
from attrs import evolve

from tests.cases.helpers import bits, check, kernel_of, launch, prefill_problem_for, run
from tests.checks.mutants import load_mutant, mutated
from tle_attn.codegen import generate
from tle_attn.runtime import plan
from tle_attn.runtime.executors import EmulatedExecutor
from tle_attn.testing import relative_rms, rms_of_rows
from tle_attn.verify import tolerance

RECIPE = "variants/prefill_fp8_kv_per_token"
PAIRS = ((1, 1), (3, 0), (64, 63), (130, 300), (5, 700))


def plainly(problem, kernel):
    """softmax(q k) v in float64, key by key from the page table alone; no poison is looked at."""
    out, page, group = torch.zeros(problem.q.shape, dtype=torch.float64), kernel.problem.page, kernel.problem.group
    for b, length in enumerate(problem.kv_lens.tolist()):
        first, end = problem.cu_seqlens_q[b : b + 2].tolist()
        places = [(int(problem.block_ids[b, t // page]), t % page) for t in range(length)]
        q = problem.q[first:end].double() * problem.q_scale[b, :, : end - first].T.double()[..., None]
        hidden = torch.arange(length) > torch.arange(length - (end - first), length)[:, None]
        for head in range(problem.k_cache.shape[2]) if places else ():
            read = lambda cache, scale, head=head: torch.stack([cache[p, t, head].double() * scale[p, t // 32, head, t % 32].double() for p, t in places])  # noqa: B023, E731
            k, v = read(problem.k_cache, problem.k_scale), read(problem.v_cache, problem.v_scale)
            for row in range(head * group, (head + 1) * group):
                s = (q[:, row] @ k.T / 128**0.5).masked_fill(hidden, -torch.inf)
                out[first:end, row] = torch.softmax(s, 1).nan_to_num() @ v
    return out


def right(problem, result):
    """AssertionError unless each row is off by no more than the rounding of its weights explains, and its log-sum-exp is right."""
    out, lse = (t[: problem.num_queries] for t in result)
    expected, expected_lse = (t[: problem.num_queries] for t in problem.reference(p_quant=None, lse_base="e"))
    size = evolve(problem, v_cache=problem.v_cache.float().abs().to(problem.v_cache.dtype), v_scale=problem.v_scale.abs()).reference(p_quant=None)[0]
    rms = lambda rows: rows.square().mean(2).sqrt()  # noqa: E731
    assert out.isfinite().all()
    assert (rms(out.double() - expected) <= 0.07 * rms(size[: problem.num_queries])).all()
    assert ((lse - expected_lse).abs().nan_to_num() <= 2e-3 + 1e-6 * expected_lse.abs()).all() and (lse.isinf() == expected_lse.isinf()).all()


@pytest.mark.parametrize("options,page,target", [({}, 64, "cpu"), ({"ring.stages": 2}, 16, "cpu"), ({"mainloop.consumers": 1}, 128, "cpu"), ({}, 32, "tle-emulated")])
def test_against_plain_attention(options, page, target, seed):
    """The oracle has a reader of scales of its own; this is a third one."""
    kernel = kernel_of(RECIPE, options, page=page, group=2)
    problem = prefill_problem_for(kernel, PAIRS, 2, seed=seed)
    out, _ = run(kernel, problem, target)
    assert rms_of_rows(out, plainly(problem, kernel)) < tolerance(kernel)[0]
    assert relative_rms(problem.reference(p_quant=None)[0], plainly(problem, kernel)) < 1e-12


@pytest.mark.parametrize("change", [
    lambda s: s.mul_(torch.exp2(torch.randint(-4, 5, s.shape))), lambda s: s.mul_(torch.randint(0, 2, s.shape) * 2 - 1), lambda s: s.mul_(torch.randint(0, 2, s.shape)),
    lambda s: s.mul_(-1), lambda s: s.mul_(2.0**-60), lambda s: s.mul_(2.0**60),
], ids=["apart", "of any sign", "some zero", "negative", "tiny", "huge"])  # fmt: skip
def test_scales_of_every_kind(change, seed):
    torch.manual_seed(seed)
    kernel = kernel_of(RECIPE, group=2)
    problem = prefill_problem_for(kernel, PAIRS, seed=seed)
    change(problem.v_scale)
    right(problem, run(kernel, problem))


def test_tiles_without_any_scale(seed):
    """All scales of a tile 0, of the first, of one in the middle, and of a whole sequence: its output is 0, not NaN."""
    kernel = kernel_of(RECIPE, group=1)
    problem = prefill_problem_for(kernel, ((9, 500), (3, 300), (5, 40)), seed=seed, logit_std=0.25)
    for sequence, page in ((0, 2), (0, 3), (1, 0), (1, 1), (2, 0)):
        problem.v_scale[problem.block_ids[sequence, page].long()] *= 0.0  # NaN stays where no token is
    result = run(kernel, problem)
    check(kernel, problem, result)
    assert not result[0][12:].any()


def test_the_log_sum_exp_knows_nothing_of_them(seed):
    kernel = kernel_of(RECIPE, group=2)
    problem = prefill_problem_for(kernel, PAIRS, seed=seed)
    _, lse = run(kernel, problem)
    problem.v_scale.mul_(torch.exp2(torch.randint(-12, 13, problem.v_scale.shape, generator=torch.Generator().manual_seed(seed))))
    assert bits(run(kernel, problem)[1]) == bits(lse)


def test_one_scale_for_all_is_the_plain_kernel(seed):
    """Every token's scale that of the tensor, a power of two: the same bits."""
    kernel, plain = kernel_of(RECIPE, group=2), kernel_of("variants/prefill_fp8_fp32_sums", group=2)
    problem = prefill_problem_for(kernel, PAIRS, seed=seed)
    ones = torch.ones(problem.k_scale.shape)
    ours = evolve(problem, k_scale=ones, v_scale=ones * 0.25)
    theirs = evolve(problem, k_scale=torch.ones(1), v_scale=torch.tensor([0.25]))
    assert bits(run(kernel, ours)[0]) == bits(run(plain, theirs)[0])


def test_all_schedules_give_the_same_bits(seed):
    kernel = kernel_of(RECIPE, {"ring.stages": 2}, group=1)
    problem = prefill_problem_for(kernel, ((130, 700), (0, 4), (5, 130)), seed=seed)
    assert len({bits(run(kernel, problem, seed=schedule)[0]) for schedule in range(6)}) == 1


#: what makes a result wrong that no protocol is broken by
NUMBERS = {
    "scales past the end": ("there = key < kv_len\n", "there = key < kv_len + 15\n"),
    "the even product as it is": ("even = even * top[:, None]", "even = even"),
    "the odd product as it is": ("odd = odd * top[:, None]", "odd = odd"),
    "weights as they are": ("return p * smem_load_cols(v_ratios.slot(slot_of(i)), p)[None, :]", "return p"),
    "signed top": ("maximum(reduce_max(absolute(scales), 0), LEAST_TOP)", "maximum(reduce_max(scales, 0), LEAST_TOP)"),
    "nothing to divide by": ("maximum(reduce_max(absolute(scales), 0), LEAST_TOP)", "reduce_max(absolute(scales), 0)"),
    "weights scaled before they are added up": ("l = thread_sums(p)\n            p = weighed(v_ratios, ratios_full, done, p)", "p = weighed(v_ratios, ratios_full, done, p)\n            l = thread_sums(p)"),
}


@pytest.mark.parametrize("name", [None, *NUMBERS])
def test_broken_texts(name, tmp_path, seed):
    """A batch on which the text as it is passes: tiles without scales and of negative ones, and poison."""
    kernel = kernel_of(RECIPE, {"ring.stages": 2}, group=1)
    problem = prefill_problem_for(kernel, ((20, 300), (5, 70), (130, 300)), seed=seed, logit_std=0.25)
    numbers, generator = problem.v_scale, torch.Generator().manual_seed(seed)
    numbers.mul_(torch.exp2(torch.randint(-2, 3, numbers.shape, generator=generator)) * (torch.randint(0, 2, numbers.shape, generator=generator) * 2 - 1))
    for page in (2, 3):
        numbers[problem.block_ids[0, page].long()] *= 0.0
    for page in (0, 1):
        numbers[problem.block_ids[1, page].long()] = -numbers[problem.block_ids[1, page].long()].abs()
    text, executor = generate(kernel, "cpu").text, EmulatedExecutor(kernel, tle=False)
    executor.module = load_mutant(mutated(text, *NUMBERS[name]) if name else text, tmp_path)
    result = launch(plan(kernel, **problem.geometry, target="cpu", executor=executor), problem)
    if name is None:
        right(problem, result)
    else:
        with pytest.raises(AssertionError):
            right(problem, result)
