"""JSON schemas of the documents of `--json`, made from their types."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from kvscope.app.documents import (
    deployment,
    engines,
    fleet,
    lists,
    machines,
    runs,
    tune,
)
from kvscope.app.documents.base import TraceFacts
from kvscope.usecases import USE_CASES
from kvscope.usecases.base import AnyUseCase, use_case
from kvscope.usecases.documents import FORMS, marked


def result_type(case: AnyUseCase) -> type[Struct]:
    """Return the class of what a use case returns."""
    kind: type[Struct] = _hints(case.run)["return"]
    return kind


def _document_of(name: str) -> type:
    """Return the class of a use case's documents, of which its schema is made."""
    case = use_case(name)
    kind = result_type(case)
    hints = dict(_field_types(kind))
    fields: list[Any] = [
        ("kvscope", str),
        ("schema", Literal[case.schema]),
        ("command", Literal[name]),
        ("trace", hints.get("trace", TraceFacts | None)),
    ]
    if case.figures is not None:
        fields.append(("figures", Mapping[str, float | str | None]))
    fields += [(each, hint) for each, hint in hints.items() if each != "trace"]
    about = {"__doc__": kind.__doc__}
    return msgspec.defstruct(f"{name.title()}Document", fields, namespace=about)


def _field_types(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a result's document with their types."""
    hints = _hints(kind)
    for name, annotation in marked(kind).items():
        if not annotation.startswith("Inline["):
            yield name, _shown_type(hints[name])
            continue
        parts = get_args(hints[name]) or (hints[name],)
        for inner, hint in _field_types(parts[0]):
            is_list = get_origin(hint) is tuple
            yield inner, hint if is_list or len(parts) == 1 else hint | None


def empty(kind: type, name: str) -> dict[str, Any]:
    """Return the fields of an `Inline` record that is None: null, or empty lists."""
    inner = get_args(_hints(kind)[name])[0]
    return {each: () if get_origin(hint) is tuple else None for each, hint in _field_types(inner)}


def _hints(annotated: Any) -> dict[str, Any]:
    """Return annotations, with the types that modules import for type checkers only."""
    names: dict[str, Any] = {}
    for each in getattr(annotated, "__mro__", (annotated,)):
        if not each.__module__.startswith("kvscope."):
            continue
        for statement in ast.parse(inspect.getsource(sys.modules[each.__module__])).body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
                imports = ast.Module(statement.body, [])
                exec(compile(imports, each.__module__, "exec"), names)  # noqa: S102  (our own)
    return get_type_hints(annotated, localns=names)


def _shown_type(hint: Any) -> Any:
    """Return the type of what documents show of a value of this type."""
    if hint in FORMS:
        return FORMS[hint][0]
    inner = tuple(map(_shown_type, get_args(hint)))
    if inner == get_args(hint):
        return hint
    origin = get_origin(hint)
    return reduce(or_, inner) if origin in {Union, UnionType} else origin[inner]


DOCUMENTS: Mapping[str, Any] = {
    "calibrate": engines.CalibrateDocument,
    "deployment": deployment.DeploymentDocument,
    "doctor": lists.DoctorDocument,
    "fleet": fleet.FleetDocument,
    "formats": lists.FormatsDocument,
    "ingest": lists.IngestDocument,
    "latencies": lists.LatenciesDocument,
    "models": lists.ModelsDocument,
    "policies": lists.PoliciesDocument,
    "routers": lists.RoutersDocument,
    "runs": runs.RunsDocument,
    "simulate": runs.SimulateDocument,
    "traces": lists.TracesDocument,
    "tune": tune.TuneDocument,
    "tune-machines": machines.MachinesDocument,
    "validate": engines.ValidateDocument,
    **{name: _document_of(name) for name in USE_CASES if use_case(name).document is None},
}
"""The document of each command that prints one."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a command's document.

    A document has every field, and may have more in later versions. A number may be null: it is
    infinite or undefined then.
    """
    document = DOCUMENTS[command]
    made = msgspec.json.schema(document)
    for part in _parts(made):
        part.pop("default", None)
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
    return use_case(command).schema if command in USE_CASES else int(DOCUMENTS[command].schema)


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
