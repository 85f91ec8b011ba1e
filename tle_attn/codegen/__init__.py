"""Code generation: linking block text into one module per kernel and target."""

from .link import MARK, Entry, Generated, generate

__all__ = ["MARK", "Entry", "Generated", "generate"]
