"""Code generation: linking block text into one module per kernel and target."""

from .link import LICENCE, MARK, Entry, Generated, entries_of, generate

__all__ = ["LICENCE", "MARK", "Entry", "Generated", "entries_of", "generate"]
