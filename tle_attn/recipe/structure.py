"""Structuring: TOML tables into specs, with errors that name the key, the value and what is allowed."""

from __future__ import annotations

import difflib
from typing import Any

import cattrs
from attrs import fields_dict, resolve_types

from ..errors import SpecError, written
from ..spec import Block, DType, Mainloop, Problem, find_block, registered


def _strict(kind: type, words: str, also: tuple[type, ...] = ()) -> Any:
    def hook(value: Any, _: Any) -> Any:
        if isinstance(value, bool) and kind is not bool or not isinstance(value, (kind, *also)):
            quoted = f": {written(str(value))}, with its quotes" if kind is str and type(value) in (int, float) else ""
            raise SpecError(f"{written(value)} is not {words}", value=value, allowed=words + quoted)
        return kind(value)

    return hook


def _dtype(value: Any, _: Any) -> DType:
    try:
        return DType(value)
    except ValueError:
        raise SpecError(f"no element type is called {written(value)}", value=value, allowed=[d.value for d in DType]) from None


_converter = cattrs.Converter(detailed_validation=False)
_converter.register_structure_hook(int, _strict(int, "an integer"))
_converter.register_structure_hook(float, _strict(float, "a number", (int,)))
_converter.register_structure_hook(bool, _strict(bool, "true or false"))
_converter.register_structure_hook(str, _strict(str, "a string"))
_converter.register_structure_hook(DType, _dtype)


def structure_options(cls: type, table: dict[str, Any], key: str, *, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Constructor arguments of `cls` from a table; unknown keys and wrong types are errors."""
    resolve_types(cls)
    known = {n: a for n, a in fields_dict(cls).items() if "slot" not in a.metadata and "testing" not in a.metadata}
    options = {}
    for name, value in table.items():
        if name in skip:
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise SpecError(
                f"{getattr(cls, 'NAME', '') or cls.__name__} has no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""), key=f"{key}.{name}", value=value,
                allowed=sorted(known) or "no options", reason="an option that the kernel would not use is an error",
            )
        try:
            options[name] = _converter.structure(value, known[name].type)
        except SpecError as error:
            raise error.located(prefix=f"{key}.{name}")
    return options


def make(cls: type, options: dict[str, Any], key: str) -> Any:
    """Construct a spec; its validators' errors get the key's prefix, a missing option is named."""
    missing = [n for n, a in fields_dict(cls).items() if a.default is _nothing() and n not in options]
    if missing:
        raise SpecError(f"{getattr(cls, 'NAME', '') or cls.__name__} needs the option {missing[0]!r}", key=f"{key}.{missing[0]}", reason=(cls.__doc__ or "").strip().splitlines()[0])
    try:
        return cls(**options)
    except SpecError as error:
        raise error.located(prefix=key)


def _nothing() -> Any:
    from attrs import NOTHING

    return NOTHING


def structure_block(kind: str, table: Any, key: str, default: type[Block] | None) -> Block:
    """A block from its table; `block` names it, or the slot's default is meant."""
    if not isinstance(table, dict):
        raise SpecError(f"{key} must be a table", key=key, value=table, allowed=f'[{key}] with block = "..." and options')
    name = table.get("block")
    if name is None and default is None:
        raise SpecError(f"{key} does not say which block it is", key=f"{key}.block", allowed=_names(kind))
    try:
        cls = find_block(kind, name) if name is not None else default
    except SpecError as error:
        raise error.located(prefix=key)
    return make(cls, structure_options(cls, table, key, skip=("block",)), key)


def _names(kind: str) -> list[str]:
    from ..spec import registered

    return [c.NAME for c in registered(kind)]


def default_block(tables: dict[str, Any], slot: str) -> str | None:
    """Name of the block that a slot has if its table names none; None where the mainloop is not known, or has no such slot, or one without a default."""
    head = tables.get("mainloop")
    cls = next((c for c in registered("mainloop") if isinstance(head, dict) and c.NAME == head.get("block")), None)
    if cls is None or slot not in cls.slots() or cls.slots()[slot][1]:
        return None
    factory = getattr(fields_dict(cls)[slot].default, "factory", None)
    return getattr(factory, "NAME", None)


def structure_kernel(tables: dict[str, Any]) -> tuple[Problem, Mainloop]:
    """Problem and mainloop of a recipe's merged tables."""
    head = tables.get("mainloop", {})
    if not isinstance(head, dict) or "block" not in head:
        raise SpecError("the recipe does not name its mainloop", key="mainloop.block", allowed=_names("mainloop"))
    try:
        cls = find_block("mainloop", head["block"])
    except SpecError as error:
        raise error.located(prefix="mainloop")
    slots = cls.slots()
    for name in tables:
        if name not in slots and name not in ("problem", "mainloop"):
            close = difflib.get_close_matches(name, slots, 1)
            others = [other.NAME for other in registered("mainloop") if issubclass(other, Mainloop) and name in other.slots()]
            raise SpecError(
                f"mainloop {cls.NAME} has no slot {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""), key=name, allowed=["problem", "mainloop", *slots],
                reason=f"it is a slot of {', '.join(others)}" if others else None,
            )
    arguments = structure_options(cls, head, "mainloop", skip=("block",))
    defaults = fields_dict(cls)
    for name, (kind, many) in slots.items():
        if name not in tables:
            continue
        table = tables[name]
        if many:
            if not isinstance(table, list):
                raise SpecError(f"{name} holds several blocks", key=name, value=table, allowed=f"[[{name}]] tables")
            arguments[name] = tuple(structure_block(kind, t, f"{name}[{i}]", None) for i, t in enumerate(table))
        else:
            arguments[name] = structure_block(kind, table, name, defaults[name].default.factory)
    problem = make(Problem, structure_options(Problem, tables.get("problem", {}), "problem"), "problem")
    return problem, make(cls, arguments, "mainloop")
