"""Code generation: linking block text into one module per kernel and target."""

from .link import MARK, Entry, Generated, entries_of, generate

__all__ = ["MARK", "Entry", "Generated", "entries_of", "generate"]
