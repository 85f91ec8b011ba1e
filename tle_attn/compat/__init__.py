"""Surfaces of other libraries: code written for them runs on these kernels by changing an import."""

from ..ops.emulation import emulate

__all__ = ["emulate"]
