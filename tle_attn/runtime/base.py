"""What plans of every phase share: geometry, workspace, outputs, arguments that blocks bring, and launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, field

from ..codegen import Entry, entries_of
from ..errors import InputError, TleAttnError
from ..spec import Argument, BoxDescriptor, DType, Kernel
from . import inputs
from .executors import make_executor

if TYPE_CHECKING:
    import torch

#: how a descriptor sees a tensor of this rank: the head axis before the token axis, so that NHD and HND differ in strides alone
HEADS_FIRST = {3: (1, 0, 2), 4: (0, 2, 1, 3)}

Needs = dict[str, tuple[DType, int]]
Workspace = Mapping[str, "torch.Tensor"]


@define(eq=False, kw_only=True)
class Plan:
    """A kernel ready to launch for one geometry.

    Everything is allocated here; `run` only launches, so it can be captured in a CUDA graph and replayed with other lengths.
    A plan is for one stream at a time: its workspace is shared by its launches.  A plan that owns no workspace is given one at each call.

    Attributes:
        kernel: the kernel spec.
        batch, query_heads, kv_heads: geometry.
        target: where it runs ("gluon", "tle", "cpu", "tle-emulated"); never chosen silently.
        needs: {name: (type, elements)} of the workspace.
        workspace: the tensors, if the plan owns them.
        workspace_bytes: bytes that the plan holds.
        entries, arguments: kernels of the module, and the arguments of all of them, by name.
    """

    #: tensors of the workspace that are zero before a launch; a launch that ends leaves them zero
    ZEROED: ClassVar[tuple[str, ...]] = ()
    #: the tensor of the workspace that a planner fills
    RECORDS: ClassVar[str]

    kernel: Kernel
    batch: int
    query_heads: int
    kv_heads: int
    target: str
    device: torch.device
    executor: Any = field(repr=False)
    owns_workspace: bool = True
    needs: Needs = field(init=False, repr=False)
    workspace: dict[str, torch.Tensor] = field(init=False, repr=False, factory=dict)
    entries: dict[str, Entry] = field(init=False, repr=False)
    arguments: dict[str, Argument] = field(init=False, repr=False)
    _own_records_filled: bool = field(init=False, repr=False, default=False)

    def __attrs_post_init__(self) -> None:
        import torch

        self.entries = {e.name: e for e in entries_of(self.kernel)}
        self.arguments = {a.name: a for e in self.entries.values() for a in e.arguments}
        self.needs = self._sizes()
        if self.owns_workspace:
            self.workspace = {name: torch.empty(n, dtype=inputs.torch_dtype(dtype), device=self.device) for name, (dtype, n) in self.needs.items()}
            self.reset()

    def _sizes(self) -> Needs:
        """What a launch needs beside its tensors; called once, when the plan is made."""
        raise NotImplementedError

    def run(self, *tensors: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of the query tokens: (out, lse or None).  The plan of each phase says what it takes."""
        raise NotImplementedError

    @property
    def workspace_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.workspace.values())

    def reset(self) -> None:
        """Zero what must be zero between launches, after a launch that was aborted; a launch that ends leaves it at zero."""
        for name in self.ZEROED:
            if name in self.workspace:
                self.workspace[name].zero_()

    @property
    def entry(self) -> str:
        """The attention kernel of the module."""
        return self.kernel.mainloop.ENTRIES[0]

    def _outputs(self, out: torch.Tensor | None, lse: torch.Tensor | None, rows: int, axis: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`out` and `lse` as given and checked, or new; `axis`: what the rows are, for errors."""
        return outputs(self.kernel, self.device, out, lse, (rows, self.query_heads, self.kernel.problem.v_dim), f"{axis}, query_heads, head_dim")

    def _scale_log2(self, softmax_scale: float | None) -> float:
        """Softmax scale in base-2 units; 1 / sqrt(head_dim) if not given."""
        scale = 1.0 / math.sqrt(self.kernel.problem.head_dim) if softmax_scale is None else inputs.check_softmax_scale(softmax_scale)
        return scale * math.log2(math.e)

    def _tensors(self, names: tuple[str, ...], given: Workspace | None) -> dict[str, torch.Tensor]:
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
    def planned(self) -> bool:
        """Whether a launch of the planner comes before the kernel's."""
        return self.kernel.mainloop.schedule.PLANNED

    def _check_planner(self, what: str = "", error: type[TleAttnError] = TleAttnError) -> None:
        """The schedule has a planner; `what` was asked for, which needs one."""
        if not self.kernel.mainloop.schedule.PLANNED:
            raise error(f"{what}{self.kernel.name} uses {self.kernel.mainloop.schedule.label()}, which plans nothing")

    def _check_scheduled(self, workspace: Workspace | None) -> None:
        """A run that is told that the planner ran already: there is one, and something has filled the records of this run."""
        self._check_planner("scheduled: ", InputError)
        if self.planned and not self._own_records_filled and self.RECORDS not in (workspace or {}):
            raise InputError(f"scheduled: schedule() has not filled this plan's {self.RECORDS}; call it, or give the workspace that it has filled")

    def _own(self) -> dict[str, Any]:
        """Numbers that the plan itself sets."""
        return {"batch": self.batch, "query_heads": self.query_heads, "kv_heads": self.kv_heads}

    def _with_extra(self, values: dict[str, Any], extra: dict[str, Any], entry: str | None = None) -> dict[str, Any]:
        """The arguments of a run; all that the kernels need (or one, `entry`) is there before the first of them is launched."""
        known = {**values, **self._own(), **self.needs}
        for name in extra:
            if name not in self.arguments:
                allowed = [a for a, argument in self.arguments.items() if a not in known and not argument.extent_of]
                raise InputError(f"{name}: {self.kernel.name} has no such argument; of blocks it has {', '.join(allowed) or 'none'}")
            if name in known or self.arguments[name].extent_of:
                raise InputError(f"{name}: not to be given; the plan and the other tensors say what it is")
        sizes = {"batch": self.batch, "query_heads": self.query_heads, "kv_heads": self.kv_heads, "query_tokens": self.kernel.problem.query_tokens}
        checked = {}
        wanted = self.arguments if entry is None else {a.name: a for a in self.entries[entry].arguments}
        for name, a in wanted.items():
            if name in known or a.extent_of:
                continue
            if name not in extra:
                raise InputError(f"{name}: this kernel needs it ({a.doc}); pass {name}= to run")
            checked[name] = inputs.check_argument(a, extra[name], self.device, sizes)
        extents = {name: extra[a.extent_of[0]].shape[a.extent_of[1]] for name, a in wanted.items() if a.extent_of}
        return {**values, **checked, **extents}

    def _launch(self, entry: str, grid: tuple[int, ...], values: dict[str, Any], held: dict[str, torch.Tensor]) -> None:
        values = {**values, **self._own(), **held}
        arguments = self.entries[entry].arguments
        ordered = []
        for a in arguments:
            value = values[a.name]
            if isinstance(a.type, BoxDescriptor):
                axes = HEADS_FIRST[value.dim()]
                value = self.executor.descriptor(a.type, value, [value.shape[i] for i in axes], [value.stride(i) for i in axes])
            ordered.append(value)
        self.executor.launch(entry, grid, arguments, ordered)


def outputs(
    kernel: Kernel, device: torch.device, out: torch.Tensor | None, lse: torch.Tensor | None, shape: tuple[int, int, int], axes: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a kernel's epilogue writes, `out` [shape] and `lse` [shape without the last dimension], as given and checked, or new; `axes` names the dimensions."""
    import torch

    epilogue = kernel.mainloop.epilogue
    if out is None:
        out = torch.empty(shape, dtype=inputs.torch_dtype(epilogue.dtype), device=device)
    inputs.check_output(out, "out", epilogue.dtype, shape, device, axes)
    if getattr(epilogue, "ALIGNED", False):
        inputs.check_aligned(out, "out")
    if epilogue.lse == "none":
        if lse is not None:
            raise InputError('lse: this kernel writes none; set epilogue.lse to "e" or "2" in the recipe')
        return out, None
    if lse is None:
        lse = torch.empty(shape[:2], dtype=torch.float32, device=device)
    inputs.check_output(lse, "lse", DType.F32, shape[:2], device, axes.rpartition(", ")[0])
    if not lse.is_contiguous():
        raise InputError("lse: must be contiguous")
    return out, lse


def resolve_device(device: Any, target: str) -> torch.device:
    """The device by its number: the target's own if none is given."""
    import torch

    device = torch.device(device if device is not None else ("cpu" if target in ("cpu", "tle-emulated") else "cuda"))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return device


def resolve(
    kernel: Kernel, *, batch: int, query_heads: int, kv_heads: int, device: Any, target: str, seed: int = 0, executor: Any = None
) -> dict[str, Any]:
    """Attributes of a plan, checked: counts, heads, the device by its number, and what runs the kernel there (`executor`: that of another plan)."""
    inputs.check_counts(batch, query_heads, kv_heads)
    if query_heads != kv_heads * kernel.problem.group:
        raise InputError(f"query_heads: {query_heads} for {kv_heads} kv heads, but {kernel.name} is for {kernel.problem.group} query heads per kv head")
    device = resolve_device(device, target)
    executor = executor or make_executor(kernel, target, device, seed)
    return {"kernel": kernel, "batch": batch, "query_heads": query_heads, "kv_heads": kv_heads, "target": target, "device": device, "executor": executor}
