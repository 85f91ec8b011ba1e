"""Mainloop: the block whose slots hold all the others."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Iterator

from attrs import field, fields, frozen

from ..errors import SpecError
from .block import Block
from .problem import Problem


def slot(kind: str, *, many: bool = False, factory: Callable[[], Any] | None = None) -> Any:
    """An attrs field for a block of `kind`; with `many` a tuple of them, in order."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if many and not isinstance(value, tuple):
            raise SpecError(f"slot {attribute.name} wants a tuple of {kind} blocks", key=attribute.name, value=value)
        for block in value if many else (value,):
            if not isinstance(block, Block) or block.KIND != kind:
                got = block.label() if isinstance(block, Block) else repr(block)
                raise SpecError(f"slot {attribute.name} wants a {kind} block, not {got}", key=attribute.name, allowed=f"a block of components with KIND {kind!r}")
        for i, block in enumerate(value if many else ()):
            if block.NAME and any(block == other or type(block) is type(other) and not block.REPEATS for other in value[:i]):
                raise SpecError(f"slot {attribute.name} holds {block.label()} twice", key=attribute.name, value=block.NAME, reason="its functions and constants would be there twice")

    return field(factory=factory or tuple, validator=check, metadata={"slot": kind, "many": many})


@frozen(kw_only=True)
class Mainloop(Block):
    """A block with slots.  Slots are fields made by `slot(...)`; a recipe fills slot NAME from its table [NAME]."""

    PHASE: ClassVar[str] = ""
    #: {chain: parameters}: functions that blocks join through HOOKS; the second parameter is the value that goes through
    CHAINS: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = [name for name in cls.__annotations__ if name in vars(Mainloop) | vars(Block) and not name.isupper()]
        if taken:
            raise SpecError(
                f"{cls.__name__} has a field called {taken[0]}, which is a method of every mainloop", key=taken[0], reason="the field would silently replace the method",
            )

    def settled(self, problem: Problem) -> Mainloop:
        """The same mainloop with the options that were left open (None) decided for `problem` and for the other blocks."""
        return self

    def launch_note(self, problem: Problem, entry: str) -> str:
        """Grid, warps and registers of a kernel of the generated module, in words."""
        raise NotImplementedError

    @classmethod
    def slots(cls) -> dict[str, tuple[str, bool]]:
        """{slot name: (kind, holds many)}."""
        return {a.name: (a.metadata["slot"], a.metadata["many"]) for a in fields(cls) if "slot" in a.metadata}

    def parts(self) -> Iterator[tuple[str, Block]]:
        """(where, block) of every slot in order, the mainloop itself last; `where` is the recipe key."""
        for name, (_, many) in self.slots().items():
            value = getattr(self, name)
            if many:
                for i, block in enumerate(value):
                    yield f"{name}[{i}]", block
            else:
                yield name, value
        yield "mainloop", self
