"""Score and mask steps of the oracle: in the order given, and equal to the named options."""

import torch

from tle_attn.oracle import steps
from tle_attn.testing import make_decode_problem


def problem():
    return make_decode_problem([5, 130, 0, 64], query_tokens=2, heads=(6, 2), head_dim=64, seed=3)


def test_named_options_are_steps():
    case, slopes = problem(), torch.rand(4, 6)
    named, _ = case.reference(soft_cap=2.0, alibi_slopes=slopes)
    out, _ = case.reference(score_steps=(steps.SoftCap(2.0), steps.Alibi(slopes)))
    assert torch.equal(named, out)


def test_order_matters_and_is_the_callers():
    case, slopes = problem(), torch.rand(6)
    cap, alibi = steps.SoftCap(0.5), steps.Alibi(slopes)
    first, _ = case.reference(score_steps=(cap, alibi))
    second, _ = case.reference(score_steps=(alibi, cap))
    both, _ = case.reference(score_steps=(lambda s, *where: alibi(cap(s, *where), *where),))
    assert torch.equal(first, both) and not torch.allclose(first, second, rtol=1e-2)


def test_what_a_step_is_told():
    case, seen = problem(), []

    def step(s, key, query, head, sequence):
        seen.append((tuple(s.shape), key.tolist()[-1:], query.flatten().tolist(), head.flatten().tolist(), sequence))
        return s

    case.reference(score_steps=(step,))
    assert seen == [
        ((3, 2, n), [n - 1][:n], [n - 2, n - 1], heads, b) for b, n in ((0, 5), (1, 130), (2, 0), (3, 64)) for heads in ([0, 1, 2], [3, 4, 5])
    ]


def test_mask_steps_are_joined_with_the_other_masks():
    case = problem()
    window, _ = case.reference(window=9)
    rule, _ = case.reference(mask_steps=(lambda key, query, head, sequence: query - key < 9, lambda key, query, head, sequence: key >= 0))
    assert torch.allclose(window, rule, rtol=1e-12)
    per_head, _ = case.reference(mask_steps=(lambda key, query, head, sequence: (head != 4) | (key < 3),))
    plain, _ = case.reference()
    changed = (per_head != plain).any(dim=(0, 2))
    assert changed.tolist() == [False, False, False, False, True, False]
