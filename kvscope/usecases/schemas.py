"""JSON schemas of the documents of `--json`, derived from the types of the shown records."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from kvscope.core.trace import Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.gpus import Gpu
from kvscope.usecases import USE_CASES, catalog
from kvscope.usecases.base import AnyUseCase, use_case
from kvscope.usecases.documents import is_record, shown_fields
from kvscope.usecases.tune.machines import MachineStudy

_Figures = Mapping[str, float | str | None]


def result_type(case: AnyUseCase) -> type[Struct]:
    """Return the class of a use case's result."""
    kind: type[Struct] = _hints(case.run)["return"]
    return kind


def _document_of(command: str, result: type, version: int = 1, *, gated: bool = False) -> type:
    """Return the class of a command's documents: common fields, then those of its result.

    `gated`: the command takes `--fail-on`, and its documents have `figures`.
    """
    hints = dict(_field_types(result))
    fields: list[Any] = [
        ("kvscope", str),
        ("schema", Literal[version]),
        ("command", Literal[command]),
        ("trace", hints.pop("trace", _record(Trace) | None)),
        *([("figures", _Figures)] if gated else []),
        *hints.items(),
    ]
    name = "".join(part.title() for part in command.split("-"))
    return msgspec.defstruct(f"{name}Document", fields, namespace={"__doc__": result.__doc__})


def _list_of(command: str, kind: type) -> type:
    """Return the document class of a command that lists records of class `kind`."""
    about = {"__doc__": f"What `kvscope {command}` lists."}
    listed = msgspec.defstruct(command.title(), [(command, tuple[kind, ...])], namespace=about)  # type: ignore[valid-type]
    return _document_of(command, listed)


@cache
def _record(kind: type) -> type[Struct]:
    """Return a class with the fields that documents show of class `kind`."""
    about = {"__doc__": kind.__doc__}
    return msgspec.defstruct(kind.__name__, list(_field_types(kind)), namespace=about)


def _field_types(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields that documents show of a record, with their types."""
    for field in shown_fields(kind):
        hint = _type_at(kind, field.path)
        if not field.inline:
            yield field.name, _shown_type(hint)
            continue
        known, optional = _without_none(hint)
        for inner, inner_hint in _field_types(known):
            is_list = get_origin(inner_hint) is tuple
            yield inner, inner_hint | None if optional and not is_list else inner_hint


def empty(kind: type, path: str) -> dict[str, Any]:
    """Return {name: null or an empty list} for the fields of an inline record that is None.

    `path` is the dotted path from class `kind` to the attribute with this record; a document of
    `kind` has the record's fields among its own.
    """
    inner, _ = _without_none(_type_at(kind, path))
    return {each: () if get_origin(hint) is tuple else None for each, hint in _field_types(inner)}


def _type_at(kind: Any, path: str) -> Any:
    """Return the type of the attribute at a dotted path."""
    hint, optional = kind, False
    for name in path.split("."):
        owner, maybe = _without_none(hint)
        optional = optional or maybe
        hints = _hints(owner)  # of fields and class attributes
        if name in hints:
            hint = hints[name]
            hint = get_args(hint)[0] if get_origin(hint) is ClassVar else hint
        else:
            made = inspect.getattr_static(owner, name)
            made = made.func if isinstance(made, cached_property) else made.fget
            hint = _hints(made)["return"]
    return hint | None if optional else hint


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the class in an optional type, and whether the type allows None."""
    parts = get_args(hint) if get_origin(hint) in {Union, UnionType, type} else (hint,)
    known = [part for part in parts if part is not type(None)]
    return known[0], len(known) < len(parts)


@cache
def _hints(annotated: Any) -> dict[str, Any]:
    """Return annotations, with types resolved that modules import only for type checkers."""
    names: dict[str, Any] = {}
    for each in getattr(annotated, "__mro__", (annotated,)):
        names |= _typing_imports(each.__module__)
    return get_type_hints(annotated, localns=names)


@cache
def _typing_imports(module: str) -> dict[str, Any]:
    """Return the names that a module of kvscope imports only for type checkers."""
    names: dict[str, Any] = {}
    if module.startswith("kvscope."):
        for statement in ast.parse(inspect.getsource(sys.modules[module])).body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
                imports = ast.Module(statement.body, [])
                exec(compile(imports, module, "exec"), names)  # noqa: S102  (our own)
    return names


def _shown_type(hint: Any) -> Any:
    """Return the type that documents show for a value of type `hint`."""
    if is_record(hint):
        return _record(hint)
    origin = get_origin(hint)
    if origin is type:
        return _record(get_args(hint)[0])
    inner = tuple(map(_shown_type, get_args(hint)))
    if inner == get_args(hint):
        return hint
    return reduce(or_, inner) if origin in {Union, UnionType} else origin[inner]


DOCUMENTS: Mapping[str, Any] = {
    "deployment": _document_of("deployment", ResolvedDeployment),
    "doctor": _document_of("doctor", catalog.CheckedStore),
    "formats": _list_of("formats", catalog.ListedFormat),
    "gpus": _list_of("gpus", Gpu),
    "ingest": _document_of("ingest", catalog.IngestedTraces),
    "latencies": _list_of("latencies", catalog.ListedLatency),
    "models": _list_of("models", catalog.ListedModel),
    "policies": _list_of("policies", catalog.ListedPolicy),
    "routers": _list_of("routers", catalog.ListedRouter),
    "runs": _document_of("runs", catalog.StoredResults, 2),
    "traces": _list_of("traces", catalog.StoredTrace),
    "tune-machines": _document_of("tune-machines", MachineStudy),
    **{
        name: _document_of(name, result_type(case), case.schema, gated=case.figures is not None)
        for name, case in zip(USE_CASES, map(use_case, USE_CASES), strict=True)
    },
}
"""The document of each command that prints one."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a command's document.

    A document has every field; later versions may add some. Infinite or undefined numbers are null.
    """
    made = msgspec.json.schema(DOCUMENTS[command])
    for part in _parts(made):
        part.pop("default", None)
        if isinstance(about := part.get("description"), str):
            part["description"] = inspect.cleandoc(about)  # as Python 3.13 has it
        if part.get("type") == "object" and "properties" in part:
            part["required"] = list(part["properties"])
        if part.get("type") == "number":
            part["type"] = ["number", "null"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvscope {command} --json, schema {version(command)}",
        **made,
    }


def version(command: str) -> int:
    """Return the version of a command's document."""
    number: int = get_args(get_type_hints(DOCUMENTS[command])["schema"])[0]
    return number


def write_schemas(folder: Path) -> list[Path]:
    """Write every schema to `folder` as COMMAND-VERSION.json; return the paths."""
    folder.mkdir(exist_ok=True)
    paths = []
    for command in DOCUMENTS:
        path = folder / f"{command}-{version(command)}.json"
        path.write_text(json.dumps(schema(command), indent=2) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema and every schema inside it."""
    yield schema
    named = [part for key in ("$defs", "properties") for part in schema.get(key, {}).values()]
    listed = [part for key in ("anyOf", "prefixItems") for part in schema.get(key, [])]
    single = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for part in (*named, *listed, *single):
        if isinstance(part, dict):
            yield from _parts(part)
