"""Decode kernels on the GPU against the float64 oracle."""

import pytest
import torch
from attrs import evolve

from tests.gpu import kernels
from tests.gpu.helpers import check, check_replays, compare_out, problem_for, reference, run
from tle_attn.testing import compare


def by_label(configs):
    return pytest.mark.parametrize("config", configs, ids=lambda c: c.label)


@by_label(kernels.POINTS + kernels.FP8_POINTS)
def test_points(config):
    for layout in ("NHD", "HND"):
        check(config, problem_for(config, layout=layout, seed=1))


@by_label(kernels.GROUPS + kernels.FP8_GROUPS)
def test_groups(config):
    for layout in ("NHD", "HND"):
        check(config, problem_for(config, layout=layout, seed=2))


@by_label(kernels.HEAD_DIM_64)
def test_head_dim_64(config):
    check(config, problem_for(config, seed=3))


@by_label(kernels.SOFT_CAPS)
def test_soft_cap(config):
    """Large scores, so that the cap matters."""
    problem = problem_for(config, seed=4, logit_std=30.0)
    plan = check(config, problem)
    uncapped, _ = problem.reference()
    with pytest.raises(AssertionError):
        compare(reference(plan, problem)[0], uncapped, rms=0.1)


@by_label(kernels.WINDOWS)
def test_window(config):
    """Lengths around the window of 4096 keys, where one query of a request still sees the first key and the next does not."""
    check(config, problem_for(config, (0, 1, 100, 4095, 4096, 4097, 4098, 4099, 4160, 4161, 9000, 20001), seed=5))


@by_label(kernels.VARIANTS)
def test_variants(config):
    """A few rows without keys, short ones that a sink outweighs, and sequences that are split."""
    for layout in ("NHD", "HND"):
        check(config, problem_for(config, layout=layout, seed=14))


@by_label(kernels.LSE)
def test_lse(config):
    check(config, problem_for(config, seed=6))


@by_label(kernels.CLUSTERS)
def test_clusters(config):
    """Sequences of fewer parts than a cluster has CTAs, of one cluster and of several; more clusters than are resident; launches one after the other."""
    for lengths in ((1,), (0, 64, 65, 129, 200, 4096), (70_001, 0, 300), tuple(range(1, 1500, 5))):
        check(config, problem_for(config, lengths, seed=11))


@by_label(kernels.CLUSTERS)
def test_clusters_in_a_graph(config):
    """Equal bits in every replay, while CTAs come and go in any order."""
    problem = problem_for(config, (20_001, 100, 0, 9000, 1), seed=12)
    check_replays(config.plan(5), problem, replays=200)


@by_label(kernels.DETACHED + kernels.EARLY)
def test_early_launches(config):
    """Ragged batches, one long sequence in many parts, batches of more sequences than CTAs that fit at once; partial sums that nobody wrote are NaN."""
    many = torch.randint(0, 400, (600,), generator=torch.Generator().manual_seed(1)).tolist()
    for lengths in ((64, 0, 1, 129, 63, 5003, 65, 127, 0, 128, 3, 4096, 2, 300), (100_003, 5, 0), (70_001,), [*many[:-1], 7000], many[:300]):
        problem = problem_for(config, lengths, seed=15)
        plan = config.plan(len(lengths))
        plan.workspace["partial_o"].fill_(torch.nan)
        plan.workspace["partial_ml"].fill_(torch.nan)
        for _ in range(3):
            compare_out(plan, problem, run(plan, problem)[0])


@by_label(kernels.DETACHED[:1] + kernels.EARLY[:1])
def test_early_launches_give_the_bits_of_ordinary_ones(config):
    """The same parts, added in the same order by the same functions."""
    problem = problem_for(config, (70_001, 4096, 0, 9000, 1), seed=16)
    plain = kernels.config(kernels.DYNAMIC).plan(5)
    assert torch.equal(run(config.plan(5), problem)[0], run(plain, problem)[0])


@by_label(kernels.STAGES)
def test_tiles_around_the_number_of_stages(config):
    stages = dict(config.options)["ring.stages"]
    check(config, problem_for(config, [64 * tiles - cut for tiles in (1, stages, stages + 1, 2 * stages, 2 * stages + 1, 100) for cut in (0, 1)] + [0], seed=7))


@by_label(kernels.MERGES + kernels.POINTS[:1])
def test_many_splits(config):
    """One long sequence in a small batch: cut into as many parts as there are CTAs."""
    plan = check(config, problem_for(config, (100_003, 5, 0), seed=8))
    parts = plan.records[:, 6].max()
    assert parts > 8, "the sequence was expected to be cut into more parts than the last arriver merges"


@pytest.mark.parametrize("config", (kernels.config(kernels.DYNAMIC), kernels.config(kernels.STATIC)), ids=lambda c: c.label)
@pytest.mark.parametrize("batch", [1, 300, 600])
def test_batches_around_the_slots(config, batch):
    """More sequences than CTAs that fit at once, and a single one."""
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.randint(0, 400, (batch,), generator=generator).tolist()
    lengths[-1] = 7000
    check(config, problem_for(config, lengths, seed=9))


def test_empty_and_short_sequences_alternate():
    config = kernels.LSE[0]
    check(config, problem_for(config, (0, 5) * 12, seed=10))


@pytest.mark.parametrize("query_tokens", [1, 3])
def test_new_tokens_not_counted(query_tokens):
    """kv_lens without this step's tokens."""
    config = kernels.config(kernels.DYNAMIC, query_tokens)
    problem = problem_for(config, [n + query_tokens for n in (0, 1, 64, 127, 900, 6000)], seed=11)
    plan = config.plan(6)
    before = evolve(problem, kv_lens=problem.kv_lens - query_tokens)
    out, _ = run(plan, before, new_kv_included=False)
    compare_out(plan, problem, out)


def test_strided_q_and_out():
    """Views into wider tensors: q from a fused projection, out into a larger buffer."""
    config = kernels.config(kernels.DYNAMIC, 3, 16)
    problem = problem_for(config, seed=12)
    rows, heads, dim = problem.q.shape
    wide = torch.randn(rows, heads + 4, dim, dtype=torch.bfloat16, device="cuda")
    wide[:, :heads] = problem.q
    buffer = torch.full((rows, heads + 1, dim + 16), torch.nan, dtype=torch.bfloat16, device="cuda")
    plan = config.plan(len(problem.kv_lens))
    plan.run(wide[:, :heads], problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, out=buffer[:, :heads, :dim])
    compare_out(plan, problem, buffer[:, :heads, :dim])
    assert buffer[:, heads].isnan().all() and buffer[:, :, dim:].isnan().all(), "the kernel wrote beside its output"


def test_softmax_scale():
    config = kernels.config(kernels.DYNAMIC)
    problem = problem_for(config, seed=13)
    plan = config.plan(len(problem.kv_lens))
    out, _ = run(plan, problem, softmax_scale=0.3)
    compare_out(plan, problem, out, softmax_scale=0.3)
