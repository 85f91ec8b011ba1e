"""Exports: kernels compiled ahead of time, in a folder from which they are loaded with the CUDA driver alone.

`export` needs Triton and no GPU; what it writes needs a GPU and no Triton.  `tle_attn.load(FOLDER)` gives the recipe back, and the kernels
that its plans launch are those of the folder: nothing is compiled, and what the folder does not hold is refused.
"""

from __future__ import annotations

from .executor import ExportedExecutor
from .manifest import MANIFEST, Export, read_export
from .write import export

__all__ = ["MANIFEST", "Export", "ExportedExecutor", "export", "read_export"]
