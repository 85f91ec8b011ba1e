"""Static split: every sequence is cut into at most `splits` equal parts, whatever the rest of the batch looks like.

The cut depends on the sequence's own length alone, so a row's result does not depend on its batch (batch invariant), and nothing has to be planned.
Short sequences leave CTAs idle, long ones are not balanced against the others: the task map does better on ragged batches.
"""

from __future__ import annotations

from attrs import field, frozen

from tle_attn.dialect import cdiv, jit, load, maximum, minimum, program_id
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, Constant, Function, Problem
from tle_attn.spec.problem import at_least

TILE = 64


@frozen(kw_only=True)
class StaticSplit(Block):
    """Grid (splits, batch * kv heads); parts of at least `min_tokens` tokens.

    Source of the defaults: the CUDA reference's static BF16 path cuts into 16 parts of at least 512 tokens for batches up to 32.
    """

    KIND = "schedule"
    NAME = "static_split"
    PLANNED = False
    BATCH_INVARIANT = True
    #: there is no planner to start beside, and none that reads page ids
    pdl = page_ids = False

    splits: int = field(default=16, validator=at_least(1, "parts of a sequence", 128))
    min_tokens: int = field(default=512, validator=at_least(TILE, "tokens of a part; a multiple of the 64-token key tile"), metadata={"tune": (256, 512, 1024)})

    @min_tokens.validator
    def _whole_tiles(self, attribute: object, value: int) -> None:
        if value % TILE:
            raise SpecError(f"min_tokens cannot be {value}", key="min_tokens", value=value, allowed=f"a multiple of {TILE}", reason="parts are whole key tiles")

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "SPLITS": Constant(self.splits, "parts of a sequence at most"),
            "MIN_TILES": Constant(self.min_tokens // TILE, "key tiles of a part at least"),
            "PAGE_IDS": Constant(self.page_ids, "task records hold the first page ids"),
            "PDL": Constant(self.pdl, "the kernel starts while the planner runs"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return (
            Argument("kv_lens", "*i32", "tokens in the cache [batch]"),
            Argument("new_tokens", "i32", "tokens to add to kv_lens: 0 if it counts this step's tokens already"),
            Argument("kv_heads", "i32", "key/value heads"),
        )

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        return (Function("task"),)


@jit
def task(args):
    """This CTA's work: sequence, kv head, first key tile, tiles, kv length, partial slot (-1 unsplit, -2 idle), its first slot, parts, flags (none)."""
    pair = program_id(1)
    seq = pair // args.kv_heads
    kv_len = load(args.kv_lens + seq) + args.new_tokens
    first, last = tile_range(args, seq, kv_len)
    chunk = maximum(cdiv(last - first, SPLITS), MIN_TILES)
    splits = maximum(cdiv(last - first, chunk), 1)
    part = program_id(0)
    start = minimum(first + part * chunk, last)
    count = minimum(last - start, chunk)
    slot = pair * SPLITS + part if splits > 1 else -1
    slot = slot if part < splits else -2
    return seq, pair % args.kv_heads, start, count, kv_len, slot, pair * SPLITS, splits, 0
