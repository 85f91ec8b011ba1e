"""The manifest of an export: what it holds, for which machine, made by which versions, with digests of every file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cattrs
from attrs import asdict, field, frozen

from .. import __version__
from ..codegen import generate
from ..errors import ExportError
from ..spec.flat import ABSENT, flat_spec, spec_digest

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..spec import Kernel

MANIFEST = "manifest.json"
#: of the manifest and of what it says about launches
FORMAT = 1
ARCHITECTURE = "sm_90a"


@frozen
class Parameter:
    """One argument of a kernel as its machine code takes it.

    Attributes:
        name: the argument.
        kind: "pointer", "i32", "i64", "f32", or "tensor map": a TMA descriptor, followed by the extents (i32) and strides (i64) of its view.
        dtype: element type of a tensor map ("bf16", "fp8", ...).
        box: elements of one copy, outermost dimension first.
        swizzle: bytes of its shared-memory swizzle, as the driver's enumeration: 0 none, 1 32, 2 64, 3 128.
    """

    name: str
    kind: str
    dtype: str = ""
    box: tuple[int, ...] = ()
    swizzle: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of what it becomes in the kernel's parameter list."""
        rank = len(self.box)
        return {"pointer": (8,), "i32": (4,), "i64": (8,), "f32": (4,), "tensor map": (128, *[4] * rank, *[8] * rank)}[self.kind]


@frozen
class ExportedEntry:
    """A kernel's machine code and how it is launched.

    Attributes:
        name: its name in the module.
        cubin, sha256: file of the machine code, relative to the manifest, and its digest.
        num_warps: warps of a CTA as launched.
        shared_bytes: dynamic shared memory of a CTA.
        registers: per thread at launch.
        cluster: CTAs of a cluster.
        launch_pdl: launched with programmatic stream serialisation.
        parameters: its arguments, in order; two null pointers follow them.
    """

    name: str
    cubin: str
    sha256: str
    num_warps: int
    shared_bytes: int
    registers: int
    cluster: int
    launch_pdl: bool
    parameters: tuple[Parameter, ...]


@frozen
class ExportedModule:
    """The generated module of one kernel spec: its text, and the machine code of its entries.

    Attributes:
        spec: {dotted key: value} of everything that a recipe can say about it.
        module, sha256: file of the text, relative to the manifest, and its digest.
        entries: its kernels.
    """

    spec: dict[str, str]
    module: str
    sha256: str
    entries: tuple[ExportedEntry, ...]


@frozen(kw_only=True)
class Manifest:
    """Everything about an export.

    Attributes:
        recipe: name, summary, tables and axes of the recipe.
        tuned: {digest of a spec as the recipe has it: the tuned options that it was exported with}.
        modules: what was compiled.
        made_with: versions of the compiler and its kin; loading does not depend on them.
        tle_attn: version whose plans fit these kernels.
        licence: of the files.
    """

    recipe: dict[str, Any]
    tuned: dict[str, dict[str, Any]]
    modules: tuple[ExportedModule, ...]
    made_with: dict[str, str]
    licence: str
    tle_attn: str = __version__
    architecture: str = ARCHITECTURE
    format: int = FORMAT

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@frozen
class Export:
    """A folder of kernels compiled ahead of time.

    Attributes:
        folder: where it is.
        manifest: what is in it.
    """

    folder: Path
    manifest: Manifest = field(repr=False)

    def module_of(self, kernel: Kernel) -> ExportedModule:
        """The module whose text is what `kernel` means now.

        Raises:
            ExportError: the export has no such kernel, or has it from another text.
        """
        digest = sha256(generate(kernel, "gluon").text.encode())
        for module in self.manifest.modules:
            if module.sha256 == digest:
                return module
        wanted = flat_spec(kernel)

        def differences(module: ExportedModule) -> list[str]:
            keys = dict.fromkeys([*wanted, *module.spec])
            return [k for k in keys if wanted.get(k, ABSENT) != module.spec.get(k, ABSENT)]

        nearest = min(self.manifest.modules, key=lambda module: len(differences(module)))
        keys = differences(nearest)
        if not keys:
            raise ExportError(f"{self.folder}: {kernel.name} means another text now than when it was exported (its blocks have changed): export it again")
        told = "; ".join(f"{k} = {wanted.get(k, ABSENT)}, the nearest it holds has {nearest.spec.get(k, ABSENT)}" for k in keys)
        raise ExportError(f"{self.folder}: no kernel was exported for {told}. Nothing is compiled in its place: export what is to be served (tle-attn export --axis, --set)")

    def tuned_options(self, kernel: Kernel) -> dict[str, Any]:
        """The tuned options that `kernel` was exported with."""
        return self.manifest.tuned.get(spec_digest(kernel), {})

    def read(self, file: str, digest: str) -> bytes:
        """A file of the export, checked."""
        try:
            data = (self.folder / file).read_bytes()
        except OSError as error:
            raise ExportError(f"{self.folder / file}: {error.strerror}; the export is incomplete") from None
        if sha256(data) != digest:
            raise ExportError(f"{self.folder / file} is not the file that was exported: its digest differs from the manifest's")
        return data

    def recipe(self) -> Recipe:
        """The recipe, whose plans launch the kernels of this export."""
        from ..recipe import Recipe

        said = self.manifest.recipe
        axes = {key: tuple(values) for key, values in said["axes"].items()}
        return Recipe(name=said["name"], file=str(self.folder / MANIFEST), summary=said["summary"], tables=said["tables"], axes=axes, exported=self)


def read_export(folder: str | Path) -> Export:
    """The export in `folder`; its files are checked when they are used.

    Raises:
        ExportError: it is none, is damaged, or was made by another version of tle_attn.
    """
    folder = Path(folder)
    file = folder / MANIFEST
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise ExportError(f"{file}: {error.strerror}; {folder} is no export (tle-attn export makes one)") from None
    except ValueError as error:
        raise ExportError(f"{file} is no JSON: {error}") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise ExportError(f"{file}: format {found!r}; this version of tle_attn reads format {FORMAT}")
    if values.get("tle_attn") != __version__:
        raise ExportError(f"{file}: exported by tle_attn {values.get('tle_attn')}, but this is {__version__}, whose plans may pass other arguments: export it again")
    if values.get("architecture") != ARCHITECTURE:
        raise ExportError(f"{file}: code for {values.get('architecture')}; kernels of tle_attn run on {ARCHITECTURE}")
    try:
        return Export(folder, cattrs.structure(values, Manifest))
    except Exception as error:  # whatever cattrs makes of a file that somebody edited
        raise ExportError(f"{file} is no manifest: {error}") from None
