"""Compile generated Gluon modules for sm_90a and launch them. Importing this imports neither Triton nor PyTorch."""

from tle_attn.build.cache import compile_count
from tle_attn.build.compile import CompiledKernel, compile_module
from tle_attn.build.facts import Facts
from tle_attn.build.failure import BuildError, CompileError
from tle_attn.build.signature import Descriptor, descriptor
from tle_attn.build.toolchain import has_hopper, versions

__all__ = [
    "BuildError",
    "CompileError",
    "CompiledKernel",
    "Descriptor",
    "Facts",
    "compile_count",
    "compile_module",
    "descriptor",
    "has_hopper",
    "versions",
]
