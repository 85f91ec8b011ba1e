"""Cluster merge: CTAs that run as a cluster share a sequence and exchange their raw states (m, l, numerator) through distributed shared memory.

exchange = "push": each CTA writes its state into the merging CTA's shared memory; the bytes complete on that CTA's mbarrier, with no fence, counter or
trip through the L2 cache between.  The merging CTA outlives all pushes into it, because it waits for their bytes.
exchange = "pull": each CTA leaves its state in its own shared memory and says so on an mbarrier of the merging CTA, which reads it there and says on an
mbarrier of the owner that it has; the owner outlives all reads.  It takes the shared memory of one state instead of a state for each CTA.

merge = "leader": the first CTA of a cluster merges all query rows.  merge = "sharded": every CTA merges a share of them, the rows of a head after each other;
a CTA of the cluster that has no keys of its own helps.

Where a sequence has more parts than a cluster has CTAs, the merged states of its clusters go through the workspace, and the last CTA to arrive merges those, as
`split_merge` does.  The cluster's barrier stands before the roles start (what others reach must be set up) and nowhere else: later all warps of all roles
would have to come to it.
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.components.reducers.split_merge import merge_as_last, merge_states, partial_constants, write_merged
from tle_attn.dialect import (
    F32,
    alloc_barriers,
    alloc_plain,
    as_int64,
    cdiv,
    cluster_arrive,
    cluster_deal,
    cluster_push,
    cluster_push_wait,
    cluster_rank,
    cluster_wait,
    cols,
    full_rows,
    jit,
    like_cols,
    minimum,
    program_id,
    reduce_sum,
    remote_load_rows,
    rows,
    smem_load,
    smem_load_rows,
    smem_store,
    static_range,
    store,
    tile_zeros,
    trans,
    where,
)
from tle_attn.spec import Argument, Block, Constant, Function, MBarriers, Problem, Resources, SharedBuffer
from tle_attn.spec.problem import one_of
from tle_attn.spec.types import DType


@frozen(kw_only=True)
class ClusterMerge(Block):
    """Clusters of `size` CTAs along a static split; with as many splits as CTAs nothing is merged outside of the cluster.

    Attributes:
        size: CTAs of a cluster.
        exchange: "push" or "pull".
        merge: "leader" or "sharded".
    """

    KIND = "reduce"
    NAME = "cluster_merge"
    #: nobody waits for a CTA of another cluster
    poll_above = POLL_ABOVE = 0

    size: int = field(default=4, validator=one_of((2, 4, 8), "CTAs of a cluster; more than 8 are not portable"))
    exchange: str = field(default="push", validator=one_of(("push", "pull"), "who moves a state: the CTA that has it, or the one that merges it"))
    merge: str = field(default="leader", validator=one_of(("leader", "sharded"), "who merges: the first CTA of a cluster, or each a share of the query rows"))

    @property
    def HELPERS(self) -> bool:
        return self.merge == "sharded"

    @property
    def _mergers(self) -> int:
        """CTAs of a cluster that merge."""
        return self.size if self.merge == "sharded" else 1

    def _share(self, problem: Problem) -> int:
        """Query rows that a merging CTA merges."""
        return problem.columns // self._mergers

    def constants(self, problem: Problem) -> dict[str, Constant]:
        share = self._share(problem)
        return {
            **partial_constants(problem),
            "STATE_BYTES": Constant(share * (problem.value_tile_dim + 2) * 4, "bytes of a pushed state: numerators, maxima, sums"),
            "PULL": Constant(self.exchange == "pull", "states are read where they are"),
            "PULL_UNROLL": Constant(min(self.size, max(1, 64 // share)), "states whose reads are in flight"),
            "SHARDED": Constant(self.merge == "sharded", "every CTA of a cluster merges a share of the query rows"),
            "SHARE": Constant(share, "query rows that a CTA merges", same_as="COLUMNS"),
            "MERGERS": Constant(self._mergers, "CTAs of a cluster that merge"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("partial_o", "*f32", "numerators of clusters of split sequences [slots, columns, head_dim]"),
            Argument("partial_ml", "*f32", "base-2 maximum and sum of them [slots, 2, columns]"),
            Argument("counters", "*i32", "arrivals of clusters [batch * kv heads, 2]; zero before and after a launch"),
        )

    def resources(self, problem: Problem) -> Resources:
        n, d = problem.columns, problem.value_tile_dim
        if self.exchange == "pull":
            buffers = SharedBuffer("states", (n, d), DType.F32, "this CTA's numerators"), SharedBuffer("sums", (2, n), DType.F32, "its maxima and sums")
            landed = MBarriers("landed", self.size + self._mergers, 1, 0, False, ("attend of the cluster",), ("attend",))
            scratch = 0
        else:
            states = SharedBuffer("states", (self.size, self._share(problem), d), DType.F32, "numerators of the cluster's CTAs")
            buffers = states, SharedBuffer("sums", (2 * self.size, n), DType.F32, "their maxima and sums")
            landed = MBarriers("landed", 1, 1, 0, False, ("pushes",), ("attend",))
            scratch = n * d * 4  # a state changes its register layout before it is pushed, so that a thread writes 16 bytes
        return Resources(buffers=buffers, barriers=(landed,), scratch_bytes=scratch, cluster=self.size)

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("finish"), Function("open_exchange"), Function("helper_slot"))


@jit
def open_exchange():
    """Where states of the cluster land, and the barrier that counts their bytes."""
    if PULL:
        # barriers: a CTA's state can be read; a merging CTA has read it
        return alloc_plain([COLUMNS, VALUE_DIM], F32), alloc_plain([2, COLUMNS], F32), alloc_barriers(CLUSTER + MERGERS)
    else:
        return alloc_plain([CLUSTER, SHARE, VALUE_DIM], F32), alloc_plain([2 * CLUSTER, COLUMNS], F32), alloc_barriers(1)


@jit
def helper_slot(slot, first_slot, splits):
    """A slot behind those of the sequence for an idle CTA (-2) of a cluster that merges."""
    behind = first_slot + program_id(0)
    return behind if (slot == -2) & (splits > 1) & (program_id(0) < cdiv(splits, CLUSTER) * CLUSTER) else slot


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
        if PULL:
            live = minimum(first_slot + splits - slot + rank, CLUSTER)
            if rank < live:
                smem_store(states, trans(o))
                smem_store(sums.slot(0), m)
                smem_store(sums.slot(1), l)
                cluster_arrive(landed[rank], MERGERS)
            if rank < MERGERS:
                merge_cluster(args, states, sums, live, unit, seq, head, slot, first_slot, splits, landed, rank)
            if rank < live:
                for merger in static_range(MERGERS):
                    cluster_wait(landed[CLUSTER + merger], 0)
        elif SHARDED:
            live = minimum(first_slot + splits - slot + rank, CLUSTER)
            if rank < live:
                cluster_deal(states.slot(rank), trans(o), SHARE, landed[0])
                cluster_deal(sums.slot(2 * rank), m, SHARE, landed[0])
                cluster_deal(sums.slot(2 * rank + 1), l, SHARE, landed[0])
            cluster_push_wait(landed[0], 0, live * STATE_BYTES)
            merge_cluster(args, states, sums, live, unit, seq, head, slot, first_slot, splits, landed, rank)
        else:
            cluster_push(states.slot(rank), 0, trans(o), landed[0])
            cluster_push(sums.slot(2 * rank), 0, m, landed[0])
            cluster_push(sums.slot(2 * rank + 1), 0, l, landed[0])
            if rank == 0:
                live = minimum(first_slot + splits - slot, CLUSTER)
                cluster_push_wait(landed[0], 0, live * STATE_BYTES)
                merge_cluster(args, states, sums, live, unit, seq, head, slot, first_slot, splits, landed, rank)


@jit
def merge_cluster(args, states, sums, live, unit, seq, head, slot, first_slot, splits, landed, rank):
    """The first CTA merges the states of its cluster, in the order of the keys."""
    acc = tile_zeros(SHARE, VALUE_DIM, 4)
    l = full_rows(acc, 0.0)
    m = full_rows(acc, float("-inf"))
    if PULL:
        m, l, acc = pull_states(m, l, acc, states, sums, live, landed, rank)
    else:
        for u in range(live):
            more_m = remote_load_rows(sums.slot(2 * u), rank, acc, rank * SHARE) if SHARDED else smem_load_rows(sums.slot(2 * u), acc)
            more_l = remote_load_rows(sums.slot(2 * u + 1), rank, acc, rank * SHARE) if SHARDED else smem_load_rows(sums.slot(2 * u + 1), acc)
            m, l, acc = merge_states(m, l, acc, (more_m,), (more_l,), (smem_load(states.slot(u)),))
    r = rank * SHARE + rows(acc) if SHARDED else rows(acc)
    d = head_dim_of(cols(acc))
    keep = (r < ROWS)[:, None] & (d < VALUE_ELEMENTS if VALUES_PADDED else d >= 0)[None, :]
    if SPLITS > CLUSTER:
        if splits > CLUSTER:
            merged = as_int64(first_slot + (slot - first_slot) // CLUSTER)
            store(args.partial_o + merged * (COLUMNS * VALUE_DIM) + (r * VALUE_DIM)[:, None] + d[None, :], acc, mask=keep)
            ml = args.partial_ml + merged * (2 * COLUMNS)
            store(ml + r, m, mask=r < ROWS)
            store(ml + COLUMNS + r, l, mask=r < ROWS)
            clusters = cdiv(splits, CLUSTER)
            merge_as_last(args, args.counters + (seq * args.kv_heads + head) * 2, unit, seq, head, first_slot, clusters, clusters * MERGERS)
        else:
            write_merged(args, m, l, acc, r, d, keep, unit, seq, head)
    else:
        write_merged(args, m, l, acc, r, d, keep, unit, seq, head)


@jit
def pull_states(m, l, acc, states, sums, live, landed, rank):
    """Read this CTA's rows of every state of the cluster, each as soon as it is there, and say that they were read."""
    for first in range(0, live, PULL_UNROLL):
        m, l, acc = add_pulled_states(m, l, acc, states, sums, live, landed, first, rank * SHARE if SHARDED else 0)
    cluster_arrive(landed[CLUSTER + rank], live)
    return m, l, acc


@jit
def add_pulled_states(m, l, acc, states, sums, live, landed, first, row):
    """PULL_UNROLL states from CTA `first` on, their rows from `row` on, join; past the last one it is read again and counts as empty."""
    more_m = ()
    more_l = ()
    more_o = ()
    for u in static_range(PULL_UNROLL):
        there = first + u < live
        owner = minimum(first + u, live - 1)
        cluster_wait(landed[owner], 0)
        more_m = more_m + (where(there, remote_load_rows(sums.slot(0), owner, acc, row), float("-inf")),)
        more_l = more_l + (where(there, remote_load_rows(sums.slot(1), owner, acc, row), 0.0),)
        more_o = more_o + (where(there, remote_load_rows(states, owner, acc, row), 0.0),)
    return merge_states(m, l, acc, more_m, more_l, more_o)
