"""Mainloop: the block whose slots hold all the others."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Iterator

from attrs import field, fields, frozen

from ..errors import PortError, SpecError
from .block import Block, registered
from .problem import Problem


def slot(kind: str, *, many: bool = False, factory: Callable[[], Any] | None = None, says: tuple[str, ...] = ()) -> Any:
    """An attrs field for a block of `kind`; with `many` a tuple of them, in order.

    says: attributes of the block, besides the functions that it provides, that the mainloop reads; a block of another mainloop may not have them.
    """

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if many and not isinstance(value, tuple):
            raise SpecError(f"slot {attribute.name} wants a tuple of {kind} blocks", key=attribute.name, value=value)
        for block in value if many else (value,):
            if not isinstance(block, Block) or block.KIND != kind:
                got = block.label() if isinstance(block, Block) else repr(block)
                raise SpecError(f"slot {attribute.name} wants a {kind} block, not {got}", key=attribute.name, allowed=f"a block of components with KIND {kind!r}")
            if missing := [name for name in says if not hasattr(block, name)]:
                fitting = [cls.label() for cls in registered(kind) if all(hasattr(cls, name) for name in says)]
                raise PortError(
                    f"{instance.label()} cannot use {block.label()}", key=attribute.name, value=block.NAME, allowed=", ".join(fitting) or "a block that says it",
                    reason=f"the mainloop goes by {', '.join(missing)}, of which this block says nothing: it is made for another mainloop",
                )
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

    def dependents(self) -> tuple[str, ...]:
        """Kernels of the module that are launched with programmatic dependent launch: each starts with `grid_wait` before it touches global memory."""
        return tuple(name for _, block in self.parts() for name in block.DEPENDENTS)

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
