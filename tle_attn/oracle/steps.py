"""Steps between dot product and softmax: elementwise changes of scores, and rules of which keys count, in the order that a caller gives.

A score step is called as step(s, key, query, head, sequence) and returns the new scores; a mask step is called without s and returns booleans.
s is float64 [heads, queries, keys] in natural units, masked nowhere yet; key [keys], query [queries, 1] and head [heads, 1, 1] are int64
and broadcast against it: key and query are positions, head is the query head; sequence is a number.
"""

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

ScoreStep = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
MaskStep = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@frozen
class SoftCap:
    """cap tanh(s / cap)."""

    cap: float

    def __call__(self, s: Tensor, key: Tensor, query: Tensor, head: Tensor, sequence: int) -> Tensor:
        return self.cap * torch.tanh(s / self.cap)


@frozen(eq=False)
class Alibi:
    """s - slope |query - key|, with slopes [Hq], or [B, Hq]."""

    slopes: Tensor

    def __call__(self, s: Tensor, key: Tensor, query: Tensor, head: Tensor, sequence: int) -> Tensor:
        slopes = self.slopes if self.slopes.dim() == 1 else self.slopes[sequence]
        return s - slopes.to(s.device).double()[head] * (query - key).abs()
