"""Broken kernel texts: what the tests of the protocol have in common."""

from pathlib import Path
from types import ModuleType

from tle_attn.runtime.executors import import_generated


def mutated(text: str, old: str, new: str) -> str:
    """The text with its one `old` replaced."""
    assert text.count(old) == 1, f"{text.count(old)} places for {old!r}: the kernel text has changed, so should the mutant"
    return text.replace(old, new)


def load_mutant(text: str, folder: Path) -> ModuleType:
    file = folder / "mutant.py"
    file.write_text(text)
    import_generated.cache_clear()
    return import_generated(file)
