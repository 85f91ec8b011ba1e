"""Specs: blocks, ports, resources, problems and kernels as frozen attrs classes."""

from .block import Block, find_block, import_blocks, load_library, registered
from .kernel import Kernel
from .mainloop import Mainloop, slot
from .problem import Problem
from .resources import MBarriers, NamedBarriers, Resources, Role, SharedBuffer
from .types import Argument, BoxDescriptor, Constant, DType, Function, Place, Port

__all__ = [
    "Argument", "Block", "BoxDescriptor", "Constant", "DType", "Function", "Kernel", "MBarriers", "Mainloop", "NamedBarriers", "Place", "Port", "Problem",
    "Resources", "Role", "SharedBuffer", "find_block", "import_blocks", "load_library", "registered", "slot",
]
