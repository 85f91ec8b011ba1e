"""Code generation: linking block text into one module per kernel and target."""

from .header import GENERATED, LICENCE
from .link import MARK, Entry, Generated, calls_of, entries_of, generate

__all__ = ["GENERATED", "LICENCE", "MARK", "Entry", "Generated", "calls_of", "entries_of", "generate"]
