"""Vector clocks: what a role knows to have happened, and the accesses that are checked against it.

A clock maps components to counts.  Components are
  one per role                 advanced at every release (arrive, TMA issue, atomic, cluster barrier)
  one per role's fetches       n = "the first n generic reads of shared memory by this role have their data"
  one per role's WGMMA stream  n = "the first n groups of this role have retired"
  one per role's TMA stores    n = "the first n stores of this role have read their buffers and are visible"
  one per mbarrier             n = "the transfers of the first n uses have landed"
Even components can concern global memory and travel between CTAs; odd ones concern shared memory only, so that a release at
GPU scope need not carry them.
"""

from tle_attn.emu.source import Place, at

Clock = dict[int, int]


def join(clock: Clock, other: Clock) -> None:
    """`clock` also knows what `other` knows."""
    for component, count in other.items():
        if clock.get(component, 0) < count:
            clock[component] = count


def across_ctas(clock: Clock) -> Clock:
    """The part of `clock` that a release at GPU scope publishes."""
    return {component: count for component, count in clock.items() if not component & 1}


class Access:
    """One access: known to be complete by whoever's clock has `component` at `stamp` or later."""

    __slots__ = ("component", "stamp", "who", "verb", "place", "atomic")

    def __init__(self, component: int, stamp: int, who: str, verb: str, place: Place, atomic: bool = False):
        self.component, self.stamp, self.who, self.verb, self.place, self.atomic = component, stamp, who, verb, place, atomic

    def known_to(self, clock: Clock) -> bool:
        return clock.get(self.component, 0) >= self.stamp

    def __str__(self) -> str:
        return f"{self.who}'s {self.verb}"

    @property
    def line(self) -> str:
        return at(self.place)
