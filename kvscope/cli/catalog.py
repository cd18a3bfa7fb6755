"""`kvscope policies`, `routers`, `models`, `latencies`, `formats`: what kvscope knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvscope.cli import output
from kvscope.cli.options import Json
from kvscope.core import units

if TYPE_CHECKING:
    from kvscope.app.documents.base import Document

_RUNS_IN = {"vllm": "vLLM", "sglang": "SGLang", "vllm with kvscope's plugin": "vLLM + plugin"}


def policies(as_json: Json = False) -> None:
    """List the eviction policies.

    With what can run each: vLLM as it is or with kvscope's plugin, SGLang, or only a simulation.
    """
    from kvscope.app.documents.lists import policies_document

    document = policies_document()
    rows = []
    for entry in document.policies:
        engines = ", ".join(_RUNS_IN[engine] for engine in entry.engines) or "simulation"
        rows.append((entry.name, "oracle" if entry.hindsight else engines, entry.summary))
    columns = ("policy", "runs in", "evicts first")
    _show(document, columns, rows, as_json=as_json)


def routers(as_json: Json = False) -> None:
    """List the routers of fleets.

    With what a choice depends on: the order of requests, those before, how busy replicas are, or
    what their caches hold.
    """
    from kvscope.app.documents.lists import routers_document

    document = routers_document()
    rows = [
        (entry.name, "reference" if entry.reference else entry.sees, entry.summary)
        for entry in document.routers
    ]
    _show(document, ("router", "sees", "rule"), rows, as_json=as_json)


def models(as_json: Json = False) -> None:
    """List the model presets.

    With the KV cache that a token takes. `--model` also takes the path of a config.json.
    """
    from kvscope.app.documents.lists import models_document

    document = models_document()
    rows = [
        (entry.name, units.format_size(entry.bytes_per_token), entry.kv_dtype, entry.summary)
        for entry in document.models
    ]
    columns = ("model", "KV per token", "dtype", "attention")
    _show(document, columns, rows, as_json=as_json)


def latencies(as_json: Json = False) -> None:
    """List the latency presets, the default first.

    `--latency` also takes the file that `kvscope calibrate` writes.
    """
    from kvscope.app.documents.lists import latencies_document

    document = latencies_document()
    rows = [
        (entry.name, entry.summary, entry.source.split(": ", 1)[-1].split(",")[0])
        for entry in document.latencies
    ]
    columns = ("profile", "TTFT", "measured on")
    _show(document, columns, rows, as_json=as_json)


def formats(as_json: Json = False) -> None:
    """List the trace formats.

    kvscope detects the format of a trace from its first lines; `--format` overrides that.
    """
    from kvscope.app.documents.lists import formats_document

    document = formats_document()
    rows = [
        (
            entry.name,
            " ".join(verb for verb in ("reads", "writes") if getattr(entry, verb)),
            entry.summary,
        )
        for entry in document.formats
    ]
    columns = ("format", "kvscope", "content")
    _show(document, columns, rows, as_json=as_json)


def _show(
    document: Document,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        output.emit_json(document)
        return
    from kvscope.report.section import Table

    output.show_table(Table("", columns, tuple(rows), words=tuple(range(1, len(columns)))))
