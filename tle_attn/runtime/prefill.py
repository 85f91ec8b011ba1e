"""Prefill plan: what is fixed before launches (geometry, most rows, workspace); a run only launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..errors import InputError
from ..spec import DType, Kernel
from ..spec.tasks import RECORD, most_units, unit_capacity
from . import inputs, prefill_inputs
from .base import Needs, Plan, Workspace, resolve

if TYPE_CHECKING:
    import torch


def consumers_for(rows: int, batch: int, query_heads: int, multiprocessors: int) -> int:
    """`mainloop.consumers` that suits a problem: 1 where units of 64 query rows fill the device no more than once, so that twice as many work at a time.

    A policy of the library's operators; `plan` takes recipes as they are.  On an H200, 127 queries of 32 heads: 1.1 to 1.4 us of 10 us less.
    """
    return 1 if query_heads * most_units(rows, batch, 64) <= multiprocessors else 2


@define(eq=False, kw_only=True)
class PrefillPlan(Plan):
    """A prefill kernel ready to launch for one geometry and up to `max_query_rows` rows of queries, in sequences of any lengths.

    Work is handed out in units: 128 queries (64 with one consumer) of a sequence for one query head.  Where the schedule plans, a planner lists the units of a batch
    on the GPU, once for all layers of a step; a batch of one sequence needs none.

    Attributes:
        max_query_rows: the most rows of q in one run.
        max_units: unit records of the workspace, the header not counted.
        ctas: the most CTAs of a launch; they stay until no unit is left.
    """

    ZEROED = ("queue",)
    RECORDS = "units"

    max_query_rows: int
    max_units: int = field(init=False)
    ctas: int = field(init=False)

    def _sizes(self) -> Needs:
        self.max_units = unit_capacity(self.max_query_rows, self.batch, self.kernel.mainloop.unit_rows)
        self.ctas = self.executor.multiprocessors() * self.kernel.resources.ctas_per_sm
        sizes = {"units": (DType.I32, RECORD * (1 + self.max_units)), "queue": (DType.I32, 2)}
        return {name: size for name, size in sizes.items() if name in self.arguments}

    @property
    def paged(self) -> bool:
        """Whether K and V are in pages; else their rows stand where the queries' do."""
        return "block_ids" in self.arguments

    @property
    def masked(self) -> bool:
        """Whether the kernel takes a block mask."""
        return "block_mask" in self.arguments

    @property
    def planned(self) -> bool:
        """A batch of one sequence needs no planner."""
        return super().planned and self.batch > 1

    def schedule(self, cu_seqlens_q: torch.Tensor, kv_lens: torch.Tensor, *, workspace: Workspace | None = None, **extra: Any) -> None:
        """Launch the planner for these lengths; one call serves all layers of a step.  Nothing is read on the host.

        A batch of one sequence is not planned: the call does nothing.  `workspace` with "units": the caller's records to fill, `needs["units"]` of them.
        `extra`: arguments of blocks, as `run` takes them.
        """
        prefill_inputs.check_lengths(cu_seqlens_q, kv_lens, self.batch, self.device)
        self._check_planner()
        if self.planned:
            values = self._with_extra({"cu_seqlens_q": cu_seqlens_q, "kv_lens": kv_lens}, extra, "plan_units")
            self._launch("plan_units", (self.batch,), values, self._tensors(("units",), workspace))
        self._own_records_filled |= "units" not in (workspace or {})

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_ids: torch.Tensor | None,
        cu_seqlens_q: torch.Tensor,
        kv_lens: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        q_scale: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
        block_mask: torch.Tensor | None = None,
        scheduled: bool = False,
        workspace: Workspace | None = None,
        debug: bool = False,
        strict_block_mask: bool = False,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of each sequence's queries, its last tokens, over its keys.

        Args:
            q: [rows, query heads, head_dim], the sequences' queries one after the other; rows behind them are not looked at.
            k_cache, v_cache: [pages, page, kv heads, head_dim (of V: value_dim)] views; NHD, HND or a slice of a larger cache by strides.  For a kernel without
                pages: [rows, kv heads, head_dim or value_dim], a sequence's keys from the row of its first query on.
            block_ids: int32 [batch, width]; entries past a sequence's last page are not read.  None for a kernel without pages.
            cu_seqlens_q: int32 [batch + 1], the row where each sequence's queries start, and where the last one's end.
            kv_lens: int32 [batch], keys of each sequence, this step's included; a query before the first key gets a zero row.
            out: written in place if given, else allocated.  Rows behind the last sequence stay as they are.
            lse: likewise, float32 [rows, query heads]; only for kernels whose epilogue names a base.
            softmax_scale: above 0; 1 / sqrt(head_dim) if not given.  Scales of fp8 tensors are above 0 too, or 0: the largest raw score has to be the largest logit.
            q_scale, k_scale, v_scale: float32 scales of fp8 tensors.  Q: [batch, query heads, queries of the longest sequence or more].
                Scales per_tensor: K and V [1].  Scales per_token_head: K [pages, page / 32, kv heads, 32] or the same bytes as e4m3, V [kv heads].
                Scales per_token_head_kv: K and V as K, those of V of any sign.
            block_mask: uint8 [batch, query heads, query tiles, key tiles], 0 where a tile of 128 queries (counted within the sequence) x 128 keys is
                dropped.  If it has fewer key tiles than a sequence, the first one behind it counts as kept and later ones as dropped.
            scheduled: `schedule` was called for these lengths already.
            workspace: tensors to use in place of the plan's own, by the names of `needs` and at least as large; the queue starts at zero and is
                left at zero.  Needed in full where the plan owns none.
            debug: read lengths and page ids on the host first and refuse what is out of range.
            strict_block_mask: with debug, refuse a block mask with fewer key tiles than a sequence.
            extra: tensors or numbers for arguments that blocks of a variant bring, by name.

        Returns:
            (out, lse or None).

        Raises:
            InputTypeError, InputError: the tensor and the rule it breaks; nothing was launched.
        """
        prefill_inputs.check_queries(q, self.kernel.problem, self.max_query_rows, self.query_heads, self.device)
        self._check_keys(k_cache, v_cache, block_ids, kv_lens)
        prefill_inputs.check_lengths(cu_seqlens_q, kv_lens, self.batch, self.device)
        out, lse = self._outputs(out, lse, q.shape[0], "rows of q")
        given = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        scales = prefill_inputs.check_scales(self.kernel, self.batch, self.query_heads, self.kv_heads, k_cache.shape[0], self.device, given)
        if scheduled:
            self._check_scheduled(workspace)
        scale_log2 = self._scale_log2(softmax_scale)
        if scale_log2 <= 0.0:
            raise InputError(f"softmax_scale: {softmax_scale} is not above 0, and prefill finds each row's maximum before it scales")
        values: dict[str, Any] = {
            "q_desc": q, "q_rest_desc": q, "k_desc": k_cache, "k_rest_desc": k_cache, "v_desc": v_cache, "cu_seqlens_q": cu_seqlens_q, "kv_lens": kv_lens, "out": out, "out_desc": out,
            "out_token_stride": out.stride(0), "out_head_stride": out.stride(1), "lse": lse, "scale_log2": scale_log2, **scales,
        }  # fmt: skip
        if block_ids is not None:
            values |= {"block_ids": block_ids, "block_ids_stride": block_ids.stride(0)}
        values |= self._mask(block_mask, strict_block_mask, debug)
        if debug:
            prefill_inputs.check_values(self.kernel, q, k_cache, block_ids, cu_seqlens_q, kv_lens, q_scale, block_mask, strict_block_mask)
        values = self._with_extra(values, extra)
        held = self._tensors(tuple(self.needs), workspace)
        units = self.query_heads * most_units(q.shape[0], self.batch, self.kernel.mainloop.unit_rows)
        if not units:
            return out, lse
        if self.planned and not scheduled:
            self.schedule(cu_seqlens_q, kv_lens, workspace=workspace, **extra)
        self._launch(self.entry, (min(self.ctas, units),), values, held)
        return out, lse

    def _check_keys(self, k_cache: Any, v_cache: Any, block_ids: Any, kv_lens: Any) -> None:
        problem = self.kernel.problem
        if self.paged:
            inputs.check_caches(k_cache, v_cache, problem, self.kv_heads, self.device)
            inputs.check_table(block_ids, kv_lens, self.batch, self.device)
            return
        if block_ids is not None:
            raise InputError(f"block_ids: {self.kernel.name} takes K and V without pages; None is wanted")
        for name, tensor, dim in (("k_cache", k_cache, problem.head_dim), ("v_cache", v_cache, problem.v_dim)):
            prefill_inputs.check_contiguous(tensor, name, problem, dim, self.kv_heads, self.device)
        if k_cache.shape[0] != v_cache.shape[0]:
            raise InputError(f"v_cache: {v_cache.shape[0]} rows where k_cache has {k_cache.shape[0]}")

    def _mask(self, block_mask: Any, strict: bool, debug: bool) -> dict[str, Any]:
        """The block mask as kernel arguments; a kernel takes one, or it does not."""
        if strict and not (debug and self.masked):
            raise InputError("strict_block_mask: needs debug=True, because it reads lengths on the host, and a kernel with a block mask")
        if not self.masked:
            if block_mask is not None:
                raise InputError(f"block_mask: {self.kernel.name} takes none; use a recipe with one")
            return {}
        if block_mask is None:
            raise InputError(f"block_mask: missing; {self.kernel.name} takes one, and a recipe without it is faster where no tile is dropped")
        return prefill_inputs.check_block_mask(block_mask, self.batch, self.query_heads, self.device)

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "max_units": self.max_units}


def plan_prefill(kernel: Kernel, *, max_query_rows: int | None = None, owns_workspace: bool = True, **geometry: Any) -> PrefillPlan:
    """See `tle_attn.plan`.  `geometry`: batch, query_heads, kv_heads, device, target, seed, and `executor`, that of another plan of this kernel and device."""
    if isinstance(max_query_rows, bool) or not isinstance(max_query_rows, int) or max_query_rows < 0:
        raise InputError(f"max_query_rows: {max_query_rows!r} where an integer from 0 up is wanted; {kernel.name} is a prefill kernel, whose plan is for so many rows of q")
    return PrefillPlan(**resolve(kernel, **geometry), max_query_rows=max_query_rows, owns_workspace=owns_workspace)
