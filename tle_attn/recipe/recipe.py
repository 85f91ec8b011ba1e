"""Recipe: a TOML file that names blocks and their options, with `extends` and variant axes."""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

from attrs import evolve, field, frozen

from ..errors import SpecError, written
from ..spec import Kernel
from .structure import default_block, structure_kernel

if TYPE_CHECKING:
    from ..exports import Export

#: keys of a recipe file that are not tables of blocks
HEADER = ("summary", "extends", "axes")


@frozen(kw_only=True)
class Recipe:
    """A kernel family.

    Attributes:
        name: "hy3/decode_bf16" for a library recipe, the file's stem otherwise.
        file: where it was read.
        summary: one line.
        parents: names of the recipes it extends, nearest first.
        tables: the merged tables, as in TOML.
        axes: variant axes, {dotted key: values}; the first value of each is the default point.
        settings: options set since it was read, {dotted key: value}.
        exported: the export that it was loaded from, or None.
        tuned: use options that were tuned: True on this machine's GPU, or on the GPU of this name.
    """

    name: str
    file: str | None = field(default=None, eq=False)
    summary: str = ""
    parents: tuple[str, ...] = ()
    tables: dict[str, Any] = field(factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(factory=dict)
    settings: dict[str, Any] = field(factory=dict, eq=False)
    exported: Export | None = field(default=None, eq=False, repr=False)
    tuned: bool | str = field(default=False, eq=False, repr=False)

    @property
    def origin(self) -> str | None:
        """Where its options come from, for errors: the file, and what was set since."""
        if not self.settings:
            return self.file
        return f"{self.file or self.name} with {', '.join(f'{key} = {written(value)}' for key, value in self.settings.items())}"

    def set(self, options: dict[str, Any]) -> Recipe:
        """The recipe with options replaced: {"ring.stages": 4, "score[0].cap": 30.0}.  An axis that is set is an axis no more.

        A slot that is given another block starts afresh, as in a recipe file: it keeps no option of the block before.
        """
        tables, afresh = copy.deepcopy(self.tables), set()
        for key in sorted(options, key=lambda key: not key.endswith(".block")):
            if _assign(tables, key, options[key], self.file):
                afresh.add(key.rpartition(".")[0])
        axes = {k: v for k, v in _outside(afresh, self.axes).items() if k not in options}
        return evolve(self, tables=tables, axes=axes, settings={**_outside(afresh, self.settings), **options})

    def points(self) -> Iterator[dict[str, Any]]:
        """Every point of the variant axes, the default first."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values))

    def kernel(self, point: dict[str, Any] | None = None, **problem: Any) -> Kernel:
        """The checked kernel of a point (default: the first value of every axis); keyword arguments set keys of [problem]."""
        options = dict(point or {}) | {f"problem.{k}": v for k, v in problem.items()}
        recipe = self.set({k: v[0] for k, v in self.axes.items()} | options)
        origin = evolve(self, settings={**self.settings, **options}).origin
        try:
            spec, mainloop = structure_kernel(recipe.tables)
        except SpecError as error:
            raise error.located(file=origin)
        kernel = Kernel(name=self.name, problem=spec, mainloop=mainloop, summary=self.summary, file=origin, exported=self.exported)
        options = self.tuned_options(kernel)
        return evolve(self, tuned=False).set(options).kernel(point, **problem) if options else kernel

    def tuned_options(self, kernel: Kernel) -> dict[str, Any]:
        """Tuned options for `kernel`, which this recipe made without them: those of the GPU that was asked for, or those that were exported."""
        if self.exported is not None:
            return self.exported.tuned_options(kernel)
        if not self.tuned:
            return {}
        from .tuned import this_gpu, tuned_options

        return tuned_options(self, kernel, self.tuned if isinstance(self.tuned, str) else this_gpu())

    def plan(self, **kwargs: Any) -> Any:
        """See `tle_attn.plan`."""
        from ..runtime import plan

        return plan(self, **kwargs)


_KEY = re.compile(r"^([A-Za-z_]\w*)(?:\[(\d+)\])?$")


def _assign(tables: dict[str, Any], key: str, value: Any, file: str | None) -> bool:
    """tables["a"]["b"] = value for the key a.b; a[0].b reaches into an array of tables.  Whether a slot was given another block, and its other options dropped."""
    parts = key.split(".")
    matches = [_KEY.match(p) for p in parts]
    if len(parts) < 2 or not all(matches):
        raise SpecError(f"{key!r} is no option", key=key, value=value, allowed="SLOT.OPTION, or SLOT[INDEX].OPTION where a slot holds several blocks")
    node: Any = tables
    for match in matches[:-1]:
        name, index = match.groups()
        if index is None:
            node = node.setdefault(name, {})
        else:
            found = node.get(name)
            if not isinstance(found, list) or int(index) >= len(found):
                raise SpecError(f"the recipe has no {name}[{index}]", key=key, allowed=f"{len(found) if isinstance(found, list) else 0} block(s) in {name}", file=file)
            node = found[int(index)]
        if not isinstance(node, dict):
            many = f"{name}[0].{parts[-1]}: {name} holds several blocks" if isinstance(node, list) else "a table"
            raise SpecError(f"{name} is not a table", key=key, allowed=many, file=file)
    another = parts[-1] == "block" and _other_block(tables, parts[0], node, value)
    if another:
        node.clear()
    node[parts[-1]] = value
    return another


def _other_block(tables: dict[str, Any], slot: str, table: dict[str, Any], name: Any) -> bool:
    """Whether `name` is another block than the one that this table of the slot is for: the one it names, or the slot's default."""
    return bool(name != table.get("block", default_block(tables, slot)))


def _outside(slots: set[str], options: dict[str, Any]) -> dict[str, Any]:
    """Those of {dotted key: value} whose slot is none of these."""
    return {key: value for key, value in options.items() if key.rpartition(".")[0] not in slots}


def library() -> Path:
    """Folder of the recipes that come with tle_attn."""
    import tle_attn.recipes

    return Path(next(iter(tle_attn.recipes.__path__)))


def list_recipes() -> list[str]:
    """Names of the library's recipes."""
    root = library()
    return sorted(str(f.relative_to(root).with_suffix("")) for f in root.rglob("*.toml") if f.relative_to(root).parts[0] != "tuned")


def find(name: str | Path) -> Path:
    """File of a recipe: a library name ("hy3/decode_bf16") or a path to a .toml file."""
    path = Path(name)
    if path.suffix == ".toml":
        if path.is_file():
            return path
        raise SpecError(f"there is no recipe file {path}")
    file = library() / f"{name}.toml"
    if not file.is_file():
        raise SpecError(f"no recipe is called {str(name)!r}", allowed=list_recipes(), reason="a library name, or the path of a .toml file")
    return file


def load(name: str | Path, *, tuned: bool | str = False) -> Recipe:
    """Read a recipe and what it extends, or take it from a folder that `tle_attn.export` wrote.

    Args:
        name: of the library, a .toml file, or an export's folder.
        tuned: use options that `tle-attn tune` has found, where it has: for this machine's GPU (True) or the GPU of this name ("NVIDIA H200").
            What there is for another spec, version or GPU is named in a TunedWarning and not used.

    Raises:
        SpecError: the file, the key, the value, what is allowed and why.
        ExportError: the folder is no export, or one of another version.
    """
    if Path(name).is_dir():
        from ..exports import read_export

        if tuned:
            raise SpecError(f"{name} is an export", key="tuned", value=tuned, reason="its options were fixed when it was exported: export with them")
        return read_export(name).recipe()
    return evolve(_read(find(name), ()), tuned=tuned)


def _read(file: Path, seen: tuple[Path, ...]) -> Recipe:
    if file.resolve() in seen:
        raise SpecError("the recipe extends itself", key="extends", file=str(file), reason=" -> ".join(p.stem for p in (*seen, file)))
    try:
        data = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"not valid TOML: {error}", file=str(file)) from None
    root = library()
    name = str(file.relative_to(root).with_suffix("")) if file.is_relative_to(root) else file.stem
    header = {k: data.pop(k) for k in HEADER if k in data}
    if not isinstance(header.get("summary", ""), str):
        raise SpecError("summary is one line of text", key="summary", value=header["summary"], allowed="a string", file=str(file))
    for key, value in data.items():
        if not isinstance(value, (dict, list)):
            raise SpecError(f"{key} is no table", key=key, value=value, allowed=["summary", "extends", "[axes]", "[problem]", "[mainloop]", "one table per slot"], file=str(file))
    parent = None
    if "extends" in header:
        wanted = header["extends"]
        if not isinstance(wanted, str):
            raise SpecError("extends names one recipe", key="extends", value=wanted, file=str(file))
        base = file.parent / wanted
        try:
            parent = _read(base if base.suffix == ".toml" and base.is_file() else find(wanted), (*seen, file.resolve()))
        except SpecError as error:
            raise error.located(file=str(file), prefix=None if error.file else "extends")
    tables, afresh = _merge(parent.tables if parent else {}, data)
    fixed = {f"{t}.{k}" for t, table in data.items() if isinstance(table, dict) for k in table}
    axes = {k: v for k, v in _outside(afresh, parent.axes if parent else {}).items() if k not in fixed} | _axes(header.get("axes", {}), str(file))
    parents = (parent.name, *parent.parents) if parent else ()
    return Recipe(name=name, file=str(file), summary=header.get("summary", ""), parents=parents, tables=tables, axes=axes)


def _axes(table: Any, file: str) -> dict[str, tuple[Any, ...]]:
    if not isinstance(table, dict):
        raise SpecError("axes must be a table", key="axes", value=table, file=file)
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise SpecError(f"axis {key} needs a list of values", key=f"axes.{key}", value=values, allowed='"problem.page" = [64, 16]', file=file)
        if "." not in key:
            raise SpecError(f"axis {key!r} is no option", key=f"axes.{key}", allowed='a quoted dotted key, "SLOT.OPTION"', file=file)
    return {k: tuple(v) for k, v in table.items()}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Child tables over the parent's, key by key, and the slots that start afresh: those that name another block; arrays of tables are replaced."""
    merged, afresh = copy.deepcopy(base), set()
    for key, value in over.items():
        mine = merged.get(key, {})
        if isinstance(value, dict) and isinstance(mine, dict) and "block" in value and _other_block(base, key, mine, value["block"]):
            afresh.add(key)
        merged[key] = {**mine, **value} if isinstance(value, dict) and isinstance(mine, dict) and key not in afresh else copy.deepcopy(value)
    return merged, afresh
