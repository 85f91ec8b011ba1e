"""Prefill mainloop: queries stationary, two consumer warpgroups of 64 rows, one producer; persistent over (query tile, head) units.

A consumer has QK of tile i and PV of tile i - 1 in flight together, and computes the softmax of tile i while PV runs.  Key tiles are visited latest first,
so that those which cross the causal frontier come first, in text of their own; the others need no mask.  The two consumers take turns in the exponentials:
while one computes them, the other feeds the tensor cores.
"""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import instance_of, optional

from tle_attn.checks.resources import register_cap
from tle_attn.components.cores.query_rows import QueryRows
from tle_attn.components.epilogues.store_rows import StoreRows
from tle_attn.components.loaders.paged_tiles import PagedTiles
from tle_attn.components.mainloops.options import check_keys_end, check_sums, check_value_scales
from tle_attn.components.mainloops.prefill_consumer import attend
from tle_attn.components.mainloops.prefill_producer import produce
from tle_attn.components.mainloops.unit_records import RECORDS, WORDS, describe, publish
from tle_attn.components.masks.causal import Causal
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.softmax_scale import SoftmaxScale
from tle_attn.components.schedulers.heavy_first import HeavyFirst
from tle_attn.components.softmax.rows import RowSoftmax
from tle_attn.components.tiles.all_tiles import AllTiles
from tle_attn.components.v_operand.direct_rows import DirectRows
from tle_attn.dialect import F32, I32, READY, alias, alloc, alloc_barriers, alloc_named, alloc_plain, fence_async, jit, program_id, warp_specialize
from tle_attn.errors import SpecError
from tle_attn.spec import Block, Constant, Function, Mainloop, MBarriers, NamedBarriers, Port, Problem, Resources, Role, SharedBuffer, slot
from tle_attn.spec.problem import at_least, one_of
from tle_attn.spec.tasks import MASK_KEYS
from tle_attn.spec.types import DType, Place

M = 64


@frozen(kw_only=True)
class PrefillMainloop(Mainloop):
    """Warp-specialised prefill.

    Attributes:
        consumers: warpgroups of 64 query rows each that share key tiles.  One of them makes units of 64 rows: for problems whose units of 128 rows would leave
            half of the multiprocessors idle.
        exclusive_exp: the consumers take turns in the exponentials.  Worth 2 to 6 % for fp8 on an H200, nothing for bf16.  By default as the element type wants it.
        consumer_registers, producer_registers: registers per thread of the second consumer (the first gets what is left) and of the producer.
    """

    KIND = "mainloop"
    NAME = "prefill"
    PHASE = "prefill"
    ENTRIES = ("prefill",)
    CHAINS = {
        "score": ("args", "s", "key", "query", "head", "distance", "of_head"), "head_value": ("args", "value", "head"), "mask": ("args", "s", "key", "query", "head", "kv_len"),
        "first_key": ("args", "first", "kv_len"),
        "denominator": ("args", "l", "m", "head"), "log_sum": ("args", "value", "head"),
    }  # fmt: skip

    consumers: int = field(default=2, validator=one_of((1, 2), "consumer warpgroups of a CTA"))
    exclusive_exp: bool | None = field(default=None, validator=optional(instance_of(bool)))
    consumer_registers: int = field(default=240, validator=at_least(24, "registers per thread; setmaxnreg takes multiples of 8 from 24", 240))
    producer_registers: int = field(default=24, validator=at_least(24, "registers per thread; setmaxnreg takes multiples of 8 from 24", 240))

    loader: Block = slot("loader", factory=PagedTiles, says=("PAGED",))
    ring: Block = slot("ring", factory=MbarrierRing)
    qk: Block = slot("qk", factory=QueryRows)
    scale: Block = slot("scale", factory=SoftmaxScale, says=("KEY_SCALES", "VALUE_SCALES", "ROW_FACTORS"))
    score: tuple[Block, ...] = slot("score", many=True)
    mask: tuple[Block, ...] = slot("mask", many=True, factory=lambda: (Causal(),))
    tiles: Block = slot("tiles", factory=AllTiles, says=("BLOCK_MASK",))
    softmax: Block = slot("softmax", factory=RowSoftmax, says=("NORMALISED",))
    v_operand: Block = slot("v_operand", factory=DirectRows, says=("TRANSPOSED",))
    schedule: Block = slot("schedule", factory=HeavyFirst)
    epilogue: Block = slot("epilogue", factory=StoreRows, says=("STAGED",))

    def check(self, problem: Problem) -> None:
        if problem.query_tokens != 1:
            raise SpecError("query_tokens is an option of decode", key="problem.query_tokens", value=problem.query_tokens, allowed="left out", reason="a prefill kernel reads its query counts from cu_seqlens_q")
        for mask in self.mask:
            if reason := getattr(mask, "DECODE_ONLY", None):
                raise SpecError(f"{mask.label()} is a mask of decode", key="mask", value=mask.NAME, allowed="causal, length; tiles.block = \"block_mask\" for tiles of 128 x 128", reason=reason)
        check_keys_end(self.mask)
        check_sums(self.softmax, self.epilogue, self.score, "softmax/rows")
        if self.exclusive_exp and self.consumers == 1:
            raise SpecError("one consumer has nobody to take turns with", key="exclusive_exp", value=True, allowed="left out, or consumers = 2", reason="turns are between two consumers")
        if self.positional and self.tiles.BLOCK_MASK:
            raise SpecError(
                "a block mask goes with the causal mask alone", key="tiles.block", value=self.tiles.NAME, allowed="all",
                reason="scores and masks that need a key's position on every tile do not get it when tiles are skipped",
            )
        if self.tiles.BLOCK_MASK and problem.prefill_keys != MASK_KEYS:
            raise SpecError(
                f"a block mask speaks of {MASK_KEYS} keys at a time", key="tiles.block", value=self.tiles.NAME, allowed="all",
                reason=f"with heads of {problem.head_dim} a key tile has {problem.prefill_keys}",
            )
        if self.scale.KEY_SCALES and not self.loader.PAGED:
            raise SpecError(
                "scales of keys lie beside the pages of a cache", key="scale.block", value=self.scale.NAME, allowed="per_tensor", reason=f"{self.loader.label()} reads K and V without pages",
            )
        check_value_scales(self.scale, self.v_operand)
        if self.v_operand.TRANSPOSED and self.ring.stages < 2:
            raise SpecError(
                "a transposed V needs a second ring slot", key="ring.stages", value=self.ring.stages, allowed="2 or more",
                reason="the producer starts the next tile's copies before it transposes this one's V: with one slot it would wait for itself",
            )

    @property
    def mask_all(self) -> bool:
        """Every tile needs the element masks, not only those where keys end or begin."""
        return any(not getattr(mask, "BOUNDS_KEYS", False) and not getattr(mask, "INTERVAL", False) for mask in self.mask)

    @property
    def bounded(self) -> bool:
        """Masks say where a query's keys begin: the tiles behind need none."""
        return not self.mask_all and any(getattr(mask, "INTERVAL", False) for mask in self.mask)

    @property
    def scored(self) -> bool:
        """Scores change between scaling and softmax."""
        return any("score" in score.HOOKS for score in self.score)

    @property
    def positional(self) -> bool:
        """Scores or masks of every tile want positions.  No tile is skipped then, and the text takes a tile's number from the loop's index wherever it can:
        positions of a tile that is fixed in a loop are computed before it, which takes 60 registers.
        """
        return self.mask_all or self.bounded or self.scored

    @property
    def relative(self) -> bool:
        """Nothing asks where keys and queries are, only how far apart: positions may count from the tile's first key, which makes keys constants."""
        return all(getattr(block, "RELATIVE", "score" not in block.HOOKS and "mask" not in block.HOOKS) for block in (*self.score, *self.mask))

    @property
    def causal(self) -> bool:
        """No query sees a key behind its own position, so those tiles are not visited."""
        return any(getattr(mask, "CAUSAL", False) for mask in self.mask)

    @property
    def unit_rows(self) -> int:
        """Query rows of a unit."""
        return M * self.consumers

    def turns(self, problem: Problem) -> bool:
        return problem.dtype is DType.FP8 and self.consumers == 2 if self.exclusive_exp is None else self.exclusive_exp

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "CONSUMER_REGISTERS": Constant(self.consumer_registers, "registers per thread of the second consumer"),
            "PRODUCER_REGISTERS": Constant(self.producer_registers, "registers per thread of the producer"),
            "PRODUCER_WARPS": Constant(self._producer_warps, "warps of the producer"),
            "CONSUMERS": Constant(self.consumers, "consumer warpgroups, 64 query rows each"),
            "UNIT_ROWS": Constant(self.unit_rows, "query rows of a unit"),
            "RECORDS": Constant(RECORDS, "records of units"),
            "WORDS": Constant(WORDS, "int32 words of the record of a unit"),
            "VALUE_SCALES": Constant(self.scale.VALUE_SCALES, "the values of every key have a scale of their own"),
            "TURNS": Constant(self.turns(problem), "the consumers take turns in the exponentials"),
            "SCORED": Constant(self.scored, "scores change between scaling and softmax"),
            "HEAD_VALUES": Constant(any("head_value" in score.HOOKS for score in self.score), "a score has a number of its own for each query head"),
            "RELATIVE": Constant(self.relative, "positions count from the first key of a tile"),
            "CAUSAL": Constant(self.causal, "no query sees a key behind its own position"),
            "POSITIONAL": Constant(self.positional or problem.prefill_keys < MASK_KEYS, "no tile is skipped: its number follows from the loop's index"),
            "MASK_ALL": Constant(self.mask_all, "every tile needs the element masks"),
            "STAGED": Constant(self.epilogue.STAGED, "output rows leave through shared memory"),
            "BOUNDED": Constant(self.bounded, "masks say where keys begin"),
        }

    @property
    def _producer_warps(self) -> int:
        return 4 if self.v_operand.TRANSPOSED else 1

    def launch_note(self, problem: Problem, entry: str) -> str:
        if entry == "prefill":
            return f"grid (CTAs,), 4 warps, at most {register_cap(self.resources(problem))} registers a thread"
        return "grid (batch,), 4 warps"

    def requires(self, problem: Problem) -> tuple[Function, ...]:
        tiles, keys, t = (*problem.head_tiles, problem.value_tile_dim), problem.prefill_keys, problem.dtype
        k, k_rest, v = (Port("ring.slot", t, ("key", "dim"), (keys, columns), Place.SHARED, "swizzled", "dim") for columns in tiles)
        s = Port("s", DType.F32, ("query", "key"), (M, keys), layout="mma")
        names = ["key_source", "load_query_tile", "take_queries", "add_weights", "row_sums", "survey", "open_tiles", "next_tile"]
        names += ["open_queue", "unit_at", "take_unit", "leave_queue", "store_rows", "store_row_lse", "inverse_of_rows", "p_operand", "no_output", "begin_pv", "go_on_with_pv", "end_pv", "rescaled", "output_rows"]
        names += ["transpose_tile"] if self.v_operand.TRANSPOSED else ["clear_rows"]
        names += ["row_factor"] if self.scale.ROW_FACTORS else ["whole_factor"]
        names += ["read_value_scales", "publish_value_scales"] if self.scale.VALUE_SCALES else ["value_factor"] if self.scale.ROW_FACTORS else []
        names += ["read_key_scales"] if self.scale.KEY_SCALES else []
        names += ["send_rows", "wait_for_rows"] if self.epilogue.STAGED else []
        typed = (Function("load_key_tile", (), (k,)), Function("load_value_tile", (), (v,)), Function("qk_rows", (k,), (s,)))
        typed += (Function("load_rest_tile", (), (k_rest,)), Function("add_rest", (k_rest,), (s,))) if problem.head_tiles[1] else ()
        return (*typed, *(Function(name) for name in names))

    def resources(self, problem: Problem) -> Resources:
        (d, rest), dv, t, keys, stages = problem.head_tiles, problem.value_tile_dim, problem.dtype, problem.prefill_keys, self.ring.stages
        copies, expect = self.loader.copies(problem), self.loader.box_bytes(problem)
        both = ("attend", "attend_2")[: self.consumers]
        buffers = [
            SharedBuffer("q_smem", (self.consumers, M, d), t, "query rows of the unit"),
            SharedBuffer("k_ring", (stages, keys, d), t, "key tiles"),
            SharedBuffer("v_ring", (stages, keys, dv), t, "value tiles"),
            SharedBuffer("work", (RECORDS, WORDS, 1), DType.I32, "records of units at work and next"),
        ]
        barriers = [
            MBarriers("q_full", self.consumers, 1, M * d * t.nbytes, False, ("q copies",), both),
            MBarriers("q_empty", self.consumers, 1, 0, True, both, ("produce",)),
            MBarriers("k_full", stages, copies, expect, False, ("k copies",), both),
            MBarriers("v_full", stages, copies, expect, False, ("v copies",), ("produce",) if self.v_operand.TRANSPOSED else both),
            MBarriers("k_empty", stages, self.consumers, 0, True, both, ("produce",)),
            MBarriers("v_empty", stages, 1 if self.v_operand.TRANSPOSED else self.consumers, 0, True, ("produce",) if self.v_operand.TRANSPOSED else both, ("produce",)),
            MBarriers("work_full", RECORDS, 1, 0, False, ("produce",), both),
            MBarriers("work_empty", RECORDS, self.consumers, 0, True, both, ("produce",)),
        ]
        if rest:
            buffers += [SharedBuffer("q_rest", (self.consumers, M, rest), t, "the same, second tiles"), SharedBuffer("k_rest", (stages, keys, rest), t, "second key tiles")]
            rest_bytes = keys * rest * t.nbytes // self.loader.rest_copies(problem)
            barriers.append(MBarriers("q_rest_full", self.consumers, 1, M * rest * t.nbytes, False, ("q copies",), both))
            barriers.append(MBarriers("k_rest_full", stages, self.loader.rest_copies(problem), rest_bytes, False, ("k copies",), both))
        if self.v_operand.TRANSPOSED:
            buffers.append(SharedBuffer("vt_ring", (stages, dv, keys), t, "value tiles, transposed"))
            barriers += [MBarriers("vt_full", stages, 1, 0, False, ("produce",), both), MBarriers("vt_empty", stages, self.consumers, 0, True, both, ("produce",))]
        if self.scale.ROW_FACTORS:
            buffers.append(SharedBuffer("factors", (RECORDS * self.consumers, M), DType.F32, "factors of the units' rows"))
        if self.epilogue.STAGED:
            buffers.append(SharedBuffer("o_smem", (self.consumers, M, problem.value_tile_dim), self.epilogue.dtype, "output rows on their way"))
        if self.scale.KEY_SCALES:
            buffers.append(SharedBuffer("k_scales", (stages, keys), DType.F32, "scales of key tiles"))
            barriers.append(MBarriers("scales_full", stages, 1, 0, False, ("produce",), both))
        if self.scale.VALUE_SCALES:
            buffers.append(SharedBuffer("v_ratios", (stages, keys), DType.F32, "scales of value tiles, relative"))
            buffers.append(SharedBuffer("v_tops", (stages, M), DType.F32, "largest scale of value tiles"))
            barriers.append(MBarriers("ratios_full", stages, 1, 0, False, ("produce",), both))
        named = [NamedBarriers("turn", 8, 2, 256)] if self.turns(problem) else []
        if not self.v_operand.TRANSPOSED:
            named.append(NamedBarriers("both", 10, 1, 128 * self.consumers))
        consumers = (Role("attend", "attend", 4, 0), Role("attend_2", "attend", 4, self.consumer_registers))[: self.consumers]
        return Resources(
            buffers=tuple(buffers), barriers=tuple(barriers), named=tuple(named), scratch_bytes=1024,
            roles=(*consumers, Role("produce", "produce", self._producer_warps, self.producer_registers)),
        )


@jit
def prefill(args):
    """Units of 128 query rows and one head, as many as the CTA gets."""
    # before the set-up, which hides the loads
    units, only = open_queue(args)
    record, upper, lower = describe(args, program_id(0), units, only)
    q_smem = alloc([CONSUMERS, 64, HEAD_DIM], DTYPE)
    k_ring = alloc([STAGES, TILE, HEAD_DIM], DTYPE)
    v_ring = alloc([STAGES, TILE, HEAD_DIM], DTYPE)
    if COPIES == 1:
        k_boxes = k_ring
        v_boxes = v_ring
    else:
        k_boxes = alias(k_ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
        v_boxes = alias(v_ring, [STAGES * COPIES, BOX_ROWS, BOX_COLS])
    if REST:
        q_rest = alloc([CONSUMERS, 64, REST_DIM], DTYPE)
        k_rest = alloc([STAGES, TILE, REST_DIM], DTYPE)
        if REST_COPIES == 1:
            k_rest_boxes = k_rest
        else:
            k_rest_boxes = alias(k_rest, [STAGES * REST_COPIES, BOX_ROWS, REST_DIM])
    work = alloc_plain([RECORDS, WORDS, 1], I32)
    if ROW_FACTORS:
        factors = alloc_plain([RECORDS * CONSUMERS, 64], F32)
    work_full = alloc_barriers(RECORDS, more=True)
    work_empty = alloc_barriers(RECORDS, CONSUMERS, init=READY, more=True)
    q_full = alloc_barriers(CONSUMERS, expect_bytes=Q_BYTES, more=True)
    q_empty = alloc_barriers(CONSUMERS, init=READY, more=True)
    k_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES, more=True)
    v_full = alloc_barriers(STAGES, COPIES, expect_bytes=BOX_BYTES, more=True)
    if REST:
        q_rest_full = alloc_barriers(CONSUMERS, expect_bytes=Q_REST_BYTES, more=True)
        k_rest_full = alloc_barriers(STAGES, REST_COPIES, expect_bytes=REST_BOX_BYTES, more=True)
    if TRANSPOSED:
        v_empty = alloc_barriers(STAGES, init=READY, more=True)
        vt_ring = alloc([STAGES, HEAD_DIM, TILE], DTYPE)
        vt_full = alloc_barriers(STAGES, more=True)
        vt_empty = alloc_barriers(STAGES, CONSUMERS, init=READY, more=True)
        if FP32_SUMS:
            v_tiles = alias(vt_ring, [STAGES * 2, HEAD_DIM // 2, TILE])
        else:
            v_tiles = vt_ring
        tiles_full = vt_full
        tiles_empty = vt_empty
    else:
        v_empty = alloc_barriers(STAGES, CONSUMERS, init=READY, more=True)
        v_atoms = alias(v_ring, [STAGES * COLUMN_BLOCKS * TILE // 8, 8, BOX_COLS])
        both = alloc_named(10, 1, 128 * CONSUMERS)
        v_tiles = v_ring
        tiles_full = v_full
        tiles_empty = v_empty
    if STAGED:
        o_smem = alloc([CONSUMERS, 64, HEAD_DIM], OUT_DTYPE)
    if KEY_SCALES:
        k_scales = alloc_plain([STAGES, TILE], F32)
        scales_full = alloc_barriers(STAGES, more=True)
    if VALUE_SCALES:
        v_ratios = alloc_plain([STAGES, TILE], F32)
        v_tops = alloc_plain([STAGES, 64], F32)
        ratios_full = alloc_barriers(STAGES, more=True)
    if TURNS:
        turn = alloc_named(8, 2, 256)
    k_empty = alloc_barriers(STAGES, CONSUMERS, init=READY)
    fence_async()
    publish(work, factors, work_full, work_empty, 0, record, upper, lower)
    if CONSUMERS == 1:
        warp_specialize(
            [
                (attend, (args, 0, q_smem, q_rest, work, factors, k_ring, k_rest, v_tiles, v_atoms, k_scales, v_ratios, v_tops, work_full, work_empty, q_full, q_rest_full, q_empty, k_full, k_rest_full, k_empty, tiles_full, tiles_empty, scales_full, ratios_full, turn, both, o_smem)),
                (
                    produce,
                    (
                        args, units, only, q_smem, q_rest, work, factors, k_boxes, k_rest_boxes, v_boxes, v_ring, vt_ring, k_scales, v_ratios, v_tops, work_full, work_empty, q_full, q_rest_full, q_empty, k_full, k_rest_full, k_empty, v_full, v_empty,
                        vt_full, vt_empty, scales_full, ratios_full,
                    ),
                ),
            ],
            [PRODUCER_WARPS],
            [PRODUCER_REGISTERS],
        )
    else:
        warp_specialize(
            [
                (attend, (args, 0, q_smem, q_rest, work, factors, k_ring, k_rest, v_tiles, v_atoms, k_scales, v_ratios, v_tops, work_full, work_empty, q_full, q_rest_full, q_empty, k_full, k_rest_full, k_empty, tiles_full, tiles_empty, scales_full, ratios_full, turn, both, o_smem)),
                (attend, (args, 1, q_smem, q_rest, work, factors, k_ring, k_rest, v_tiles, v_atoms, k_scales, v_ratios, v_tops, work_full, work_empty, q_full, q_rest_full, q_empty, k_full, k_rest_full, k_empty, tiles_full, tiles_empty, scales_full, ratios_full, turn, both, o_smem)),
                (
                    produce,
                    (
                        args, units, only, q_smem, q_rest, work, factors, k_boxes, k_rest_boxes, v_boxes, v_ring, vt_ring, k_scales, v_ratios, v_tops, work_full, work_empty, q_full, q_rest_full, q_empty, k_full, k_rest_full, k_empty, v_full, v_empty,
                        vt_full, vt_empty, scales_full, ratios_full,
                    ),
                ),
            ],
            [4, PRODUCER_WARPS],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
