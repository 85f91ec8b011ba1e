"""Decode plan: what is fixed before launches (geometry, grid, workspace); a run only launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..errors import InputError, InputTypeError
from ..spec import DType, Kernel
from ..spec.tasks import IDLE, RECORD, SLOT_WORD, WAVES
from . import inputs
from .base import Needs, Plan, Workspace, resolve

if TYPE_CHECKING:
    import torch


#: share of the L2 cache that keeps K and V from one reader to the next; measured (docs/performance.md): 0.5 and 0.6 are the best, 0.9 keeps almost nothing
L2_KEPT = 0.5
#: CTAs along the second dimension of a CUDA grid
MAX_GRID_Y = 65_535


def task_capacity(slots: int, batch: int, kv_heads: int, words: int = RECORD) -> int:
    """Task records that the planner fills: a task for every slot of a head, or, where sequences fill half of them, a few for each slot and one more for each sequence; words: int32 words of a record."""
    per_head = max(slots // kv_heads, 1)
    tasks = kv_heads * (per_head if 2 * batch < per_head else WAVES * per_head + batch)
    most = 2**31 // words - 1
    if tasks > most:
        raise InputError(f"batch: {batch} sequences of {kv_heads} kv heads are {tasks} tasks, and a task map has {most} at most")
    return tasks


def idle_tasks(count: int, device: Any, words: int = RECORD) -> torch.Tensor:
    """`count` records that keep their CTAs idle, int32: a task map before it is planned."""
    import torch

    records = torch.zeros(count, words, dtype=torch.int32, device=device)
    records[:, SLOT_WORD] = IDLE
    return records.view(-1)


@define(eq=False, kw_only=True)
class DecodePlan(Plan):
    """A decode kernel ready to launch for one geometry; rows of a batch that are not alive have length 0.

    Attributes:
        slots: CTAs to plan for; by default those that are resident at once, and never more, because CTAs of a sequence wait for each other.
        tasks: CTAs of the attention kernel.
    """

    ZEROED = ("counters",)
    RECORDS = "tasks"

    slots: int = 0
    tasks: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if "tasks" in self.workspace:
            self.workspace["tasks"] = self._idle_tasks()

    def _sizes(self) -> Needs:
        schedule, problem = self.kernel.mainloop.schedule, self.kernel.problem
        pairs = self.batch * self.kv_heads
        self.slots = self.slots or self.executor.resident_ctas(self.entry)
        if schedule.PLANNED:
            self.tasks = task_capacity(self.slots, self.batch, self.kv_heads, schedule.record_words)
            partials = self.tasks
        else:
            self.tasks = pairs * schedule.splits
            partials = self.tasks if schedule.splits > 1 else 0
        n, d = problem.columns, problem.value_tile_dim
        needs = {"partial_o": (DType.F32, partials * n * d), "partial_ml": (DType.F32, partials * 2 * n)}
        if "counters" in self.arguments:
            needs["counters"] = (DType.I32, max(pairs, 1) * 2)
        if schedule.PLANNED:
            needs["tasks"] = (DType.I32, self.tasks * schedule.record_words)
        return needs

    @property
    def l2_tiles(self) -> int:
        """Key tiles (with their value tiles) of one kv head that the device's L2 cache can keep from one reader to the next, for elements of one byte.

        Maps of the operators serve kernels of any element type, which is why the kernel counts bytes of elements itself.
        """
        problem = self.kernel.problem
        return int(L2_KEPT * self.executor.l2_bytes()) // (64 * (problem.head_dim + problem.v_dim) * self.kv_heads)

    def schedule(
        self, kv_lens: torch.Tensor, *, block_ids: torch.Tensor | None = None, new_kv_included: bool = True, workspace: Workspace | None = None, **extra: Any
    ) -> None:
        """Launch the planner for these lengths; one call serves all layers of a step.  Nothing is read on the host.

        `block_ids`: the step's page ids, as `run` takes them; needed where records hold page ids (`schedule.page_ids`), and not used elsewhere.
        `workspace` with "tasks": the caller's records to fill, `needs["tasks"]` of them.  `extra`: arguments of blocks, as `run` takes them; those that say how
        much is read matter here.
        """
        inputs.check_lens(kv_lens, self.batch, self.device)
        self._check_planner()
        values: dict[str, Any] = {"kv_lens": kv_lens, "new_tokens": self._new_tokens(new_kv_included)}
        if self.kernel.mainloop.schedule.page_ids:
            if block_ids is None:
                raise InputError(f"block_ids: missing; the task records of {self.kernel.name} hold page ids (schedule.page_ids)")
            inputs.check_table(block_ids, kv_lens, self.batch, self.device)
            values |= {"block_ids": block_ids, "block_ids_stride": block_ids.stride(0)}
        if self.batch:
            self._launch("plan_tasks", (self.tasks,), self._with_extra(values, extra, "plan_tasks"), self._tensors(("tasks",), workspace))
        self._own_records_filled |= "tasks" not in (workspace or {})

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_ids: torch.Tensor | None,
        kv_lens: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        new_kv_included: bool = True,
        softmax_scale: float | None = None,
        q_scale: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
        scheduled: bool = False,
        workspace: Workspace | None = None,
        debug: bool = False,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of the new query tokens over the paged cache.

        Args:
            q: [batch * query tokens, query heads, head_dim].
            k_cache, v_cache: [pages, page, kv heads, head_dim] views; NHD, HND or a slice of a larger cache by strides.  For a kernel without
                pages: [batch, room, kv heads, head_dim], room for the tokens of the longest sequence.
            block_ids: int32 [batch, width]; entries past a sequence's last page are not read.  None for a kernel without pages.
            kv_lens: int32 [batch] tokens in the cache; 0 (or fewer than the query's position needs) gives a zero row.
            out: written in place if given, else allocated.
            lse: likewise, float32 [batch * query tokens, query heads]; only for kernels whose epilogue names a base.
            new_kv_included: kv_lens counts this step's tokens already.
            softmax_scale: 1 / sqrt(head_dim) if not given.
            q_scale, k_scale, v_scale: float32 scales of fp8 tensors.  Q: [batch * query tokens, query heads].  Scales per_tensor: K and V [1].
                Scales per_token_head: K [pages, page / 32, kv heads, 32] or the same bytes as e4m3 (the extra rows of the K cache), V [kv heads].
                Scales per_token_head_kv: V as K.
            scheduled: `schedule` was called for these lengths already (and, with `schedule.page_ids`, for this page table).
            workspace: tensors to use in place of the plan's own, by the names of `needs` and at least as large; counters start at zero and are
                left at zero.  Needed in full where the plan owns none.
            debug: read lengths and page ids on the host first and refuse what is out of range, and a task map that is not the one of this batch.
            extra: tensors or numbers for arguments that blocks of a variant bring, by name.

        Returns:
            (out, lse or None).

        Raises:
            InputTypeError, InputError: the tensor and the rule it breaks; nothing was launched.
        """
        problem = self.kernel.problem
        rows = self.batch * problem.query_tokens
        inputs.check_queries(q, problem, self.batch, self.query_heads, self.device)
        if "block_ids" in self.arguments:
            inputs.check_caches(k_cache, v_cache, problem, self.kv_heads, self.device)
            inputs.check_table(block_ids, kv_lens, self.batch, self.device)
        else:
            if block_ids is not None:
                raise InputError(f"block_ids: {self.kernel.name} takes K and V without pages; None is wanted")
            inputs.check_rooms(k_cache, v_cache, problem, self.batch, self.kv_heads, self.device)
            inputs.check_lens(kv_lens, self.batch, self.device)
        out, lse = self._outputs(out, lse, rows, "batch * query_tokens")
        scale_log2 = self._scale_log2(softmax_scale)
        if scheduled:
            self._check_scheduled(workspace)
        if debug:
            inputs.check_values(block_ids, kv_lens, self._new_tokens(new_kv_included), self.kernel, k_cache)
        scales = inputs.check_scales(
            self.kernel, self.batch, self.query_heads, self.kv_heads, k_cache.shape[0], self.device, {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        )
        values: dict[str, Any] = {
            "q": q, "q_token_stride": q.stride(0), "q_head_stride": q.stride(1),
            "kv_lens": kv_lens, "new_tokens": self._new_tokens(new_kv_included), "out": out, "out_token_stride": out.stride(0), "out_head_stride": out.stride(1),
            "lse": lse, "scale_log2": scale_log2, "k_desc": k_cache, "v_desc": v_cache, **scales,
        }  # fmt: skip
        if block_ids is not None:
            values |= {"block_ids": block_ids, "block_ids_stride": block_ids.stride(0)}
        values = self._with_extra(values, extra)
        held = self._tensors(tuple(self.needs), workspace)
        if not self.batch:
            return out, lse
        if self.planned:
            if not scheduled:
                self.schedule(kv_lens, block_ids=block_ids, new_kv_included=new_kv_included, workspace=workspace, **extra)
            elif debug:
                self._check_records(held["tasks"], kv_lens, block_ids=block_ids, new_kv_included=new_kv_included, **extra)
            grid: tuple[int, ...] = (self.tasks,)
        else:
            grid = (self.kernel.mainloop.schedule.splits // self.kernel.resources.cluster, self.batch * self.kv_heads)
        for entry in (self.entry, *self.kernel.mainloop.reduce.ENTRIES):
            self._launch(entry, grid, values, held)
        return out, lse

    @property
    def records(self) -> torch.Tensor:
        """The plan's own task map, int32 [tasks, words of a record]."""
        return self._as_records(self.workspace["tasks"])

    def _as_records(self, tasks: torch.Tensor) -> torch.Tensor:
        """Words of a task map as [tasks, words of a record]."""
        return tasks.view(-1, self.kernel.mainloop.schedule.record_words)

    def _idle_tasks(self) -> torch.Tensor:
        """A task map of this plan's size that is not planned yet."""
        return idle_tasks(self.tasks, self.device, self.kernel.mainloop.schedule.record_words)

    def _check_records(self, records: torch.Tensor, kv_lens: torch.Tensor, **given: Any) -> None:
        """Debug mode: a task map is what the planner makes of this batch now."""
        wanted = self._idle_tasks()
        self.schedule(kv_lens, workspace={"tasks": wanted}, **given)
        found, wanted = self._as_records(records[: len(wanted)]), self._as_records(wanted)
        # of an idle record nothing else is read, and the rest is an earlier task's
        idle = (found[:, SLOT_WORD] == IDLE) & (wanted[:, SLOT_WORD] == IDLE)
        if not ((found == wanted).all(1) | idle).all():
            read = ["kv_lens", *(["block_ids"] if self.kernel.mainloop.schedule.page_ids else []), *(name for name in given if name not in ("block_ids", "new_kv_included"))]
            raise InputError(f"scheduled: the task map is another batch's; plan it again where {' or '.join(read)} change")

    def _new_tokens(self, new_kv_included: bool) -> int:
        if not isinstance(new_kv_included, bool):
            raise InputTypeError(f"new_kv_included: True or False is wanted, not {new_kv_included!r}")
        return 0 if new_kv_included else self.kernel.problem.query_tokens

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "slots": self.slots, "l2_tiles": self.l2_tiles}


def plan_decode(kernel: Kernel, *, batch: int, kv_heads: int, slots: int = 0, owns_workspace: bool = True, **geometry: Any) -> DecodePlan:
    """See `tle_attn.plan`.  `geometry`: query_heads, device, target, seed, and `executor`, that of another plan of this kernel and device."""
    common = resolve(kernel, batch=batch, kv_heads=kv_heads, **geometry)
    if not kernel.mainloop.schedule.PLANNED and batch * kv_heads > MAX_GRID_Y:
        raise InputError(f"batch: {batch} sequences of {kv_heads} kv heads are {batch * kv_heads} rows of the static grid, and CUDA takes {MAX_GRID_Y}; use a recipe with a task map")
    return DecodePlan(**common, slots=slots, owns_workspace=owns_workspace)
