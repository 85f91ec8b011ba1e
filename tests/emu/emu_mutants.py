"""Breaking a kernel text in one place, and what the emulation says to it in several schedules."""

from collections.abc import Callable

from tle_attn.emu import MARK, EmulationError


def mutate(source: str, old: str, new: str, occurrence: int = 0) -> str:
    """`source` with one occurrence of `old` below the mark replaced."""
    position = source.index(MARK)
    for _ in range(occurrence + 1):
        position = source.index(old, position) + 1
    return source[: position - 1] + new + source[position - 1 + len(old) :]


def verdicts(run: Callable[[int], bool], schedules: int) -> dict[str, str]:
    """Kind of report -> first message over seeds; `run` returns whether the numbers were right."""
    found: dict[str, str] = {}
    for seed in range(schedules):
        try:
            kind, message = ("missed" if run(seed) else "wrong numbers"), f"seed {seed}"
        except EmulationError as error:
            kind, message = type(error).__name__, str(error)
        found.setdefault(kind, message)
    return found
