"""Kernels of a test's own text around the functions of a few blocks, linked by the linker that makes the real kernels.

kernel = mini_kernel('''
@jit
def test(args):
    ...
''', PagedTma(), problem=Problem(page=16), arguments=[Argument("out", "*bf16", "tiles")])
run_kernel(kernel, {"k_desc": cache, "out": out}, grid=(4,))
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tle_attn.codegen import source as src
from tle_attn.runtime.executors import scratch_folder
from tle_attn.spec import Argument, Block, BoxDescriptor, Constant, DType, Kernel, Mainloop, Problem, Resources, Role


@frozen(kw_only=True)
class Harness(Mainloop):
    """A mainloop whose text is a test's; `harness_class` makes the class for a text."""

    FILE = Path()

    blocks: tuple[Block, ...] = field(metadata={"slot": "block", "many": True})
    takes: Resources
    own_arguments: tuple[Argument, ...] = ()
    own_constants: Mapping[str, Constant] = field(factory=dict, hash=False)
    CHAINS: dict[str, tuple[str, ...]] = field(factory=dict, hash=False)
    ENTRIES: tuple[str, ...] = ("test",)

    @classmethod
    def source_file(cls) -> Path:
        return cls.FILE

    @classmethod
    def label(cls) -> str:
        return "text of the test"

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        return self.own_arguments

    def constants(self, problem: Problem) -> dict[str, Constant]:
        return dict(self.own_constants)

    def resources(self, problem: Problem) -> Resources:
        return self.takes

    def launch_note(self, problem: Problem, entry: str) -> str:
        return "one test"


@lru_cache(maxsize=256)
def harness_class(text: str) -> type[Harness]:
    """The mainloop class with this text."""
    file = scratch_folder() / f"test_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    file.write_text(text)
    return type("Harness", (Harness,), {"FILE": file, "__slots__": ()})


def default_companions(problem: Problem) -> list[Block]:
    """The decode family's default blocks for `problem`: where functions and constants that a block uses come from, if nothing else has them."""
    from tle_attn.components.mainloops.decode import DecodeMainloop
    from tle_attn.components.scales.per_tensor import PerTensor
    from tle_attn.components.v_operand.fp8_register import Fp8RegisterV

    fp8 = {"scale": PerTensor(), "v_operand": Fp8RegisterV()} if problem.dtype is DType.FP8 else {}
    return [block for _, block in DecodeMainloop(**fp8).settled(problem).parts()]


def prefill_companions(problem: Problem) -> list[Block]:
    """The same of the prefill family, to be given as `companions`."""
    from tle_attn.components.mainloops.prefill import PrefillMainloop
    from tle_attn.components.scales.per_tensor import PerTensor
    from tle_attn.components.v_operand.fp8_transpose import Fp8Transpose

    fp8 = {"scale": PerTensor(), "v_operand": Fp8Transpose()} if problem.dtype is DType.FP8 else {}
    return [block for _, block in PrefillMainloop(**fp8).parts()]


def mini_kernel(
    text: str,
    *blocks: Block,
    problem: Problem | None = None,
    arguments: Sequence[Argument] = (),
    constants: Mapping[str, Constant] | None = None,
    entries: tuple[str, ...] = ("test",),
    roles: Sequence[Role] = (Role("test", "test", 4, 0),),
    companions: Iterable[Block] | None = None,
    name: str = "test",
) -> Kernel:
    """A kernel of `text` and the functions of `blocks` that it calls.

    Args:
        text: device functions in the dialect, indented as one likes.
        blocks: the blocks under test.
        problem: what they are made for (default: bf16, head_dim 128, 8 query heads, pages of 64).
        arguments, constants: of the text itself; blocks bring their own.
        entries: the kernels in `text`.
        roles: warps and registers, for the resource checks and the compiler.
        companions: blocks from which missing functions, constants and arguments are taken; `default_companions` if not given, `prefill_companions(problem)` for blocks of prefill.

    Raises:
        SpecError, LinkError, LintError: as for every kernel.
    """
    from tle_attn.components.mainloops.decode import DecodeMainloop

    problem = problem or Problem()
    text = textwrap.dedent(text).strip() + "\n"
    spare = list(default_companions(problem) if companions is None else companions)
    used = _with_companions(text, list(blocks), spare, problem, dict(constants or {}), entries)
    own = {name: c for block in spare if block not in used for name, c in block.constants(problem).items()}
    own = {name: c for name, c in own.items() if not any(name in b.constants(problem) for b in used)} | dict(constants or {})
    offered = {a.name: a for block in spare if block not in used for a in block.arguments(problem)} | {a.name: a for a in arguments}
    for block in used:
        for argument in block.arguments(problem):
            offered.pop(argument.name, None)
    mainloop = harness_class(text)(
        blocks=tuple(used),
        takes=Resources(roles=tuple(roles)),
        own_arguments=tuple(offered.values()),
        own_constants=own,
        CHAINS=DecodeMainloop.CHAINS,
        ENTRIES=entries,
    )
    return Kernel(name=name, problem=problem, mainloop=mainloop, summary="A test.")


def _with_companions(
    text: str, blocks: list[Block], spare: list[Block], problem: Problem, constants: dict[str, Constant], entries: tuple[str, ...]
) -> list[Block]:
    """`blocks` and those of `spare` whose functions the text reaches."""
    values = {name: c.value for block in (*spare, *blocks) for name, c in block.constants(problem).items()} | {name: c.value for name, c in constants.items()}
    file = harness_class(text).FILE
    used = list(blocks)
    while True:
        texts = [*src.functions_of(file, ""), *(t for b in used for t in src.texts_of(b, ""))]
        functions = {t.name: src.prune(t.source, values) for t in texts}
        known = set(functions).union(*(_micro_functions(b) for b in used))
        missing: set[str] = set()
        seen: set[str] = set()
        pending = [name for name in entries if name in functions]
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                free = src.free_names(src.parse(functions[name]).body[0])
                pending += [n for n in free if n in functions]
                missing |= free - known
        more = next((b for b in spare if b not in used and missing & (_micro_functions(b) | {t.name for t in src.texts_of(b, "")})), None)
        if more is None:
            return used
        used.append(more)


def _micro_functions(block: Block) -> set[str]:
    file = src.microkernel_file(type(block), "cpu")
    return {n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)} if file else set()


def run_kernel(
    kernel: Kernel, values: Mapping[str, Any], *, grid: tuple[int, ...] = (1,), entry: str = "test", target: str = "cpu", seed: int = 0, device: Any = None
) -> None:
    """Run one kernel of a `mini_kernel`.

    Args:
        kernel: the kernel.
        values: its arguments by name: tensors (for descriptors too: they are described as they are), numbers.
        grid: CTAs.
        entry: which of its kernels.
        target: "cpu", "tle-emulated" or, on a Hopper GPU, "gluon".
        seed: schedule of the emulations.
        device: where the tensors are, if not the target's own.

    Raises:
        ValueError: an argument that is missing, or that the kernel does not take.
        TargetUnavailable, EmulationError: see `tle_attn.plan` and `tle_attn.emu`.
    """
    import torch

    from tle_attn.codegen import generate
    from tle_attn.runtime.executors import make_executor

    arguments = generate(kernel, "cpu" if target == "tle-emulated" else target).entry(entry).arguments
    names = {a.name for a in arguments}
    if names != set(values):
        missing, spare = sorted(names - set(values)), sorted(set(values) - names)
        raise ValueError(f"{entry} takes {', '.join(sorted(names)) or 'nothing'}; missing: {missing}, not taken: {spare}")
    emulated = target in ("cpu", "tle-emulated")
    executor = make_executor(kernel, target, torch.device(device or ("cpu" if emulated else "cuda")), seed)
    ordered = []
    for a in arguments:
        value = values[a.name]
        if isinstance(a.type, BoxDescriptor):
            value = executor.descriptor(a.type, value, list(value.shape), list(value.stride()))
        ordered.append(value)
    executor.launch(entry, grid, arguments, ordered)
