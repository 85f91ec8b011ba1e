"""Block: a frozen attrs spec plus its device text plus its semantic definition, and the library's registry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from attrs import fields, frozen

from ..errors import SpecError
from .problem import Problem
from .resources import Resources
from .types import Argument, Constant, Function

_REGISTRY: dict[tuple[str, str], type[Block]] = {}


@frozen(kw_only=True)
class Block:
    """Base of every block.

    A subclass lives in its own module under ``components/<kind>/``.  That module holds the spec (the attrs class), the device text
    (functions marked ``@jit``, written in the dialect) and, as ``reference``, the semantic definition in torch.  A register-layout
    microkernel has its device text in ``<name>.<target>.py`` beside the module instead.

    Class attributes:
        KIND, NAME: where a recipe finds it: ``block = NAME`` in a table for KIND.
        HOOKS: {chain: device function}: chains that this block's functions join, in recipe order.
        ENTRIES: device functions of this block that are kernels.
        DEPENDENTS: those of them that are launched with programmatic dependent launch: they may start while the kernel before them runs, and wait for its end.
        REPEATS: a slot may hold several that differ in their options.
        RAW: {symbol of a TLE-Raw device function: the function of the cpu microkernel that defines it}.

    A field with ``metadata={"tune": (values)}`` changes how fast a kernel is and not what it computes; ``tle-attn tune`` tries these values.
    """

    KIND: ClassVar[str] = ""
    NAME: ClassVar[str] = ""
    HOOKS: ClassVar[dict[str, str]] = {}
    ENTRIES: ClassVar[tuple[str, ...]] = ()
    DEPENDENTS: ClassVar[tuple[str, ...]] = ()
    REPEATS: ClassVar[bool] = False
    RAW: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("NAME"):
            _REGISTRY[cls.KIND, cls.NAME] = cls  # attrs makes a second class with slots: the later one wins

    # ---- what a block says about itself; the defaults mean "nothing"
    def check(self, problem: Problem) -> None:
        """Raise SpecError where this block cannot serve `problem`."""

    def constants(self, problem: Problem) -> dict[str, Constant]:
        """Names that the device text uses for spec values."""
        return {}

    def arguments(self, problem: Problem) -> tuple[Argument, ...]:
        """Kernel arguments that the device text may use."""
        return ()

    def provides(self, problem: Problem) -> tuple[Function, ...]:
        """Device functions that other blocks may call, with typed ports."""
        return ()

    def requires(self, problem: Problem) -> tuple[Function, ...]:
        """Device functions of other blocks that the text calls, with typed ports."""
        return ()

    def resources(self, problem: Problem) -> Resources:
        return Resources()

    def first_key(self, problem: Problem, kv_len: int) -> int:
        """First key that any query of a decode request can see under this block, as its link of the chain `first_key` says on the device."""
        return 0

    def example_arguments(self, case: Any, generator: Any) -> dict[str, Any]:
        """Random tensors for the arguments that this block wants of a user, fit for the problem `case` (`tle_attn.testing.PagedProblem`), from a torch generator."""
        return {}

    def oracle_options(self, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options under which `tle_attn.oracle.attention` computes what this block makes of attention; a block that joins a chain must say it.

        `given`: what a run is given by name; empty where only the spec is asked about.  `score_steps` and `mask_steps` of several blocks follow one another.
        """
        if self.HOOKS:
            raise SpecError(
                f"the oracle does not know what {self.label()} means", key=None, value=self.NAME,
                reason="a block that joins a chain needs the method oracle_options, or its kernels are checked against the wrong answer",
            )
        return {}

    def weight_unit(self, problem: Problem) -> float:
        """Spacing of the smallest weights that this block hands to the product with V; 0 where weights are rounded relative to the largest one of their row."""
        return 0.0

    # ---- source
    def device_text(self) -> tuple[str, str]:
        """(text with its device functions, where it was written): its module, unless the block writes its text from its options."""
        file = self.source_file()
        return file.read_text(), str(file)

    @classmethod
    def source_file(cls) -> Path:
        return Path(inspect.getfile(cls))

    @classmethod
    def title(cls) -> str:
        """First line of the module's docstring."""
        return (inspect.getmodule(cls).__doc__ or cls.__doc__ or cls.NAME).strip().splitlines()[0]

    @classmethod
    def label(cls) -> str:
        return f"{cls.KIND}/{cls.NAME}"

    def options(self) -> dict[str, Any]:
        """Its scalar options (not the blocks in its slots)."""
        return {a.name: getattr(self, a.name) for a in fields(type(self)) if "slot" not in a.metadata}


def load_library() -> None:
    """Import every block of the library, so that recipes find them by name."""
    import importlib
    import pkgutil

    import tle_attn.components as library

    for module in pkgutil.walk_packages(library.__path__, library.__name__ + "."):
        if module.name.count(".") == 3:  # not the microkernels, NAME.TARGET.py
            importlib.import_module(module.name)


def import_blocks(file: Path) -> None:
    """Import a Python file with blocks of a user's own, so that recipes find them by name; a second call does nothing.

    Raises:
        SpecError: there is no such file, or it cannot be imported.
    """
    import hashlib
    import importlib.util
    import sys

    path = file.resolve()
    name = f"tle_attn_blocks_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    if path.suffix != ".py" or not path.is_file():
        raise SpecError(f"there is no Python file {file}", allowed="a .py file that defines blocks")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module  # a class finds its source through it
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except Exception as error:
        del sys.modules[name]
        raise SpecError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error


def find_block(kind: str, name: str) -> type[Block]:
    """The block class that a recipe calls `name` where a `kind` is wanted."""
    load_library()
    try:
        return _REGISTRY[kind, name]
    except KeyError:
        allowed = sorted(n for k, n in _REGISTRY if k == kind)
        raise SpecError(f"no {kind} block is called {name!r}", key="block", value=name, allowed=allowed, reason="blocks of the library, and those whose modules were imported") from None


def registered(kind: str | None = None) -> list[type[Block]]:
    """Every block class of the library, by kind and name."""
    load_library()
    return [c for (k, _), c in sorted(_REGISTRY.items()) if kind in (None, k)]
