"""Checks that need no compiler: blocks against the problem, ports, resources; and the barrier protocol, explored in emulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import PortError, SpecError
from .ports import check_ports
from .protocol import ProtocolReport, check_protocol, explore
from .resources import check_resources

if TYPE_CHECKING:
    from ..spec import Kernel


def check_kernel(kernel: Kernel) -> None:
    """Every static rule that a composed kernel must keep; raises a SpecError that names the recipe key."""
    for where, block in kernel.blocks:
        try:
            block.check(kernel.problem)
        except SpecError as error:
            # a mainloop may speak of its slots, and any block of the problem: those have tables of their own in a recipe
            table = (error.key or "").split(".")[0]
            elsewhere = table == "problem" or (block is kernel.mainloop and table in kernel.mainloop.slots())
            raise error.located(prefix=None if elsewhere else where)
    for where, block in kernel.blocks:
        # a block that provides functions too may be used for those alone
        for chain in block.HOOKS if not block.provides(kernel.problem) else ():
            if chain not in kernel.mainloop.CHAINS:
                raise PortError(
                    f"{block.label()} joins the chain {chain}, which the mainloop {kernel.mainloop.NAME} has not", key=where, value=block.NAME,
                    allowed=f"blocks that join {', '.join(kernel.mainloop.CHAINS) or 'nothing'}", reason="its device function would never be called",
                )
    check_ports(kernel)
    check_resources(kernel)


__all__ = ["ProtocolReport", "check_kernel", "check_ports", "check_protocol", "check_resources", "explore"]
