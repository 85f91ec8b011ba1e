"""Merge plan: a merge kernel ready to launch; a run checks its tensors and launches once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, field

from ..codegen import Entry, entries_of
from ..errors import InputError, InputTypeError
from ..spec import DType, Kernel
from . import inputs
from .base import outputs, resolve_device
from .executors import make_executor
from .overlap import check_same_or_apart

if TYPE_CHECKING:
    import torch

AXES = "tokens, heads, head_dim"


@define(eq=False)
class MergePlan:
    """A merge kernel on a device.  Tokens, heads and, for a stack, the number of states may differ from run to run; there is no workspace.

    Attributes:
        kernel: the kernel spec; its mainloop's `source` says what a run takes.
        target: where it runs ("gluon", "tle", "cpu", "tle-emulated").
        device: torch device.
    """

    #: as those of other plans
    workspace: ClassVar[dict[str, Any]] = {}
    ZEROED: ClassVar[tuple[str, ...]] = ()

    kernel: Kernel
    target: str
    device: torch.device
    executor: Any = field(repr=False)
    entry: Entry = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        (self.entry,) = entries_of(self.kernel)

    def run(
        self, outs: torch.Tensor | Sequence[torch.Tensor], lses: torch.Tensor | Sequence[torch.Tensor], *, out: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Merge partial results of attention.

        Args:
            outs: each state's output, normalised over its own keys.  Source "stack": one tensor [states, tokens, heads, head_dim]; source "list":
                as many tensors [tokens, heads, head_dim] as the kernel has states.  Strides are multiples of 16 elements, 1 in the last dimension.
            lses: each state's log-sum-exp, float32 [..., tokens, heads], in the kernel's base; -inf for a state that saw no key, whose output is not looked at.
            out: written in place if given; it may be one of the inputs.
            lse: likewise, float32 [tokens, heads], contiguous; only for kernels whose epilogue names a base.

        Returns:
            (out, lse or None).  A row that is empty in every state gives 0 and -inf.

        Raises:
            InputTypeError, InputError: the tensor and the rule it breaks; nothing was launched.
        """
        source = self.kernel.mainloop.source
        values, states = self._stack(outs, lses) if source.STATES is None else self._list(outs, lses, source.STATES)
        tokens, heads, dim = states[0][1].shape
        if tokens * heads >= 2**31:
            raise InputError(f"{states[0][0]}: {tokens} tokens of {heads} heads are {tokens * heads} rows, and the kernel counts to 2**31 - 1")
        out, lse = outputs(self.kernel, self.device, out, lse, (tokens, heads, dim), AXES)
        for written, name in ((out, "out"), (lse, "lse")):
            for read_name, read in states if written is not None else ():
                check_same_or_apart(written, name, read, read_name)
        values |= {
            "out": out, "out_token_stride": _stride(out, 0), "out_head_stride": _stride(out, 1), "lse": lse, "row_count": tokens * heads, "kv_heads": heads,
        }  # fmt: skip
        if out.numel():
            mainloop, arguments = self.kernel.mainloop, self.entry.arguments
            rows = mainloop.tile_rows(self.kernel.problem)
            self.executor.launch(self.entry.name, (-(-tokens * heads // rows),), arguments, [values[a.name] for a in arguments])
        return out, lse

    def _stack(self, outs: Any, lses: Any) -> tuple[dict[str, Any], list[tuple[str, torch.Tensor]]]:
        """Arguments of the kernel, and what it reads: (name, tensor), the first an output."""
        head_dim, dtype = self.kernel.problem.head_dim, self.kernel.mainloop.source.dtype
        inputs.want(outs, "outs", dtype, (None, None, None, head_dim), self.device, f"states, {AXES}")
        inputs.check_aligned(outs, "outs")
        inputs.want(lses, "lses", DType.F32, tuple(outs.shape[:3]), self.device, "states, tokens, heads")
        if not outs.shape[0]:
            raise InputError("outs: no states; one is wanted at least")
        values = {"states": outs.shape[0], "outs": outs, "lses": lses}
        for i, axis in enumerate(("state", "token", "head")):
            values |= {f"outs_{axis}_stride": _stride(outs, i), f"lses_{axis}_stride": _stride(lses, i)}
        read = [(f"{name}[{i}]", state) for name, stack in (("outs", outs), ("lses", lses)) for i, state in enumerate(stack.unbind(0))]
        return values, read

    def _list(self, outs: Any, lses: Any, count: int) -> tuple[dict[str, Any], list[tuple[str, torch.Tensor]]]:
        """The same for tensors of their own."""
        for name, given in (("outs", outs), ("lses", lses)):
            if not isinstance(given, Sequence):
                raise InputTypeError(f"{name}: a list of {count} tensors is wanted, not {type(given).__name__}")
            if len(given) != count:
                raise InputError(f"{name}: {len(given)} tensors where {self.kernel.name} merges {count}")
        head_dim, dtype = self.kernel.problem.head_dim, self.kernel.mainloop.source.dtype
        values: dict[str, Any] = {}
        read: list[tuple[str, torch.Tensor]] = []
        for i, (o, l) in enumerate(zip(outs, lses)):
            shape = (None, None, head_dim) if i == 0 else tuple(outs[0].shape)
            inputs.want(o, f"outs[{i}]", dtype, shape, self.device, AXES)
            inputs.check_aligned(o, f"outs[{i}]")
            inputs.want(l, f"lses[{i}]", DType.F32, tuple(o.shape[:2]), self.device, "tokens, heads")
            read += [(f"outs[{i}]", o), (f"lses[{i}]", l)]
            for name, tensor in ((f"out_{i}", o), (f"lse_{i}", l)):
                values |= {name: tensor, f"{name}_token_stride": _stride(tensor, 0), f"{name}_head_stride": _stride(tensor, 1)}
        return values, read


def _stride(tensor: torch.Tensor, dim: int) -> int:
    """0 for a dimension of one element, whose stride may be any number."""
    return tensor.stride(dim) if tensor.shape[dim] > 1 else 0


def plan_merge(kernel: Kernel, *, device: Any = None, target: str, seed: int = 0, executor: Any = None) -> MergePlan:
    """See `tle_attn.plan`."""
    device = resolve_device(device, target)
    return MergePlan(kernel=kernel, target=target, device=device, executor=executor or make_executor(kernel, target, device, seed))
