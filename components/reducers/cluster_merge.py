"""Cluster merge: CTAs that run as a cluster share a sequence and push their raw states into the first one's shared memory, which merges them.

No fence, counter or trip through the L2 cache between: a push completes bytes on the first CTA's mbarrier.  Where a sequence has more parts than a
cluster has CTAs, the merged states of its clusters go through the workspace, and the last cluster to arrive merges those, as `split_merge` does.
The cluster's barrier stands before the roles start (what others push into must be set up) and nowhere else: later all warps of all roles would have to
reach it.  The first CTA outlives all pushes into it, because it waits for their bytes.
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.components.reducers.split_merge import merge_as_last, merge_states
from tle_attn.dialect import (
    F32,
    alloc_barriers,
    alloc_plain,
    as_int64,
    cdiv,
    cluster_push,
    cluster_push_wait,
    cluster_rank,
    cols,
    full_rows,
    jit,
    like_cols,
    minimum,
    reduce_sum,
    rows,
    smem_load,
    smem_load_rows,
    store,
    tile_zeros,
    trans,
)
from tle_attn.spec import Argument, Block, Constant, Function, MBarriers, Problem, Resources, SharedBuffer
from tle_attn.spec.problem import one_of
from tle_attn.spec.types import DType


@frozen(kw_only=True)
class ClusterMerge(Block):
    """Clusters of `size` CTAs along a static split; with as many splits as CTAs nothing is merged outside of the cluster."""

    KIND = "reduce"
    NAME = "cluster_merge"
    #: nobody waits for a CTA of another cluster
    poll_above = POLL_ABOVE = 0

    size: int = field(default=4, validator=one_of((2, 4, 8), "CTAs of a cluster; more than 8 are not portable"))

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "MERGE_UNROLL": Constant(max(1, 64 // problem.columns), "partials whose loads are in flight in the last arriver"),
            "STATE_BYTES": Constant(problem.columns * (problem.value_tile_dim + 2) * 4, "bytes of a pushed state: numerators, maxima, sums"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("partial_o", "*f32", "numerators of clusters of split sequences [slots, columns, head_dim]"),
            Argument("partial_ml", "*f32", "base-2 maximum and sum of them [slots, 2, columns]"),
            Argument("counters", "*i32", "arrivals of clusters [batch * kv heads, 2]; zero before and after a launch"),
        )

    def resources(self, problem: Problem) -> Resources:
        n = problem.columns
        return Resources(
            buffers=(
                SharedBuffer("states", (self.size, n, problem.value_tile_dim), DType.F32, "numerators of the cluster's CTAs"),
                SharedBuffer("sums", (2 * self.size, n), DType.F32, "their maxima and sums"),
            ),
            barriers=(MBarriers("landed", 1, 1, 0, False, ("pushes",), ("attend",)),),
            cluster=self.size,
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("finish"), Function("open_exchange"))


@jit
def open_exchange():
    """Where states of the cluster land, and the barrier that counts their bytes."""
    return alloc_plain([CLUSTER, COLUMNS, VALUE_DIM], F32), alloc_plain([2 * CLUSTER, COLUMNS], F32), alloc_barriers(1)


@jit
def finish(args, o, m, l, unit, seq, head, slot, first_slot, splits, flags, states, sums, landed):
    """Write the rows of an unsplit sequence (slot -1), or join the merge of a split one (slot >= 0); slot -2 is an idle CTA."""
    l = reduce_sum(l, 0)
    if slot == -1:
        row = cols(o)
        d = head_dim_of(rows(o))
        keep = (row < ROWS)[None, :] & (d < VALUE_ELEMENTS if VALUES_PADDED else d >= 0)[:, None]
        write_rows(args, o * like_cols(inverse_of(denominator(args, l, m, head * GROUP + row % GROUP)) * unit, o)[None, :], row[None, :], d[:, None], keep, seq, head)
        write_lse(args, m, l, row, row < ROWS, seq, head)
    if slot >= 0:
        rank = cluster_rank()
        cluster_push(states.slot(rank), 0, trans(o), landed[0])
        cluster_push(sums.slot(2 * rank), 0, m, landed[0])
        cluster_push(sums.slot(2 * rank + 1), 0, l, landed[0])
        if rank == 0:
            live = minimum(first_slot + splits - slot, CLUSTER)
            cluster_push_wait(landed[0], 0, live * STATE_BYTES)
            merge_cluster(args, states, sums, live, unit, seq, head, slot, first_slot, splits)


@jit
def merge_cluster(args, states, sums, live, unit, seq, head, slot, first_slot, splits):
    """The first CTA merges the states of its cluster, in the order of the keys."""
    acc = tile_zeros(COLUMNS, VALUE_DIM, 4)
    l = full_rows(acc, 0.0)
    m = full_rows(acc, float("-inf"))
    for u in range(live):
        more_m = smem_load_rows(sums.slot(2 * u), acc)
        more_l = smem_load_rows(sums.slot(2 * u + 1), acc)
        m, l, acc = merge_states(m, l, acc, (more_m,), (more_l,), (smem_load(states.slot(u)),))
    r = rows(acc)
    d = head_dim_of(cols(acc))
    keep = (r < ROWS)[:, None] & (d < VALUE_ELEMENTS if VALUES_PADDED else d >= 0)[None, :]
    if SPLITS > CLUSTER:
        if splits > CLUSTER:
            merged = as_int64(first_slot + (slot - first_slot) // CLUSTER)
            store(args.partial_o + merged * (COLUMNS * VALUE_DIM) + (r * VALUE_DIM)[:, None] + d[None, :], acc, mask=keep)
            ml = args.partial_ml + merged * (2 * COLUMNS)
            store(ml + r, m, mask=r < ROWS)
            store(ml + COLUMNS + r, l, mask=r < ROWS)
            merge_as_last(args, args.counters + (seq * args.kv_heads + head) * 2, unit, seq, head, first_slot, cdiv(splits, CLUSTER))
        else:
            write_merged(args, m, l, acc, r, d, keep, unit, seq, head)
    else:
        write_merged(args, m, l, acc, r, d, keep, unit, seq, head)


@jit
def write_merged(args, m, l, acc, r, d, keep, unit, seq, head):
    """Output rows of a sequence that one cluster has the whole of."""
    write_rows(args, acc * (inverse_of(denominator(args, l, m, head * GROUP + r % GROUP)) * unit)[:, None], r[:, None], d[None, :], keep, seq, head)
    write_lse(args, m, l, r, r < ROWS, seq, head)
