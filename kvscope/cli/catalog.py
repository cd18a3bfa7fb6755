"""`kvscope policies`, `models`, `latencies` and `formats`: what kvscope knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvscope.cli import output
from kvscope.cli.options import Json
from kvscope.core import units

if TYPE_CHECKING:
    from kvscope.app.catalog import Entry


def policies(as_json: Json = False) -> None:
    """List the eviction policies.

    With what can run each: vLLM as it is or with kvscope's plugin, SGLang, or only a simulation.
    """
    from kvscope.app import catalog

    known = catalog.policies()
    rows = [
        (
            entry["name"],
            "oracle" if entry["hindsight"] else _runs_in(entry["engines"]),
            entry["summary"],
        )
        for entry in known
    ]
    _show("policies", known, ("policy", "runs in", "evicts first"), rows, as_json=as_json)


def models(as_json: Json = False) -> None:
    """List the model presets.

    With the KV cache that a token takes. `--model` also takes the path of a config.json.
    """
    from kvscope.app import catalog

    known = catalog.models()
    rows = [
        (
            entry["name"],
            units.format_size(entry["bytes_per_token"]),
            entry["kv_dtype"],
            entry["summary"],
        )
        for entry in known
    ]
    columns = ("model", "KV per token", "dtype", "attention")
    _show("models", known, columns, rows, as_json=as_json)


def latencies(as_json: Json = False) -> None:
    """List the latency presets, the default first.

    `--latency` also takes the file that `kvscope calibrate` writes.
    """
    from kvscope.app import catalog

    known = catalog.latencies()
    rows = [
        (
            entry["name"],
            entry["summary"],
            entry["source"].split(": ", 1)[-1].split(",")[0],
        )
        for entry in known
    ]
    _show("latencies", known, ("profile", "TTFT", "measured on"), rows, as_json=as_json)


def formats(as_json: Json = False) -> None:
    """List the trace formats.

    kvscope detects the format of a trace from its first lines; `--format` overrides that.
    """
    from kvscope.app import catalog

    known = catalog.formats()
    rows = [
        (
            entry["name"],
            " ".join(verb for verb in ("reads", "writes") if entry[verb]),
            entry["summary"],
        )
        for entry in known
    ]
    _show("formats", known, ("format", "kvscope", "content"), rows, as_json=as_json)


def _runs_in(engines: list[str]) -> str:
    short = {"vllm": "vLLM", "sglang": "SGLang", "vllm with kvscope's plugin": "vLLM + plugin"}
    return ", ".join(short[engine] for engine in engines) or "simulation"


def _show(
    command: str,
    known: list[Entry],
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        output.emit_json(command, None, {command: known})
        return
    from kvscope.cli.rendering import show_table
    from kvscope.report.section import Table

    show_table(Table("", columns, tuple(rows), words=tuple(range(1, len(columns)))))
