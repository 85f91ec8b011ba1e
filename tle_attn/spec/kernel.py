"""Kernel: a resolved recipe for one point of its variant axes: a problem and a mainloop full of blocks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from attrs import field, frozen

from ..errors import LinkError, PortError, SpecError, written
from .block import Block
from .mainloop import Mainloop
from .problem import Problem
from .resources import Resources
from .types import Argument, Constant, Function

if TYPE_CHECKING:
    from ..exports import Export


@frozen(kw_only=True, slots=False)
class Kernel:
    """A complete, checked attention kernel spec.

    Making one runs the checks that need no compiler: each block against the problem, slots against ports, and shared memory, registers and
    barriers against an sm_90a multiprocessor.  A Kernel that exists can be generated.

    Attributes:
        name: dotted or slashed name, used in generated modules and reports.
        problem: what is computed.
        mainloop: how, with every block in its slot; options that were left open are settled for the problem.
        summary: one line for reports.
        file: the recipe it came from, for errors.
        exported: the export (`tle_attn.exports`) whose machine code runs it on target gluon; None: it is compiled.
    """

    name: str
    problem: Problem
    mainloop: Mainloop
    summary: str = ""
    file: str | None = field(default=None, eq=False)
    exported: Export | None = field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        from ..checks import check_kernel

        try:
            object.__setattr__(self, "mainloop", self.mainloop.settled(self.problem))
            check_kernel(self)
        except SpecError as error:
            raise error.located(file=self.file)

    @property
    def blocks(self) -> list[tuple[str, Block]]:
        """(recipe key, block), the mainloop last."""
        return list(self.mainloop.parts())

    @cached_property
    def constants(self) -> dict[str, Constant]:
        """Spec constants of all blocks; two blocks may share a name only with one value."""
        merged: dict[str, Constant] = {}
        owner: dict[str, str] = {}
        for where, block in self.blocks:
            for name, constant in block.constants(self.problem).items():
                if name in merged and merged[name].value != constant.value:
                    raise LinkError(f"constant {name} is {written(merged[name].value)} in {owner[name]} and {written(constant.value)} in {where}")
                merged.setdefault(name, constant)
                owner.setdefault(name, where)
        return merged

    @cached_property
    def arguments(self) -> dict[str, Argument]:
        """Arguments that blocks offer; the linker keeps those that reachable text uses."""
        merged: dict[str, Argument] = {}
        for where, block in self.blocks:
            for argument in block.arguments(self.problem):
                if argument.name in merged and merged[argument.name].type != argument.type:
                    raise LinkError(f"argument {argument.name} is {merged[argument.name].type} and, in {where}, {argument.type}")
                merged.setdefault(argument.name, argument)
        return merged

    @property
    def resources(self) -> Resources:
        return self.mainloop.resources(self.problem)

    @property
    def provided(self) -> dict[str, tuple[str, Function]]:
        """{function: (recipe key of the block that has it, its ports)}."""
        found: dict[str, tuple[str, Function]] = {}
        for where, block in self.blocks:
            for function in block.provides(self.problem):
                if function.name in found:
                    raise PortError(f"both {found[function.name][0]} and {where} provide {function.name}", key=where)
                found[function.name] = (where, function)
        return found
