"""Writing an export: every kernel of a recipe compiled ahead of time, in several processes; needs Triton and no GPU."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ..build import BuildError, CompiledKernel, Descriptor, versions
from ..codegen import LICENCE, entries_of, generate
from ..errors import ExportError
from ..recipe import Recipe, load
from ..runtime.executors import compile_kernel
from ..spec.flat import flat_spec, spec_digest
from .manifest import MANIFEST, ExportedEntry, ExportedModule, Manifest, Parameter, read_export, sha256

if TYPE_CHECKING:
    from ..spec import Kernel

_KINDS = {"i32": "i32", "i64": "i64", "fp32": "f32"}
#: bytes of a parameter that PTX declares without a count
_PTX_BYTES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}
_PTX_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,\[]*(?:\[(\d+)\])?")


def export(
    recipe: Recipe | str, out: str | Path, *, axes: Mapping[str, Iterable[Any]] | None = None, jobs: int = 1, tell: Callable[[int, int, str], None] = lambda done, total, what: None
) -> Path:
    """Compile every kernel of a recipe for sm_90a into a folder that `tle_attn.load` takes in the recipe's place.

    Args:
        recipe: a recipe or its name.
        out: the folder; an export of the same recipe that is there already is replaced, other folders with files in them are refused.
        axes: {dotted key: values} to compile for, in place of the recipe's variant axes of these keys and beside the others.
        jobs: processes that compile.
        tell: told of progress.

    Returns:
        The manifest's path.

    Raises:
        SpecError: a point of the axes is no kernel.
        CompileError: the compiler refuses one.
        ExportError: the folder is not an export's, or another recipe's.
    """
    recipe = load(recipe) if isinstance(recipe, str) else recipe
    recipe = evolve(recipe, axes={**recipe.axes, **{key: tuple(values) for key, values in (axes or {}).items()}})
    folder = Path(out)
    earlier = _files_of_earlier(folder, recipe.name)
    kernels, tuned = [], {}
    for point in recipe.points():
        plain = evolve(recipe, tuned=False).kernel(point)
        options = recipe.tuned_options(plain)
        if options:
            tuned[spec_digest(plain)] = options
        kernels.append(evolve(recipe, tuned=False).set(options).kernel(point) if options else plain)
    work = [(kernel, entry.name) for kernel in kernels for entry in entries_of(kernel)]
    _fill_cache(work, jobs, tell)
    folder.mkdir(parents=True, exist_ok=True)
    modules = tuple(_write_module(kernel, folder) for kernel in kernels)
    said = {"name": recipe.name, "summary": recipe.summary, "tables": recipe.tables, "axes": {key: list(values) for key, values in recipe.axes.items()}}
    made_with = {what: version for what, version in versions().items() if what not in ("gpu", "cuda")}
    manifest = Manifest(recipe=said, tuned=tuned, modules=modules, made_with=made_with, licence=LICENCE)
    for name in earlier - _files_of(manifest):
        (folder / name).unlink(missing_ok=True)
    # last and whole: a folder whose writing was interrupted is no export
    temporary = folder / f"{MANIFEST}.part"
    temporary.write_text(manifest.to_json())
    os.replace(temporary, folder / MANIFEST)
    return folder / MANIFEST


def _files_of(manifest: Manifest) -> set[str]:
    return {m.module for m in manifest.modules} | {e.cubin for m in manifest.modules for e in m.entries}


def _files_of_earlier(folder: Path, name: str) -> set[str]:
    """Files of the export of recipe `name` that is in the folder already, which must hold nothing else than one."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return set()
    if not (folder / MANIFEST).is_file():
        raise ExportError(f"{folder} is there already and is no export: give a new or an empty folder")
    try:
        manifest = read_export(folder).manifest
    except ExportError:  # of another version, or damaged: its files have other names, and stay
        return set()
    if manifest.recipe["name"] != name:
        raise ExportError(f"{folder} holds the export of {manifest.recipe['name']}: give a folder of its own to {name}, or remove this one")
    return _files_of(manifest)


def _fill_cache(work: list[tuple[Kernel, str]], jobs: int, tell: Callable[[int, int, str], None]) -> None:
    """Compile into the cache, where this process finds everything afterwards."""
    if jobs == 1:
        for done, (kernel, entry) in enumerate(work, 1):
            compile_kernel(kernel, entry)
            tell(done, len(work), f"{kernel.name} {entry}")
        return
    # spawned, not forked: a forked child would inherit the locks of torch's threads
    with ProcessPoolExecutor(min(jobs, len(work)), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_compile, kernel, entry): f"{kernel.name} {entry}" for kernel, entry in work}
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            tell(done, len(work), futures[future])


def _compile(kernel: Kernel, entry: str) -> None:
    compile_kernel(kernel, entry)


def _write_module(kernel: Kernel, folder: Path) -> ExportedModule:
    generated = generate(kernel, "gluon")
    entries = []
    for entry in generated.entries:
        compiled = compile_kernel(kernel, entry.name)
        cubin = compiled.asm["cubin"]
        name = f"{generated.module_name}.{entry.name}.cubin"
        (folder / name).write_bytes(cubin)
        entries.append(
            ExportedEntry(
                name=entry.name, cubin=name, sha256=sha256(cubin), num_warps=compiled.num_warps, shared_bytes=compiled.shared_bytes, registers=compiled.facts.registers,
                cluster=compiled.cluster, launch_pdl=bool(compiled.metadata.launch_pdl), parameters=parameters_of(compiled),
            )
        )  # fmt: skip
    text = generated.text.encode()
    module = f"{generated.module_name}.py"
    (folder / module).write_bytes(text)
    return ExportedModule(spec=flat_spec(kernel), module=module, sha256=sha256(text), entries=tuple(entries))


def parameters_of(compiled: CompiledKernel) -> tuple[Parameter, ...]:
    """The arguments of a kernel as its machine code takes them, compared with what its PTX declares.

    Raises:
        BuildError: the compiler passes something in another way than this knows.
    """
    boxes = iter(compiled.metadata.tensordesc_meta)
    found = []
    for name, kind in compiled.signature.items():
        if isinstance(kind, Descriptor):
            box = next(boxes)
            found.append(Parameter(name, "tensor map", kind.dtype, tuple(box["block_size"]), box["swizzle"]))
        else:
            found.append(Parameter(name, "pointer" if kind.startswith("*") else _KINDS[kind.removesuffix(":16")]))
    wanted = [size for parameter in found for size in parameter.sizes] + [8, 8]
    declared = re.search(rf"\.entry\s+{compiled.name}\((.*?)\)", compiled.asm["ptx"], re.DOTALL)[1]
    sizes = [_PTX_BYTES[kind] * int(count or 1) for kind, count in _PTX_PARAMETER.findall(declared)]
    if sizes != wanted:
        raise BuildError(f"{compiled.name} takes parameters of {sizes} bytes, where an export would pass {wanted}: this Triton passes arguments in another way")
    m = compiled.metadata
    if m.global_scratch_size or m.profile_scratch_size or m.launch_cooperative_grid:
        raise BuildError(f"{compiled.name} needs scratch memory or a cooperative launch, which an export does not provide")
    return tuple(found)
