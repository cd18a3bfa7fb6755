"""JSON schemas of the documents of `--json`, made from their types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvscope.app.documents import (
    analyze,
    deployment,
    diff,
    engines,
    explain,
    fit,
    fleet,
    lists,
    machines,
    retention,
    runs,
    tune,
)
from kvscope.app.documents.base import Document

DOCUMENTS: Mapping[str, type[Document]] = {
    "analyze": analyze.AnalyzeDocument,
    "calibrate": engines.CalibrateDocument,
    "deployment": deployment.DeploymentDocument,
    "diff": diff.DiffDocument,
    "doctor": lists.DoctorDocument,
    "explain": explain.ExplainDocument,
    "fit": fit.FitDocument,
    "fleet": fleet.FleetDocument,
    "formats": lists.FormatsDocument,
    "ingest": lists.IngestDocument,
    "latencies": lists.LatenciesDocument,
    "models": lists.ModelsDocument,
    "policies": lists.PoliciesDocument,
    "retention": retention.RetentionDocument,
    "routers": lists.RoutersDocument,
    "runs": runs.RunsDocument,
    "simulate": runs.SimulateDocument,
    "traces": lists.TracesDocument,
    "tune": tune.TuneDocument,
    "tune-machines": machines.MachinesDocument,
    "validate": engines.ValidateDocument,
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
    return int(DOCUMENTS[command].schema)


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
