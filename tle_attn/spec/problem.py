"""What a kernel computes, apart from how: element type, head geometry, pages."""

from __future__ import annotations

import sys
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import optional

from ..errors import SpecError, written
from .types import DType

PAGES = (16, 32, 64, 128)
HEAD_DIMS = (64, 96, 128, 192, 256)


def one_of(allowed: tuple, reason: str) -> Any:
    """attrs validator: membership, with a reason in the error."""

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if not any(type(value) is type(a) and value == a for a in allowed):  # 64.0 and True are no integers
            raise SpecError(f"{attribute.name} cannot be {written(value)}", key=attribute.name, value=value, allowed=allowed, reason=reason)

    return check


def at_least(low: int, reason: str, high: int | None = None) -> Any:
    """attrs validator: an integer in [low, high]."""

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            allowed = f"an integer from {low}" + (f" to {high}" if high is not None else " up")
            raise SpecError(f"{attribute.name} cannot be {written(value)}", key=attribute.name, value=value, allowed=allowed, reason=reason)

    return check


def positive_finite(reason: str, high: float | None = None) -> Any:
    """attrs validator: a finite number above 0, and at most `high`."""
    top = sys.float_info.max if high is None else high

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= top:
            allowed = "a finite number above 0" + ("" if high is None else f", {high:g} at most")
            raise SpecError(f"{attribute.name} cannot be {written(value)}", key=attribute.name, value=value, allowed=allowed, reason=reason)

    return check


def _power_of_two(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << (n - 1).bit_length()


@frozen(kw_only=True)
class Problem:
    """Head geometry and storage of a paged attention problem.

    Attributes:
        dtype: element type of Q, K and V.
        head_dim: elements of a head of Q and K.
        value_dim: elements of a head of V and of the output; head_dim if not given.
        group: query heads per key/value head (GQA); 1 is multi-head attention.
        query_tokens: query tokens per request in decode (1 + draft tokens of multi-token prediction), or of all requests of a chunk that shares a prefix;
            prefill leaves it at 1.
        page: tokens of a cache page.
    """

    dtype: DType = field(default=DType.BF16, validator=one_of((DType.BF16, DType.FP8), "wgmma operands of the attention cores"))
    head_dim: int = field(default=128, validator=one_of(HEAD_DIMS, "tiles are powers of two wide, which TMA fills up with zeros, and rows above 256 leave no room for a ring of K and V tiles"))
    value_dim: int | None = field(default=None, validator=optional(one_of(HEAD_DIMS, "as head_dim")))
    group: int = field(default=8, validator=at_least(1, "query heads per key/value head"))
    query_tokens: int = field(default=1, validator=at_least(1, "query tokens per request; longer queries are prefill", 64))
    page: int = field(default=64, validator=one_of(PAGES, "a key tile has 64 tokens: whole pages must fill it, or it must be half of a page of 128"))

    @property
    def rows(self) -> int:
        """Query rows that share a key/value head."""
        return self.query_tokens * self.group

    @property
    def v_dim(self) -> int:
        """Elements of a head of V."""
        return self.value_dim or self.head_dim

    @property
    def tile_dim(self) -> int:
        """Columns of a Q or K tile: the elements of a head, padded with zeros to a power of two (register tiles are powers of two)."""
        return _power_of_two(self.head_dim)

    @property
    def head_tiles(self) -> tuple[int, int]:
        """Columns of the tiles that prefill keeps a head of Q or K in: one, or for 192 elements two of 128 and 64, so that zeros take no shared memory; 0: no second one."""
        return (128, self.head_dim - 128) if 128 < self.head_dim < self.tile_dim else (self.tile_dim, 0)

    @property
    def prefill_keys(self) -> int:
        """Keys of a tile of prefill: 128; 64 beside an output of 256 columns, which leaves registers for no more scores."""
        return 64 if self.value_tile_dim > 128 else 128

    @property
    def value_tile_dim(self) -> int:
        """Columns of a V tile."""
        return _power_of_two(self.v_dim)

    @property
    def columns(self) -> int:
        """Query rows padded to a legal wgmma N that is a power of two (register tiles are powers of two)."""
        return max(8, _power_of_two(self.rows))
