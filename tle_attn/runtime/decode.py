"""Decode plan: what is fixed before launches (geometry, grid, workspace); a run only launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..codegen import Entry, entries_of
from ..errors import InputError, InputTypeError, TleAttnError
from ..spec import BoxDescriptor, DType, Kernel
from ..spec.tasks import IDLE, RECORD, SLOT_WORD
from . import inputs
from .executors import make_executor

if TYPE_CHECKING:
    import torch


#: CTAs along the second dimension of a CUDA grid
MAX_GRID_Y = 65_535


def task_capacity(slots: int, batch: int, kv_heads: int) -> int:
    """Task records that the planner fills: a task for every slot of a head, and one more for each sequence where sequences alone exceed them."""
    per_head = max(slots // kv_heads, 1)
    return kv_heads * (per_head if batch < per_head else per_head + batch)


def idle_tasks(count: int, device: Any) -> torch.Tensor:
    """`count` records that keep their CTAs idle, int32: a task map before it is planned."""
    import torch

    records = torch.zeros(count, RECORD, dtype=torch.int32, device=device)
    records[:, SLOT_WORD] = IDLE
    return records.view(-1)


@define(eq=False)
class DecodePlan:
    """A decode kernel ready to launch for one geometry.

    Everything is allocated here; `run` only launches, so it can be captured in a CUDA graph and replayed with other lengths.
    A plan is for one stream at a time: its workspace is shared by its launches.  A plan that owns no workspace is given one at each call.

    Attributes:
        kernel: the kernel spec.
        batch, query_heads, kv_heads: geometry; rows of a batch that are not alive have length 0.
        target: where it runs ("gluon", "tle", "cpu", "tle-emulated"); never chosen silently.
        slots: CTAs to plan for; by default those that are resident at once, and never more, because CTAs of a sequence wait for each other.
        tasks: CTAs of the attention kernel.
        needs: {name: (type, elements)} of the workspace.
        workspace: the tensors, if the plan owns them.
        workspace_bytes: bytes that the plan holds.
    """

    kernel: Kernel
    batch: int
    query_heads: int
    kv_heads: int
    target: str
    device: torch.device
    executor: Any = field(repr=False)
    slots: int = 0
    owns_workspace: bool = True
    tasks: int = field(init=False)
    needs: dict[str, tuple[DType, int]] = field(init=False, repr=False)
    workspace: dict[str, torch.Tensor] = field(init=False, repr=False, factory=dict)
    entries: dict[str, Entry] = field(init=False, repr=False)
    _own_tasks_filled: bool = field(init=False, repr=False, default=False)

    def __attrs_post_init__(self) -> None:
        import torch

        schedule, problem = self.kernel.mainloop.schedule, self.kernel.problem
        pairs = self.batch * self.kv_heads
        self.entries = {e.name: e for e in entries_of(self.kernel)}
        self.slots = self.slots or self.executor.resident_ctas(self.kernel.mainloop.ENTRIES[0])
        if schedule.PLANNED:
            self.tasks = task_capacity(self.slots, self.batch, self.kv_heads)
            partials = self.tasks
        else:
            self.tasks = pairs * schedule.splits
            partials = self.tasks if schedule.splits > 1 else 0
        n, d = problem.columns, problem.head_dim
        self.needs = {"partial_o": (DType.F32, partials * n * d), "partial_ml": (DType.F32, partials * 2 * n), "counters": (DType.I32, max(pairs, 1) * 2)}
        if schedule.PLANNED:
            self.needs["tasks"] = (DType.I32, self.tasks * RECORD)
        if self.owns_workspace:
            self.workspace = {name: torch.empty(n, dtype=inputs.torch_dtype(dtype), device=self.device) for name, (dtype, n) in self.needs.items()}
            self.workspace["counters"].zero_()
            if schedule.PLANNED:
                self.workspace["tasks"] = idle_tasks(self.tasks, self.device)

    @property
    def l2_tiles(self) -> int:
        """Key tiles (with their value tiles) of one kv head that fit the device's L2 cache."""
        problem = self.kernel.problem
        return self.executor.l2_bytes() // (2 * 64 * problem.head_dim * problem.dtype.nbytes * self.kv_heads)

    @property
    def workspace_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.workspace.values())

    def reset(self) -> None:
        """Zero the counters, after a launch that was aborted; a launch that ends leaves them at zero."""
        self.workspace["counters"].zero_()

    def schedule(self, kv_lens: torch.Tensor, *, new_kv_included: bool = True, workspace: Mapping[str, torch.Tensor] | None = None) -> None:
        """Launch the planner for these lengths; one call serves all layers of a step.  Nothing is read on the host.

        `workspace` with "tasks": the caller's records to fill, `needs["tasks"]` of them.
        """
        inputs.check_lens(kv_lens, self.batch, self.device)
        if not self.kernel.mainloop.schedule.PLANNED:
            raise TleAttnError(f"{self.kernel.name} uses {self.kernel.mainloop.schedule.label()}, which plans nothing")
        if self.batch:
            values = {"kv_lens": kv_lens, "new_tokens": self._new_tokens(new_kv_included)}
            self._launch("plan_tasks", (self.tasks,), values, self._tensors(("tasks",), workspace))
        self._own_tasks_filled |= "tasks" not in (workspace or {})

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_ids: torch.Tensor,
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
        workspace: Mapping[str, torch.Tensor] | None = None,
        debug: bool = False,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of the new query tokens over the paged cache.

        Args:
            q: [batch * query tokens, query heads, head_dim].
            k_cache, v_cache: [pages, page, kv heads, head_dim] views; NHD, HND or a slice of a larger cache by strides.
            block_ids: int32 [batch, width]; entries past a sequence's last page are not read.
            kv_lens: int32 [batch] tokens in the cache; 0 (or fewer than the query's position needs) gives a zero row.
            out: written in place if given, else allocated.
            lse: likewise, float32 [batch * query tokens, query heads]; only for kernels whose epilogue names a base.
            new_kv_included: kv_lens counts this step's tokens already.
            softmax_scale: 1 / sqrt(head_dim) if not given.
            q_scale, k_scale, v_scale: float32 scales of fp8 tensors.  Q: [batch * query tokens, query heads].  Scales per_tensor: K and V [1].
                Scales per_token_head: K [pages, page / 32, kv heads, 32] or the same bytes as e4m3 (the extra rows of the K cache), V [kv heads].
            scheduled: `schedule` was called for these lengths already.
            workspace: tensors to use in place of the plan's own, by the names of `needs` and at least as large; counters start at zero and are
                left at zero.  Needed in full where the plan owns none.
            debug: read lengths and page ids on the host first and refuse what is out of range.
            extra: tensors or numbers for arguments that blocks of a variant bring, by name.

        Returns:
            (out, lse or None).

        Raises:
            InputTypeError, InputError: the tensor and the rule it breaks; nothing was launched.
        """
        import torch

        problem, epilogue = self.kernel.problem, self.kernel.mainloop.epilogue
        rows = self.batch * problem.query_tokens
        inputs.check_queries(q, problem, self.batch, self.query_heads, self.device)
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            inputs.check_cache(cache, name, problem, self.kv_heads, self.device)
        if k_cache.shape[0] != v_cache.shape[0]:
            raise InputError(f"v_cache: {v_cache.shape[0]} pages where k_cache has {k_cache.shape[0]}; a page id names a page of both")
        inputs.check_table(block_ids, kv_lens, self.batch, self.device)
        shape = (rows, self.query_heads, problem.head_dim)
        if out is None:
            out = torch.empty(shape, dtype=inputs.torch_dtype(epilogue.dtype), device=self.device)
        inputs.check_output(out, "out", epilogue.dtype, shape, self.device, "batch * query_tokens, query_heads, head_dim")
        if epilogue.lse == "none":
            if lse is not None:
                raise InputError('lse: this kernel writes none; set epilogue.lse to "e" or "2" in the recipe')
        else:
            if lse is None:
                lse = torch.empty(shape[:2], dtype=torch.float32, device=self.device)
            inputs.check_output(lse, "lse", inputs.DType.F32, shape[:2], self.device, "batch * query_tokens, query_heads")
            if not lse.is_contiguous():
                raise InputError("lse: must be contiguous")
        scale = 1.0 / math.sqrt(problem.head_dim) if softmax_scale is None else inputs.check_softmax_scale(softmax_scale)
        if scheduled and not self.kernel.mainloop.schedule.PLANNED:
            raise InputError(f"scheduled: {self.kernel.name} uses {self.kernel.mainloop.schedule.label()}, which plans nothing")
        if scheduled and not self._own_tasks_filled and "tasks" not in (workspace or {}):
            raise InputError("scheduled: schedule() was never called on this plan, so there are no tasks to run")
        if debug:
            inputs.check_values(block_ids, kv_lens, self._new_tokens(new_kv_included), self.kernel, k_cache.shape[0])
        scales = inputs.check_scales(
            self.kernel, self.batch, self.query_heads, self.kv_heads, k_cache.shape[0], self.device, {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        )
        values: dict[str, Any] = {
            "q": q, "q_token_stride": q.stride(0), "q_head_stride": q.stride(1), "block_ids": block_ids, "block_ids_stride": block_ids.stride(0),
            "kv_lens": kv_lens, "new_tokens": self._new_tokens(new_kv_included), "out": out, "out_token_stride": out.stride(0), "out_head_stride": out.stride(1),
            "lse": lse, "scale_log2": scale * math.log2(math.e), "k_desc": k_cache, "v_desc": v_cache, **scales,
        }  # fmt: skip
        values = self._with_extra(values, extra)
        held = self._tensors(tuple(self.needs), workspace)
        if not self.batch:
            return out, lse
        if self.kernel.mainloop.schedule.PLANNED:
            if not scheduled:
                self.schedule(kv_lens, new_kv_included=new_kv_included, workspace=workspace)
            grid: tuple[int, ...] = (self.tasks,)
        else:
            grid = (self.kernel.mainloop.schedule.splits, self.batch * self.kv_heads)
        self._launch(self.kernel.mainloop.ENTRIES[0], grid, values, held)
        return out, lse

    def _new_tokens(self, new_kv_included: bool) -> int:
        if not isinstance(new_kv_included, bool):
            raise InputTypeError(f"new_kv_included: True or False is wanted, not {new_kv_included!r}")
        return 0 if new_kv_included else self.kernel.problem.query_tokens

    def _tensors(self, names: tuple[str, ...], given: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        """The workspace of a launch: the plan's own tensors, or the caller's in their place."""
        if not given:
            given = {}
        for name, tensor in given.items():
            if name not in self.needs:
                raise InputError(f"workspace: {self.kernel.name} has no {name!r}; it needs {', '.join(self.needs)}")
            dtype, count = self.needs[name]
            inputs.want(tensor, name, dtype, (None,), self.device, "elements")
            if tensor.numel() < count or not tensor.is_contiguous():
                raise InputError(f"{name}: {tensor.numel()} elements where {count} contiguous ones are wanted")
        held = {**self.workspace, **given}
        missing = [name for name in names if name not in held]
        if missing:
            raise InputError(f"workspace: {', '.join(missing)} missing; this plan owns no workspace")
        return held

    @property
    def _own(self) -> dict[str, Any]:
        """Numbers that the plan itself sets."""
        return {"batch": self.batch, "kv_heads": self.kv_heads, "slots": self.slots, "l2_tiles": self.l2_tiles}

    def _with_extra(self, values: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a run; all that the kernels need is there before the first of them is launched."""
        known = {**values, **self._own, **self.needs}
        arguments = {a.name: a for e in self.entries.values() for a in e.arguments}
        for name in extra:
            if name not in arguments:
                raise InputError(f"{name}: {self.kernel.name} has no such argument")
            if name in known:
                raise InputError(f"{name}: not to be given; the plan and the other tensors say what it is")
        for name, a in arguments.items():
            if name in known:
                continue
            if name not in extra:
                raise InputError(f"{name}: this kernel needs it ({a.doc}); pass {name}= to run")
            inputs.check_argument(a, extra[name], self.device)
        return {**values, **extra}

    def _launch(self, entry: str, grid: tuple[int, ...], values: dict[str, Any], held: dict[str, torch.Tensor]) -> None:
        values = {**values, **self._own, **held}
        arguments = self.entries[entry].arguments
        ordered = []
        for a in arguments:
            value = values[a.name]
            if isinstance(a.type, BoxDescriptor):
                # (page, head, token, dim): NHD and HND differ in strides alone
                shape, strides = [value.shape[i] for i in (0, 2, 1, 3)], [value.stride(i) for i in (0, 2, 1, 3)]
                value = self.executor.descriptor(a.type, value, shape, strides)
            ordered.append(value)
        self.executor.launch(entry, grid, arguments, ordered)


def plan_decode(
    kernel: Kernel, *, batch: int, query_heads: int, kv_heads: int, device: Any, target: str, seed: int = 0, executor: Any = None, **options: Any
) -> DecodePlan:
    """See `tle_attn.plan`.  `executor`: that of another plan of this kernel and device; `options`: `slots` and `owns_workspace` of the plan."""
    import torch

    inputs.check_counts(batch, query_heads, kv_heads)
    if query_heads != kv_heads * kernel.problem.group:
        raise InputError(f"query_heads: {query_heads} for {kv_heads} kv heads, but {kernel.name} is for {kernel.problem.group} query heads per kv head")
    if not kernel.mainloop.schedule.PLANNED and batch * kv_heads > MAX_GRID_Y:
        raise InputError(f"batch: {batch} sequences of {kv_heads} kv heads are {batch * kv_heads} rows of the static grid, and CUDA takes {MAX_GRID_Y}; use a recipe with a task map")
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    executor = executor or make_executor(kernel, target, device, seed)
    geometry = {"batch": batch, "query_heads": query_heads, "kv_heads": kv_heads}
    return DecodePlan(kernel=kernel, **geometry, target=target, device=device, executor=executor, **options)
