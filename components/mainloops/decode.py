"""Decode mainloop: keys as M, queries as N; a producer warp for K, one for V, one consumer warpgroup, one task per CTA.

All query rows of a (sequence, key/value head) pair share the key tiles, so each tile is read once.  The producers run ahead by the depth of
their rings; the consumer frees a K slot as soon as the scores are done and the V slot after the product.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen

from tle_attn.checks.resources import register_cap, shared_limit
from tle_attn.components.cores.small_m import SmallM
from tle_attn.components.epilogues.store import StoreEpilogue
from tle_attn.components.loaders.paged_tma import PagedTma
from tle_attn.components.mainloops.decode_consumer import attend
from tle_attn.components.mainloops.decode_producers import load_keys, load_values
from tle_attn.components.mainloops.options import check_keys_end, check_sums, check_value_scales
from tle_attn.components.masks.causal import Causal
from tle_attn.components.reducers.split_merge import SplitMerge
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.softmax_scale import SoftmaxScale
from tle_attn.components.schedulers.task_map import TaskMap
from tle_attn.components.softmax.online import OnlineSoftmax
from tle_attn.components.v_operand.direct import DirectV
from tle_attn.dialect import (
    F32,
    I32,
    READY,
    alias,
    alloc,
    alloc_barriers,
    alloc_plain,
    cdiv,
    cluster_barrier,
    cluster_dims,
    fence_async,
    grid_launch_dependents,
    grid_wait,
    jit,
    smem_store,
    warp_specialize,
)
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Mainloop, MBarriers, NamedBarriers, Port, Problem, Resources, Role, SharedBuffer, slot
from tle_attn.spec.problem import at_least
from tle_attn.spec.tasks import RECORD_PAGES
from tle_attn.spec.types import DType, Place

TILE = 64


@frozen(kw_only=True)
class DecodeMainloop(Mainloop):
    """Warp-specialised small-M decode.

    Attributes:
        ctas_per_sm: CTAs that share a multiprocessor; the register file is divided by it.  Two let one CTA's start and merge hide behind
            the other's loads (1 to 3 us on an H200, docs/performance.md).
        producer_registers: registers per thread of a producer warp; it issues copies and needs few.
        batch_invariant: promise that a row's result does not depend on the rest of its batch, bit for bit; it needs a schedule that cuts each sequence by
            its own length alone, which costs time on ragged batches (docs/performance.md).
    """

    KIND = "mainloop"
    NAME = "decode"
    PHASE = "decode"
    ENTRIES = ("decode",)
    CHAINS = {
        "score": ("args", "s", "key", "query", "head", "distance", "of_head", "kv_len", "seq", "first_new"), "head_value": ("args", "value", "head"), "mask": ("args", "s", "key", "query", "head", "kv_len", "seq", "first_new"),
        "first_key": ("args", "first", "kv_len"), "last_tile": ("args", "last", "seq"), "page_numbers": ("args", "pages", "seq", "head"), "tile_token": ("args", "token", "seq", "head"),
        "tile_end": ("args", "end", "seq", "head"), "denominator": ("args", "l", "m", "head"), "log_sum": ("args", "value", "head"), "value_unit": ("args", "unit", "head"),
        "tile_weights": ("args", "p", "ratio", "limit"), "tile_product": ("args", "product", "top"),
    }  # fmt: skip

    ctas_per_sm: int = field(default=2, validator=at_least(1, "CTAs that share a multiprocessor", 4), metadata={"tune": (1, 2, 3)})
    producer_registers: int = field(default=32, validator=at_least(24, "registers per thread; setmaxnreg takes multiples of 8 from 24", 240))

    batch_invariant: bool = False

    loader: Block = slot("loader", factory=PagedTma, says=("PAGED", "evict_first", "expect_scale"))
    ring: Block = slot("ring", factory=MbarrierRing)
    qk: Block = slot("qk", factory=SmallM)
    scale: Block = slot("scale", factory=SoftmaxScale, says=("KEY_SCALES", "VALUE_SCALES"))
    score: tuple[Block, ...] = slot("score", many=True)
    mask: tuple[Block, ...] = slot("mask", many=True, factory=lambda: (Causal(),))
    softmax: Block = slot("softmax", factory=OnlineSoftmax, says=("NORMALISED",))
    v_operand: Block = slot("v_operand", factory=DirectV)
    schedule: Block = slot("schedule", factory=TaskMap, says=("PLANNED", "BATCH_INVARIANT", "pdl", "page_ids"))
    reduce: Block = slot("reduce", factory=SplitMerge, says=("POLL_ABOVE", "poll_above", "HELPERS"))
    epilogue: Block = slot("epilogue", factory=StoreEpilogue)

    def settled(self, problem: Problem) -> DecodeMainloop:
        """Of loader, ring, schedule and reducer: what depends on each other and on what fits."""
        planned = self.schedule.PLANNED
        # which pages a list names is another question in every layer, and one map is for all of them
        listed = any("page_numbers" in block.HOOKS for _, block in self.parts())
        loop = evolve(
            self, loader=settle(self.loader, evict_first=planned), schedule=settle(self.schedule, page_ids=self.loader.PAGED and not listed),
            reduce=settle(self.reduce, poll_above=self.reduce.POLL_ABOVE if planned else 0),
        )  # fmt: skip
        if self.ring.stages is not None:
            return loop
        tile = 2 * TILE * problem.head_dim * problem.dtype.nbytes
        fitting = [evolve(loop, ring=evolve(self.ring, stages=n)) for n in range(max(1, self.ring.RING_BYTES // self.ctas_per_sm // tile), 0, -1)]
        return next((loop for loop in fitting if loop.resources(problem).shared_bytes <= shared_limit(self.ctas_per_sm)), fitting[-1])

    def check(self, problem: Problem) -> None:
        check_keys_end(self.mask)
        if self.batch_invariant and not self.schedule.BATCH_INVARIANT:
            raise SpecError(
                f"{self.schedule.NAME} cuts a sequence by what else is in the batch", key="batch_invariant", value=True,
                allowed='schedule.block = "static_split"', reason="sums are rounded by where they are cut, so a row would differ from batch to batch",
            )
        if not self.schedule.PLANNED:
            for key, value, allowed, reason in (
                ("loader.evict_first", self.loader.evict_first, "false, or left out", "the task map says how far K and V exceed the L2 cache, and a static split has none"),
                ("reduce.poll_above", self.reduce.poll_above, "0, or left out", "CTAs may wait for each other only where all are resident at once, and of a static grid nobody knows"),
            ):
                if value:
                    raise SpecError(f"{self.schedule.NAME} makes no use of {key}", key=key, value=value, allowed=allowed, reason=reason)
        cluster = self.reduce.resources(problem).cluster
        if cluster > 1 and self.schedule.PLANNED:
            raise SpecError(
                f"{self.reduce.NAME} needs a static split", key="reduce.block", value=self.reduce.NAME, allowed="schedule.block = \"static_split\"",
                reason="a cluster's CTAs are consecutive parts of one sequence; the tasks of a map are as they come",
            )
        if cluster > 1 and self.schedule.splits % cluster:
            raise SpecError(
                f"{self.schedule.splits} splits are no whole clusters", key="schedule.splits", value=self.schedule.splits, allowed=f"a multiple of reduce.size, {cluster}",
                reason="a cluster's CTAs are consecutive parts of one sequence",
            )
        joined = {chain for _, block in self.parts() for chain in block.HOOKS}
        if {"first_key", "last_tile"} <= joined:
            raise SpecError(
                "two masks both say which tiles are loaded", key="mask", value=[mask.NAME for mask in self.mask], allowed="one of them",
                reason="one starts at a position, the other walks a list",
            )
        if not self.loader.PAGED and ("last_tile" in joined or self.scale.KEY_SCALES or self.schedule.page_ids):
            key = "mask" if "last_tile" in joined else "scale.block" if self.scale.KEY_SCALES else "schedule.page_ids"
            raise SpecError(f"{self.loader.label()} has no pages", key="loader.block", value=self.loader.NAME, allowed="paged_tma", reason=f"what {key} says is found through page ids")
        check_sums(self.softmax, self.epilogue, self.score, "softmax/online")
        if self.scale.KEY_SCALES and self.ring.stages < 2:
            raise SpecError(
                "K scales per token need a second ring slot", key="ring.stages", value=self.ring.stages, allowed="2 or more",
                reason="a tile's scales are stored after the next tile's copies are started: with one slot producer and consumer would wait for each other",
            )
        check_value_scales(self.scale, self.v_operand)

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "CLUSTER": Constant(self.reduce.resources(problem).cluster, "CTAs of a cluster"),
            "DEPENDENTS": Constant(bool(self.reduce.DEPENDENTS), "a kernel that follows starts while this one runs"),
            "HELPERS": Constant(self.reduce.HELPERS, "CTAs without keys join the merge of their cluster"),
            "VALUE_SCALES": Constant(self.scale.VALUE_SCALES, "the values of every key have a scale of their own"),
            "ELEMENT_BYTES": Constant(problem.dtype.nbytes, "bytes of an element of K and V"),
            "PRODUCER_REGISTERS": Constant(self.producer_registers, "registers per thread of a producer warp"),
            "SKIP_PAGES": Constant(
                any("first_key" in block.HOOKS for _, block in self.parts()) and self.loader.pages(problem) > 1, "a tile's first pages may lie before every window"
            ),
        }

    def dependents(self) -> tuple[str, ...]:
        return (("decode",) if self.schedule.pdl else ()) + super().dependents()

    def launch_note(self, problem: Problem, entry: str) -> str:
        grid = "(tasks,)" if self.schedule.PLANNED else "(splits, batch * kv_heads)"
        if entry == "decode":
            cluster = self.resources(problem).cluster
            grid += f" in clusters of {cluster}" if cluster > 1 else ""
            return f"grid {grid}, 4 warps, at most {register_cap(self.resources(problem))} registers a thread"
        return f"grid {grid}{f', after {self.ENTRIES[0]}' if entry in self.reduce.ENTRIES else ''}, 4 warps"

    def requires(self, problem: Problem) -> tuple[Function, ...]:
        n, d, dv, t = problem.columns, problem.tile_dim, problem.value_tile_dim, problem.dtype
        q = Port("q_smem", t, ("query", "dim"), (n, d), Place.SHARED, "swizzled", "dim")
        k = Port("k_ring.slot", t, ("key", "dim"), (TILE, d), Place.SHARED, "swizzled", "dim")
        v = Port("v_ring.slot", t, ("key", "dim"), (TILE, dv), Place.SHARED, "swizzled", "dim")
        s = Port("s", DType.F32, ("key", "query"), (TILE, n), layout="mma")
        m = Port("m", DType.F32, ("query",), (n,))
        return (
            Function("load_queries", (), (q,)),
            Function("load_tile", (), (k,)),
            Function("qk_product", (k, q), (s,)),
            Function("first_reference", (s,), (m,)),
            Function("softmax_step"),
            Function("query_factor", (s,), (Port("factor", DType.F32, ("query",), (n,)),)),
            Function("clear_v", (v,)),
            Function("take_v", (v,)),
            Function("pv_product"),
            Function("add_product"),
            Function("task"),
            Function("finish"),
            Function("write_rows"),
            Function("write_lse"),
            Function("inverse_of"),
        )

    def resources(self, problem: Problem) -> Resources:
        n, d, dv, t, stages = problem.columns, problem.tile_dim, problem.value_tile_dim, problem.dtype, self.ring.stages
        reducer = self.reduce.resources(problem)
        boxes = stages * self.loader.copies(problem)
        expect = [int(self.loader.box_bytes(problem, dim) * self.loader.expect_scale) for dim in (d, dv)]
        buffers = [
            SharedBuffer("k_ring", (stages, TILE, d), t, "key tiles"),
            SharedBuffer("v_ring", (stages, TILE, dv), t, "value tiles"),
            SharedBuffer("q_smem", (n, d), t, "query rows of the pair"),
            SharedBuffer("p_smem", (2, n, TILE), t, "probabilities of two key tiles"),
        ]
        barriers = [
            MBarriers("k_full", boxes, 1, expect[0], False, ("k copies",), ("attend",)),
            MBarriers("v_full", boxes, 1, expect[1], False, ("v copies",), ("attend",)),
            MBarriers("k_empty", stages, self.ring.readers, 0, True, ("attend",), ("load_keys",)),
            MBarriers("v_empty", stages, self.ring.readers, 0, True, ("attend",), ("load_values",)),
        ]
        if self.schedule.page_ids:
            buffers.append(SharedBuffer("first_ids", (RECORD_PAGES,), DType.I32, "first page ids of the task"))
        if self.scale.KEY_SCALES:
            buffers.append(SharedBuffer("k_scales", (stages, TILE), DType.F32, "scales of key tiles"))
            barriers.append(MBarriers("scales_full", stages, 1, 0, False, ("load_keys",), ("attend",)))
        if self.scale.VALUE_SCALES:
            buffers.append(SharedBuffer("v_ratios", (stages, TILE), DType.F32, "scales of value tiles, relative"))
            buffers.append(SharedBuffer("v_tops", (stages, n), DType.F32, "largest scale of value tiles"))
            barriers.append(MBarriers("ratios_full", stages, 1, 0, False, ("load_values",), ("attend",)))
        return Resources(
            buffers=(*buffers, *reducer.buffers),
            barriers=(*barriers, *reducer.barriers),
            named=(NamedBarriers("publish", 15, 1, 128),),
            roles=(Role("attend", "attend", 4, 0), Role("load_keys", "load_keys", 1, self.producer_registers), Role("load_values", "load_values", 1, self.producer_registers)),
            scratch_bytes=max(4 * n * 4, reducer.scratch_bytes),
            ctas_per_sm=self.ctas_per_sm,
            cluster=reducer.cluster,
        )


def settle(block: Block, **values: Any) -> Block:
    """The block with these values for the options that were left open."""
    return evolve(block, **{name: value for name, value in values.items() if getattr(block, name) is None})


@jit
def tile_range(args, seq, kv_len):
    """Key tiles that a sequence needs: from `first` up to `last`, not included."""
    first = kv_len * 0
    first = first_key(args, first, kv_len)
    return first // TILE, last_tile(args, cdiv(kv_len, TILE), seq)


@jit
def decode(args):
    """One task of the batch: every query row of a (sequence, key/value head) pair against a run of its keys."""
    if CLUSTER > 1:
        cluster_dims(CLUSTER)
    if not PDL:
        # before the set-up, which hides the loads
        seq, head, first, count, kv_len, slot, first_slot, splits, flags = task(args)
        if PAGE_IDS:
            ids = task_pages(args)
    k_ring = alloc([STAGES, TILE, HEAD_DIM], DTYPE)
    v_ring = alloc([STAGES, TILE, VALUE_DIM], DTYPE)
    q_smem = alloc([COLUMNS, HEAD_DIM], DTYPE)
    p_smem = alloc([2, COLUMNS, TILE], DTYPE)
    if TILE_PAGES == 1:
        k_boxes = k_ring
        v_boxes = v_ring
    else:
        k_boxes = alias(k_ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
        v_boxes = alias(v_ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
    if PAGE_IDS:
        first_ids = alloc_plain([PAGE_BLOCK], I32)
    k_full = alloc_barriers(STAGES * COPIES, expect_bytes=BOX_BYTES, more=True)
    v_full = alloc_barriers(STAGES * COPIES, expect_bytes=VALUE_BOX_BYTES, more=True)
    if KEY_SCALES:
        k_scales = alloc_plain([STAGES, TILE], F32)
        scales_full = alloc_barriers(STAGES, more=True)
    if VALUE_SCALES:
        v_ratios = alloc_plain([STAGES, TILE], F32)
        v_tops = alloc_plain([STAGES, COLUMNS], F32)
        ratios_full = alloc_barriers(STAGES, more=True)
    k_empty = alloc_barriers(STAGES, READERS, init=READY, more=True)
    v_empty = alloc_barriers(STAGES, READERS, init=READY)
    if CLUSTER > 1:
        states, sums, landed = open_exchange()
    fence_async()
    if CLUSTER > 1:
        cluster_barrier()
    if PDL:
        # the set-up ran beside the planner; nothing of global memory is touched before its end
        grid_wait()
        seq, head, first, count, kv_len, slot, first_slot, splits, flags = task(args)
        if PAGE_IDS:
            ids = task_pages(args)
    if DEPENDENTS:
        grid_launch_dependents()
    if HELPERS:
        slot = helper_slot(slot, first_slot, splits)
    if slot == -2:
        return
    if PAGE_IDS:
        smem_store(first_ids, ids)
    warp_specialize(
        [
            (
                attend,
                (
                    args, seq, head, first, count, kv_len, slot, first_slot, splits, flags, q_smem, p_smem, k_ring, v_ring, k_scales, v_ratios, v_tops, k_full, v_full,
                    scales_full, ratios_full, k_empty, v_empty, states, sums, landed,
                ),
            ),
            (load_keys, (args, seq, head, first, count, kv_len, flags, first_ids, k_boxes, k_scales, k_full, scales_full, k_empty)),
            (load_values, (args, seq, head, first, count, kv_len, flags, first_ids, v_boxes, v_ratios, v_tops, v_full, ratios_full, v_empty)),
        ],
        [1, 1],
        [PRODUCER_REGISTERS, PRODUCER_REGISTERS],
    )
