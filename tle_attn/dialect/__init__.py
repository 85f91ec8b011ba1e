"""The dialect's names, for editors and linters: block modules import them from here.

The operations run only in generated kernels; the linker copies block text, and each target's prelude
(`gluon/`, `tle.py`, `cpu.py` beside this file) says what a name means there.  `table.py` documents them.
"""

from __future__ import annotations

from typing import Any, Callable

from .table import DTYPES, OPS


def jit(function: Callable) -> Callable:
    """Marks device text: the linker copies the function's source."""
    function.__device_text__ = True
    return function


class _Name:
    """A name of the dialect outside of a generated kernel."""

    def __init__(self, name: str, doc: str):
        self.name, self.__doc__ = name, doc

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.name} is an operation of the kernel dialect; it runs only in generated kernels")

    def __repr__(self) -> str:
        return f"<dialect {self.name}>"


constexpr = Any
PENDING = _Name("PENDING", "barrier starts in use: wait for use n is wait for completion n")
READY = _Name("READY", "barrier starts free: wait for use 0 passes at once")
globals().update({op.name: _Name(op.name, op.meaning) for op in OPS})
globals().update({name: _Name(name, "element type") for name in DTYPES})

__all__ = ["jit", "constexpr", "PENDING", "READY", *(op.name for op in OPS), *DTYPES]


def __getattr__(name: str) -> Any:  # lets type checkers accept the generated names
    raise AttributeError(name)
