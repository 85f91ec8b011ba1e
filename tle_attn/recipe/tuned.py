"""Tuned files: options that were measured to be faster on one GPU, used only where they are asked for.

A file lies at ``tuned/<gpu>/<recipe>.toml``, beside the library's recipes or beside a recipe file of one's own, and holds a table
``[[tuned]]`` for each kernel that was tuned: what it was (the digest of its spec), on what it was measured, and what came out.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from .. import __version__
from ..errors import SpecError, TunedWarning, written
from ..spec.flat import spec_digest

if TYPE_CHECKING:
    from ..spec import Kernel
    from .recipe import Recipe

_HEAD = "# Written by tle-attn tune, from measurements; to change it, tune again.\n"


@frozen(kw_only=True)
class Tuned:
    """What tuning one kernel came to.

    Attributes:
        spec: digest of the kernel's spec before.
        point: its problem, for readers.
        options: {dotted key: value} that differ from the recipe's.
        us, us_before: {workload: microseconds} with these options, and without.
        gpu: where it was measured.
        date: when.
        versions: of tle_attn, Triton and the rest.
    """

    spec: str
    point: dict[str, Any]
    options: dict[str, Any]
    us: dict[str, float]
    us_before: dict[str, float]
    gpu: str
    date: str
    versions: dict[str, str] = field(factory=dict)

    def toml(self) -> str:
        lines = ["[[tuned]]", *(f"{key} = {written(getattr(self, key))}" for key in ("spec", "gpu", "date"))]
        for table in ("point", "options", "us", "us_before", "versions"):
            values = getattr(self, table)
            lines += ["", f"[tuned.{table}]", *(f"{written(key)} = {written(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"


def tuned_folder(recipe: Recipe) -> Path:
    """Where tuned files of a recipe are: ``tuned`` in the library, or beside the recipe's file."""
    from .recipe import library

    if recipe.file is None:
        raise SpecError(f"{recipe.name} was composed in Python", reason="tuned files lie beside recipe files")
    root = library()
    return (root if Path(recipe.file).is_relative_to(root) else Path(recipe.file).parent) / "tuned"


def tuned_file(recipe: Recipe, gpu: str) -> Path:
    """The file of a recipe for a GPU."""
    return tuned_folder(recipe) / re.sub(r"\W+", "_", gpu.lower()) / f"{recipe.name}.toml"


def read_tuned(file: Path) -> list[Tuned]:
    """What a tuned file holds.

    Raises:
        SpecError: it is no tuned file.
    """
    try:
        return [Tuned(**table) for table in tomllib.loads(file.read_text()).get("tuned", [])]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise SpecError(f"no tuned file: {error}", file=str(file), reason="tle-attn tune writes them") from None


def write_tuned(recipe: Recipe, results: list[Tuned]) -> Path:
    """Put results into their file, in the place of earlier ones of the same kernels."""
    file = tuned_file(recipe, results[0].gpu)
    kept = [t for t in read_tuned(file) if t.spec not in {r.spec for r in results}] if file.exists() else []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_HEAD + "".join("\n" + t.toml() for t in [*kept, *results]))
    return file


def tuned_options(recipe: Recipe, kernel: Kernel, gpu: str | None) -> dict[str, Any]:
    """Options that were tuned for `kernel` on `gpu` (None: there is none here); without any a TunedWarning says why, and nothing changes."""
    file = tuned_file(recipe, gpu) if gpu else None
    why = None
    if file is None or not file.exists():
        others = [str(f) for f in sorted(tuned_folder(recipe).glob(f"*/{recipe.name}.toml"))]
        here = f"this GPU is {gpu}" if gpu else "there is no GPU here"
        why = f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} for another GPU: {here}" if others else f"it was never tuned on {gpu or 'a GPU'}"
    else:
        found = [t for t in read_tuned(file) if t.spec == spec_digest(kernel)]
        if not found:
            why = f"{file} is for other specs: none of its digests is that of this kernel, {spec_digest(kernel)}"
        elif found[0].versions.get("tle_attn") != __version__:
            why = f"{file} was measured with tle_attn {found[0].versions.get('tle_attn')}, and this is {__version__}"
    if why:
        warnings.warn(f"{recipe.name}: no tuned options are used: {why}", TunedWarning, stacklevel=4)
        return {}
    return found[0].options


def this_gpu() -> str | None:
    """Name of the current GPU, None without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
