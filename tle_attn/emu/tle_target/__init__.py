"""The ``tle`` target without FlagTree: a static check of its calls, and their execution on the emulation.

Neither replaces FlagTree's compiler, which was not available; ``docs/targets.md`` says what that leaves open.
"""

from tle_attn.emu.tle_target.contract import check_contract
from tle_attn.emu.tle_target.errors import TLEContractError, TLENotEmulated, UnknownTLEName
from tle_attn.emu.tle_target.loader import load_tle_module

__all__ = ["TLEContractError", "TLENotEmulated", "UnknownTLEName", "check_contract", "load_tle_module"]
