"""What the emulation reports.  Every report names the place in the kernel text, the object, and the rule that was broken."""

from tle_attn.errors import TleAttnError


class EmulationError(TleAttnError):
    """A kernel did something that the device does not allow, or that has no defined result there."""


class Race(EmulationError):
    """Two accesses to the same bytes, one of them a write, that no barrier or atomic orders."""


class Deadlock(EmulationError):
    """No role can go on: the report lists who waits for what."""


class BarrierMisuse(EmulationError):
    """A barrier is used against its counts, its bytes, its phase or its kind."""


class UseBeforeWait(EmulationError):
    """The result of an asynchronous WGMMA is used (or its role ends) before `wgmma_wait`."""


class Unwritten(EmulationError):
    """A read of shared memory or of a workspace that nothing has written."""


class MissingProxyFence(EmulationError):
    """The async proxy (TMA, WGMMA) touches bytes that were stored through the generic proxy and not fenced."""


class UnsettledRead(EmulationError):
    """TMA overwrites bytes that a generic read of shared memory may still be fetching: an arrival does not wait for such reads."""


class OutOfBounds(EmulationError):
    """An index outside of a tensor, ring or list, or an integer that does not fit its device type."""
