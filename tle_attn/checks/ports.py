"""Do the blocks fit? Every function that a block calls must be provided, with the same typed ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import PortError

if TYPE_CHECKING:
    from ..spec import Block, Function, Kernel


def check_ports(kernel: Kernel) -> None:
    """Raise PortError for a missing function or a port that does not fit, naming the block that would."""
    provided = kernel.provided
    for where, block in kernel.blocks:
        for wanted in block.requires(kernel.problem):
            if wanted.name not in provided:
                raise _missing(kernel, where, block, wanted)
            key, have = provided[wanted.name]
            trouble = _misfit(wanted, have)
            if trouble:
                what, want, got = trouble
                raise PortError(
                    f"{have.name} of this block does not fit {where}: {what}", key=key, allowed=_labels(_who_could(kernel, wanted)) or f"a block whose port is {want}",
                    reason=f"{where} wants {want}; this block has {got}",
                )  # fmt: skip


def _missing(kernel: Kernel, where: str, block: Block, wanted: Function) -> PortError:
    """The error where nobody provides what `block` wants: a block of the kernel stands where one of another kind of kernel would, or a block is missing."""
    fitting = _who_could(kernel, wanted)
    for key, other in kernel.blocks:
        if other is not block and other.KIND in {cls.KIND for cls in fitting}:
            return PortError(
                f"{block.label()} cannot use {other.label()}", key=key, value=other.NAME, allowed=_labels(fitting),
                reason=f"it calls {wanted.name}, which this block has not: it is made for another mainloop",
            )
    takes = f", with ({', '.join(map(str, wanted.inputs))})" if wanted.inputs else ""
    return PortError(
        f"{where} calls {wanted.name}, which no block provides", key=where, allowed=_labels(fitting) or "a block that provides it", reason=f"its device text calls it{takes}"
    )


def _misfit(wanted: Function, have: Function) -> tuple[str, str, str] | None:
    """(what is wrong, what is wanted, what is there), or None; a side that types nothing fits everything."""
    for side in ("inputs", "outputs"):
        wants, gots = getattr(wanted, side), getattr(have, side)
        if wants and gots and len(wants) != len(gots):
            return f"{len(gots)} {side} where {len(wants)} are wanted", ", ".join(map(str, wants)), ", ".join(map(str, gots))
        for want, got in zip(wants, gots):
            trouble = want.mismatch(got)
            if trouble:
                return f"port {got.name} has {trouble}", str(want), str(got)
    return None


def _labels(classes: list[type[Block]]) -> str:
    return ", ".join(cls.label() for cls in classes)


def _who_could(kernel: Kernel, wanted: Function) -> list[type[Block]]:
    """Blocks of the library that provide `wanted` as it is wanted."""
    from ..spec import registered

    found = []
    for cls in registered():
        try:
            block = cls()
            block.check(kernel.problem)
            functions = block.provides(kernel.problem)
        except Exception:  # a block that needs options, or cannot serve this problem, is no candidate
            continue
        for have in functions:
            if have.name == wanted.name and not _misfit(wanted, have):
                found.append(cls)
    return found
