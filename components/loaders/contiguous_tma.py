"""Contiguous TMA loader: K and V [batch, room, kv heads, dim] without pages; tile t of a sequence is the box of its tokens 64 t .. 64 t + 63."""

from __future__ import annotations

from attrs import field, fields, frozen

from tle_attn.components.loaders.paged_tma import TILE
from tle_attn.dialect import copy, jit
from tle_attn.errors import SpecError
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, Function, Port, Problem
from tle_attn.spec.types import Place


def check_no_page(problem: Problem) -> None:
    """SpecError where a page size is given that nothing would use."""
    default = fields(Problem).page.default
    if problem.page != default:
        raise SpecError("K and V without pages have no page size", key="problem.page", value=problem.page, allowed=f"{default}, the default", reason="it would change nothing")


@frozen(kw_only=True)
class ContiguousTma(Block):
    """The sequences' own rows, each with room for as many tokens as the longest; what lies behind a sequence's last token is read and masked, never used.

    TMA fills a tile that reaches past the room with zeros.
    """

    KIND = "loader"
    NAME = "contiguous_tma"
    PAGED = False

    #: let the part of K and V that the L2 cache cannot keep leave it first; the task map says how much.  Left open: with a task map
    evict_first: bool | None = field(default=None, metadata={"tune": (True, False)})
    #: a full barrier expects what its box brings
    expect_scale = 1.0

    def check(self, problem: Problem) -> None:
        check_no_page(problem)
        if problem.value_tile_dim != problem.tile_dim:
            raise SpecError("this loader takes K and V tiles of one width", key="problem.value_dim", value=problem.value_dim, allowed="as head_dim")

    def pages(self, problem: Problem) -> int:
        return 1

    def copies(self, problem: Problem) -> int:
        return 1

    def box_bytes(self, problem: Problem, dim: int) -> int:
        return TILE * dim * problem.dtype.nbytes

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return {
            "TILE": Constant(TILE, "tokens of a key tile"),
            "TILE_PAGES": Constant(1, "boxes that make up a tile"),
            "PAGED": Constant(False, "keys are found through page ids"),
            "EVICT_FIRST": Constant(bool(self.evict_first), "the part of K and V that the L2 cache cannot keep leaves it first"),
            "COPIES": Constant(1, "boxes (and full barriers) of a tile"),
            "BOX_BYTES": Constant(self.box_bytes(problem, problem.tile_dim), "bytes of a TMA box"),
            "VALUE_BOX_BYTES": Constant(self.box_bytes(problem, problem.tile_dim), "bytes of a TMA box of V", same_as="BOX_BYTES"),
            "OTHER_VALUES": Constant(False, "V tiles have another width than K tiles"),
        }

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        box = BoxDescriptor(problem.dtype, (1, 1, TILE, problem.tile_dim))
        return (Argument("k_desc", box, "K as (sequence, head, token, dim)"), Argument("v_desc", box, "V as (sequence, head, token, dim)"))

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        tile = Port("ring", problem.dtype, ("key", "dim"), (TILE, problem.tile_dim), Place.SHARED, "swizzled", "dim")
        return (Function("load_tile", (), (tile,)),)


@jit
def load_tile(desc, boxes, full, slot, seq, lane, tile, head):
    """Start the copy of one tile into ring slot `slot`; lane: of loaders with pages."""
    copy(desc, boxes.slot(slot), [1, 1, TILE, HEAD_DIM], [seq, head, tile * TILE, 0], barrier=full[slot])
