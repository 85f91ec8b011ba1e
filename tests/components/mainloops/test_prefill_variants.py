"""Variants of prefill in emulation: every score, mask and softmax by itself and with others, both element types, one consumer and two, against the float64 oracle."""

import pytest
import torch
from attrs import evolve

import tle_attn
from tle_attn.codegen import generate
from tle_attn.components.masks.causal import Causal
from tle_attn.components.masks.expression import MaskExpression
from tle_attn.components.masks.length import Length
from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.components.scores.alibi import Alibi
from tle_attn.components.scores.expression import ScoreExpression
from tle_attn.components.scores.sink import Sink
from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.components.softmax.row_sigmoid import RowSigmoid
from tle_attn.random_problems import prefill_problem_for
from tle_attn.spec import Kernel
from tle_attn.verify import arguments_of, oracle_options, run_one, tolerance

#: several query tiles and key tiles, a query, more queries than keys, no key, full tiles and tiles that are not
PAIRS = ((200, 389), (0, 5), (1, 130), (70, 40), (3, 0), (64, 256), (130, 700))

FEATURES = {
    "window": {"mask": (Causal(), SlidingWindow(window=100))},
    "window of one key": {"mask": (Causal(), SlidingWindow(window=1))},
    "window of tiles": {"mask": (Causal(), SlidingWindow(window=384))},
    "every key": {"mask": (Length(),)},
    "every key of a window": {"mask": (Length(), SlidingWindow(window=100))},
    "soft cap": {"score": (SoftCap(cap=2.0),)},
    "alibi": {"score": (Alibi(),)},
    "sink": {"score": (Sink(),)},
    "score of a distance": {"score": (ScoreExpression(value="s - 0.25 * log(1.0 + abs(query - key)) / (1 + head % 3)"),)},
    "score of positions": {"score": (ScoreExpression(value="s + 0.01 * key if key % 2 == 0 else s - 0.5 * tanh(0.01 * query)"),)},
    "mask of positions": {"mask": (Causal(), MaskExpression(value="key < 4 or query - key < 90"))},
    "mask of a distance": {"mask": (Causal(), MaskExpression(value="(query - key) % 3 != 1"))},
    "sigmoid": {"softmax": RowSigmoid(bias=-2.0)},
    "sigmoid, window, alibi": {"softmax": RowSigmoid(), "score": (Alibi(),), "mask": (Causal(), SlidingWindow(window=140))},
    "sink, soft cap, alibi, window": {"score": (SoftCap(cap=3.0), Alibi(), Sink()), "mask": (Causal(), SlidingWindow(window=200))},
    "expressions, window": {
        "score": (ScoreExpression(value="s + sigmoid(s) * 0.1"),), "mask": (Causal(), SlidingWindow(window=300), MaskExpression(value="key % 5 != 0 or key == query"))
    },
}  # fmt: skip


def kernel_of(parent: str, feature: str, **options) -> Kernel:
    """The parent with a feature, for heads of 64, which takes less time; with a log-sum-exp where there is one."""
    slots = FEATURES[feature]
    lse = {} if "softmax" in slots else {"epilogue.lse": "e"}
    kernel = tle_attn.load(parent).set({"problem.head_dim": 64, "problem.group": 2, **lse, **options}).kernel()
    return evolve(kernel, mainloop=evolve(kernel.mainloop, **slots))


def check(kernel: Kernel, target: str, seed: int, pairs=PAIRS, **options) -> None:
    problem = prefill_problem_for(kernel, pairs, seed=seed, padding_rows=3, **options)
    _, failure = run_one(kernel, target, problem, tolerance(kernel)[0], seed)
    assert failure is None, failure


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("parent", ["hy3/prefill_bf16", "hy3/prefill_fp8"])
def test_against_the_oracle(target, seed, parent, feature):
    check(kernel_of(parent, feature), target, seed)


@pytest.mark.parametrize("feature", ["every key of a window", "sink, soft cap, alibi, window", "sigmoid", "mask of positions"])
@pytest.mark.parametrize("head_dim,value_dim", [(192, 128), (256, 256)])
def test_of_large_heads(seed, head_dim, value_dim, feature):
    check(kernel_of("hy3/prefill_bf16", feature, **{"problem.head_dim": head_dim, "problem.value_dim": value_dim, "problem.group": 1}), "cpu", seed)


@pytest.mark.parametrize("feature", ["window", "sink, soft cap, alibi, window", "sigmoid", "mask of positions"])
def test_one_consumer(seed, feature):
    check(kernel_of("hy3/prefill_bf16", feature, **{"mainloop.consumers": 1}), "cpu", seed)


def test_scales_of_keys_under_scores_of_all_kinds(seed):
    kernel = tle_attn.load("hy3/prefill_fp8_per_token").set({"problem.group": 2, "epilogue.lse": "2"}).kernel()
    check(evolve(kernel, mainloop=evolve(kernel.mainloop, **FEATURES["sink, soft cap, alibi, window"])), "cpu", seed, ((130, 300), (5, 0), (64, 64)))


@pytest.mark.parametrize("parent", ["hy3/prefill_bf16_contiguous", "variants/prefill_fp8_contiguous"])
@pytest.mark.parametrize("feature", ["alibi", "window", "sink"])
def test_without_pages(seed, parent, feature):
    kernel = tle_attn.load(parent).set({"problem.group": 2, "epilogue.lse": "e"}).kernel()
    check(evolve(kernel, mainloop=evolve(kernel.mainloop, **FEATURES[feature])), "cpu", seed, ((200, 200), (0, 0), (1, 1), (129, 129)))


@pytest.mark.parametrize("parent", ["hy3/prefill_bf16_contiguous", "variants/prefill_fp8_contiguous"])
def test_a_block_mask_without_pages(seed, parent):
    kernel = tle_attn.load(parent).set({"problem.group": 2, "epilogue.lse": "e", "tiles.block": "block_mask"}).kernel()
    check(kernel, "cpu", seed, ((400, 400), (0, 0), (1, 1), (129, 129)))


def test_a_sink_with_a_block_mask(seed):
    """Rows of which the mask keeps nothing have output 0 and the sink as their log-sum-exp."""
    kernel = tle_attn.load("hy3/prefill_bf16_block_mask").set({"problem.group": 2, "epilogue.lse": "e"}).kernel()
    check(evolve(kernel, mainloop=evolve(kernel.mainloop, score=(Sink(),))), "cpu", seed, ((300, 700), (70, 40)), mask_density=0.3)


@pytest.mark.parametrize("head_dim,window", [*((64, window) for window in range(1, 400, 19)), *((256, window) for window in range(3, 200, 31))])
def test_windows_of_all_sizes(head_dim, window):
    """Where the tiles that need a mask begin and end, for units of one row and of many, and tiles of 128 keys and of 64."""
    kernel = tle_attn.load("hy3/prefill_bf16").set({"problem.head_dim": head_dim, "problem.group": 1, "epilogue.lse": "e"}).kernel()
    check(evolve(kernel, mainloop=evolve(kernel.mainloop, mask=(Causal(), SlidingWindow(window=window)))), "cpu", window, ((129, 129 + 3 * window), (1, 300), (64, 127 + window)))


def test_tiles_inside_a_window_are_not_masked():
    """The text of a windowed kernel has a step without a mask, as the plain kernel's has."""

    def steps(feature):
        words = "".join(generate(kernel_of("hy3/prefill_bf16", feature), "cpu").text.split())
        return words.count("o,p,m,l,True,)"), words.count("o,p,m,l,False,)") + words.count("o,p,m,l,MASK_ALL,)")

    assert steps("window") == steps("soft cap") == (1, 1) and steps("mask of positions") == (1, 0)


@pytest.mark.parametrize("value,relative", [
    ("s - 0.1 * (query - key)", True), ("s if key - query == 0 else 2.0 * s", True), ("s * (1 + head)", True), ("s - 0.1 * query", False), ("distance = query - key\ns + distance * key", False),
])  # fmt: skip
def test_whether_positions_are_needed_or_their_difference(value, relative):
    assert ScoreExpression(value=value).RELATIVE == relative


def test_a_sum_by_hand(seed):
    """A sink, ALiBi and a window without the oracle: one sequence, one head, in torch."""
    kernel = kernel_of("hy3/prefill_bf16", "sink, soft cap, alibi, window")
    problem = prefill_problem_for(kernel, ((140, 333),), seed=seed)
    given = arguments_of(kernel, problem)
    out, lse = tle_attn.plan(kernel, **problem.geometry, target="cpu").run(**problem.inputs, **given)
    pages = problem.block_ids[0, :6].long()
    k, v = (cache[pages].reshape(-1, 64)[:333].double() for cache in (problem.k_cache, problem.v_cache))
    apart = torch.arange(193, 333)[:, None] - torch.arange(333)
    for head in range(2):
        s = 3.0 * torch.tanh(problem.q[:, head].double() @ k.T / 8 / 3.0) - given["alibi_slopes"][head].double() * apart.abs()
        s = torch.cat([s.masked_fill((apart < 0) | (apart >= 200), -torch.inf), given["sinks"][head].double().expand(140, 1)], 1)
        assert (torch.logsumexp(s, 1) - lse[:, head]).abs().max() < 2e-3
        expected = torch.softmax(s, 1)[:, :-1] @ v
        assert (out[:, head] - expected).norm() < 4e-3 * expected.norm()
    assert set(oracle_options(kernel, given)) == {"causal", "window", "score_steps", "sink", "empty_row"}
