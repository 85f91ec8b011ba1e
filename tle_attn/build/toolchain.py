"""The compiler that is installed, and whether this machine can run what it makes."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import platform

from tle_attn.build.failure import BuildError

#: what every kernel is compiled for
CAPABILITY = (9, 0)
OLDEST_TRITON = (3, 6)


def triton_version() -> str:
    """Version of the installed Triton, without importing it."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        import triton

        version = triton.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRITON:
        raise BuildError(f"Triton {version} is installed: Gluon kernels need {'.'.join(map(str, OLDEST_TRITON))} or newer")
    return version


@functools.cache
def tools() -> dict[str, str]:
    """Paths of Triton's ``nvdisasm`` and ``cuobjdump``."""
    from triton import knobs

    return {"nvdisasm": knobs.nvidia.nvdisasm.path, "cuobjdump": knobs.nvidia.cuobjdump.path}


def versions() -> dict[str, str]:
    """Versions that a measurement should name: Python, Triton, PyTorch, the assembler, and with a GPU its name, driver and CUDA."""
    found = {"python": platform.python_version()}
    for package in ("triton", "torch"):
        if importlib.util.find_spec(package):
            found[package] = importlib.import_module(package).__version__
    if "triton" in found:
        from triton.backends.nvidia.compiler import get_ptxas

        found["ptxas"] = get_ptxas(90).version
    if "torch" in found:
        import torch

        found["cuda"] = torch.version.cuda or "none"
        if torch.cuda.is_available():
            found["gpu"] = torch.cuda.get_device_name()
    return found


def has_hopper() -> bool:
    """Whether the current CUDA device is a Hopper (compute capability 9.0); does not import Triton."""
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() == CAPABILITY
