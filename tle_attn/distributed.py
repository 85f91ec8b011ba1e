"""Context-parallel decode: every rank holds a part of the keys of every sequence, and partial results are merged across ranks.

    import tle_attn.distributed as parallel
    exchange = parallel.plan_exchange(tokens=batch, heads=64, head_dim=128, base="2")      # once, on every rank
    out, lse = plan.run(q, k_cache, v_cache, block_ids, my_kv_lens, out=exchange.out, lse=exchange.lse)
    out, lse = exchange.run(out, lse)                                                      # the same on every rank

It works over any group of torch.distributed: NCCL on GPUs, gloo on CPUs (where merging is emulated).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field
from torch import Tensor

from .errors import InputError, InputTypeError, TleAttnError
from .ops.common import on_device
from .ops.emulation import target_of
from .ops.merge import DTYPES, plan_for
from .runtime import inputs
from .runtime.merge import MergePlan
from .spec import DType

#: bytes that parts of a message start at multiples of: 16 elements of fp32
ALIGNMENT = 64
#: torch 2.13 gave it another name, and warns about the old one
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@define(eq=False, kw_only=True)
class Exchange:
    """Partial results of all ranks merged: a plan, whose runs are one collective and one kernel.

    Attributes:
        tokens, heads, head_dim, dtype, base: of each rank's state.
        scatter: each rank gets its share of the heads only.
        group: of torch.distributed; None is the default one.
        ranks: its size.
        out, lse: for a gather, where a rank's state may be written at once: `run` then copies nothing.  None with `scatter`.
    """

    tokens: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    base: str
    scatter: bool
    group: Any
    ranks: int
    merge: MergePlan = field(repr=False)
    _sent: Tensor = field(repr=False)
    _received: Tensor = field(repr=False)
    out: Tensor | None = field(init=False, repr=False, default=None)
    lse: Tensor | None = field(init=False, repr=False, default=None)

    def __attrs_post_init__(self) -> None:
        if not self.scatter:
            self.out, self.lse = (part[0] for part in self._views(self._sent))

    @property
    def device(self) -> torch.device:
        return self._sent.device

    @property
    def received_bytes(self) -> int:
        """What a rank gets from the others in a run."""
        return self._received.numel() // self.ranks * (self.ranks - 1)

    def run(self, out: Tensor, lse: Tensor, *, merged: Tensor | None = None, merged_lse: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Merge this rank's state with those of the others; every rank of the group must call it.

        Args:
            out: attention over this rank's keys [tokens, heads, head_dim].
            lse: its log-sum-exp, float32 [tokens, heads]; -inf where this rank has no key.
            merged, merged_lse: written in place if given.

        Returns:
            (out, lse) over the keys of all ranks: [tokens, heads, head_dim] on every rank, or with `scatter` heads
            rank * heads / ranks up to (rank + 1) * heads / ranks.

        Raises:
            InputTypeError, InputError: the tensor and the rule it breaks.  Other ranks then wait for this one until the group's timeout.
        """
        shape = (self.tokens, self.heads, self.head_dim)
        inputs.want(out, "out", DTYPES[self.dtype], shape, self.device, "tokens, heads, head_dim")
        inputs.want(lse, "lse", DType.F32, shape[:2], self.device, "tokens, heads")
        outs, lses = self._views(self._sent)
        parts = outs.shape[0]
        if self.out is None or out.data_ptr() != self.out.data_ptr():
            outs.copy_(out.unflatten(1, (parts, -1)).transpose(0, 1))
        if self.lse is None or lse.data_ptr() != self.lse.data_ptr():
            lses.copy_(lse.unflatten(1, (parts, -1)).transpose(0, 1))
        if self.scatter:
            dist.all_to_all_single(self._received, self._sent, group=self.group)
        else:
            _all_gather(self._received, self._sent, group=self.group)
        outs, lses = self._views(self._received)
        with on_device(self.device):
            result, total = self.merge.run(outs, lses, out=merged, lse=merged_lse)
        assert total is not None  # the recipe's epilogue names a base
        return result, total

    def _views(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [parts, tokens, heads of a part, head_dim] and log-sum-exps in a message."""
        heads = self.heads // (self.ranks if self.scatter else 1)
        size = _bytes_of(self.tokens, heads, self.head_dim, self.dtype)
        parts = message.view(-1, sum(size))
        rows = self.tokens * heads
        outs = parts[:, : rows * self.head_dim * self.dtype.itemsize].view(self.dtype).unflatten(1, (self.tokens, heads, self.head_dim))
        return outs, parts[:, size[0] : size[0] + 4 * rows].view(torch.float32).unflatten(1, (self.tokens, heads))


def plan_exchange(
    *, tokens: int, heads: int, head_dim: int, base: str, dtype: torch.dtype = torch.bfloat16, scatter: bool = False, group: Any = None, device: Any = None
) -> Exchange:
    """Plan merging across the ranks of a group; every rank must call it, with the same arguments.

    Args:
        tokens: rows of a state, batch * query tokens.
        heads: query heads that every rank has a state of.
        head_dim, dtype, base: of the states: bf16 or fp32, and the logarithm of their log-sum-exp ("e" or "2").
        scatter: False gathers all states, and every rank has the whole result.  True sends each rank the states of its share of the heads only, for
            layers behind that are split by heads: 1 / ranks of the traffic and of the merging.
        group: of torch.distributed; the default one if not given.
        device: of the tensors; the current GPU with NCCL, else the CPU.

    Raises:
        InputError: arguments that cannot be served, or that differ between ranks; on every rank.
        TleAttnError: torch.distributed is not initialised.
        TargetUnavailable: see `tle_attn.merge_states`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise TleAttnError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
    ranks = dist.get_world_size(group)
    # what a rank is told is compared before anything is refused, or the others would wait for a rank that has left
    told: list[Any] = [None] * ranks
    dist.all_gather_object(told, {"tokens": tokens, "heads": heads, "head_dim": head_dim, "base": base, "dtype": str(dtype), "scatter": scatter}, group=group)
    for name, value in told[0].items():
        if any(other[name] != value for other in told):
            raise InputError(f"{name}: not the same on every rank: {', '.join(f'{other[name]} on rank {i}' for i, other in enumerate(told))}")
    inputs.check_count("tokens", tokens, 0)
    inputs.check_count("heads", heads)
    inputs.check_count("head_dim", head_dim)
    if dtype not in DTYPES:
        raise InputTypeError(f"dtype: {dtype} where bfloat16 or float32 is wanted")
    if base not in ("e", "2"):
        raise InputError(f'base: {base!r} where "e" or "2" is wanted; a log-sum-exp means nothing without its base')
    if scatter and heads % ranks:
        raise InputError(f"heads: {heads} cannot be shared by {ranks} ranks; scatter=False gathers all of them")
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    device = torch.device(device)
    merge = plan_for(None, dtype, dtype, base, head_dim, device, target_of(device))
    part = sum(_bytes_of(tokens, heads // (ranks if scatter else 1), head_dim, dtype))
    sent = torch.zeros(part * (ranks if scatter else 1), dtype=torch.uint8, device=device)
    received = torch.empty(part * ranks, dtype=torch.uint8, device=device)
    return Exchange(
        tokens=tokens, heads=heads, head_dim=head_dim, dtype=dtype, base=base, scatter=scatter, group=group, ranks=ranks, merge=merge, sent=sent, received=received
    )


def _bytes_of(tokens: int, heads: int, head_dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of the output and of the log-sum-exp in a message, padded so that what follows is aligned, and never none: a step may have no tokens."""
    rows = tokens * heads
    return tuple(max(1, -(-size // ALIGNMENT)) * ALIGNMENT for size in (rows * head_dim * dtype.itemsize, 4 * rows))  # type: ignore[return-value]


__all__ = ["Exchange", "plan_exchange"]
