"""Every trace format that kvscope reads and writes; a new format is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import STANDARD_STREAM, sink
from kvscope.core.trace import Trace
from kvscope.ingest.formats.agentic import AgenticMooncake
from kvscope.ingest.formats.agents import ClaudeCode, Codex, TraceLab
from kvscope.ingest.formats.bailian import Bailian, BailianExport
from kvscope.ingest.formats.base import TraceFormat, common_keys, field_names
from kvscope.ingest.formats.dynamo import DynamoTraces
from kvscope.ingest.formats.exporter import Advance, Exporter
from kvscope.ingest.formats.lengths import LengthsCsv
from kvscope.ingest.formats.litellm import LiteLlmPayloads
from kvscope.ingest.formats.lmcache import LmcacheLookups
from kvscope.ingest.formats.mooncake import Mooncake, MooncakeExport
from kvscope.ingest.formats.oracle_general import OracleGeneralExport
from kvscope.ingest.formats.otlp import OtlpSpans
from kvscope.ingest.formats.parquet import Parquet, ParquetExport
from kvscope.ingest.formats.tair import Tair
from kvscope.ingest.formats.weka import Weka
from kvscope.store.checks import require_sound
from kvscope.store.db import Store

T = TypeVar("T")

# Detection takes the first that recognizes a trace: formats with keys of their own come before
# Mooncake's, which has common ones.
FORMATS: tuple[type[TraceFormat], ...] = (
    Bailian,
    Weka,
    AgenticMooncake,
    DynamoTraces,
    LmcacheLookups,
    TraceLab,
    ClaudeCode,
    Codex,
    Tair,
    OtlpSpans,
    LiteLlmPayloads,
    Mooncake,
    LengthsCsv,
    Parquet,
)
EXPORTERS: tuple[type[Exporter], ...] = (
    BailianExport,
    MooncakeExport,
    ParquetExport,
    OracleGeneralExport,
)

TEXT = "make a trace of prompts with `kvscope hash`, or record one with `kvscope record`"

_TEXT_KEYS = frozenset(
    {
        "body", "completion", "content", "conversation", "conversations", "input", "messages",
        "obj", "prompt", "question", "request", "request_body", "request_parameters", "span_kind",
        "system", "text",
    }
)  # fmt: skip
_ARRAY_BEGINS = frozenset('[]{"')

ENGINE_LOGS = (
    (
        "Prefill batch",
        "SGLang's log of batches, without requests",
        "start SGLang with --export-metrics-to-file, and read that file with `kvscope hash`",
    ),
    (
        "Avg prompt throughput",
        "vLLM's log of averages, without requests",
        "start vLLM with KVSCOPE_RECORD, or export spans with --otlp-traces-endpoint",
    ),
)
"""Logs of engines: a text that each contains, a description of the log, and the remedy."""


def by_name(name: str) -> type[TraceFormat]:
    """Return the format called `name`, in any case. Raises UsageError if there is none."""
    return _named(name, {known.name: known for known in FORMATS}, "trace format", "--format")


def _named(name: str, known: Mapping[str, T], kind: str, where: str) -> T:
    for candidate, value in known.items():
        if candidate.lower() == name.lower():
            return value
    raise UsageError(
        f"unknown {kind} {name!r}", where=where, remedy="take one of " + ", ".join(known)
    )


def detect(head: bytes, path: str) -> type[TraceFormat]:
    """Return the first format that recognizes `head`, the first bytes of the trace at `path`.

    Raises InputError if none does: what the file looks like, and a hint such as the nearest format.
    """
    if not head.strip():
        raise InputError("the trace is empty", where=path)
    if known := recognized(head):
        return known
    looks, remedy = _description(head)
    raise InputError(f"no trace format that kvscope knows: {looks}", where=path, remedy=remedy)


def recognized(head: bytes) -> type[TraceFormat] | None:
    """Return the first format that recognizes `head`, None if none does."""
    return next((known for known in FORMATS if known.recognizes(head)), None)


def _description(head: bytes) -> tuple[str, str]:
    """Return the description of a file of no known format, and the remedy."""
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    see = "see `kvscope formats`"
    if "\0" in text:
        return "binary data", see
    for mark, looks, remedy in ENGINE_LOGS:
        if mark in text:
            return looks, remedy
    if text[:1] == "[" and text[1:].lstrip()[:1] in _ARRAY_BEGINS:
        return "one JSON array", "write its objects one per line, for example with `jq -c '.[]'`"
    if text.startswith("{"):
        names = sorted(common_keys(head))
        if not names:
            return "JSON, but no object with fields on each line", see
        looks = f"JSON lines with {field_names(names)}"
        return looks, _nearest(names, [x for x in FORMATS if x not in {LengthsCsv, Parquet}]) or see
    columns = [name.strip() for name in text.split("\n", 1)[0].split(",")]
    looks = f"text that begins with {field_names(columns)}"
    return looks, _nearest(columns, [LengthsCsv]) or see


def _nearest(names: list[str], candidates: Sequence[type[TraceFormat]]) -> str | None:
    """Return a hint for a file with the keys or columns `names`; None without a hint.

    With keys of text (such as `prompt`), the hint is that text is not read; else it names the
    nearest of the `candidates` and the fields that the file lacks for it.
    """
    folded = [name.casefold() for name in names]
    if _TEXT_KEYS & set(folded):
        return f"kvscope reads block hashes, never text: {TEXT}"

    def shared(known: type[TraceFormat]) -> int:
        fields = (field.casefold() for field in known.fields)
        return sum(bool(get_close_matches(field, folded, n=1, cutoff=0.75)) for field in fields)

    nearest = max(candidates, key=lambda known: (shared(known), -len(known.fields)))
    if not shared(nearest):
        return None
    missing = [field for field in nearest.fields if field.casefold() not in folded]
    return f"the nearest is {nearest.name}: it also needs {', '.join(missing)}" if missing else None


def exporter(to: str, path: str) -> Exporter:
    """Return the exporter of the format called `to`, for a file at `path` (`-`: standard output).

    Raises UsageError for an unknown format, and for a binary one on standard output.
    """
    chosen = _named(to, {known.name: known for known in EXPORTERS}, "export format", "--to")()
    if path == STANDARD_STREAM and not chosen.is_text:
        raise UsageError(
            f"{chosen.name} is binary and cannot go to standard output",
            where="--output",
            remedy="name a file",
        )
    return chosen


def export(store: Store, trace: Trace, to: str, path: str, advance: Advance | None = None) -> None:
    """Write `trace` to `path` (`-`: standard output) in the format called `to`.

    `advance` gets the number of requests written since its last call. Raises the errors of
    `exporter`, and InputError for a trace that the format cannot hold or that is damaged.
    """
    chosen = exporter(to, path)
    if chosen.needs_hashes and not trace.has_hashes:
        raise InputError(
            f"the trace has no block hashes, and {chosen.name} holds nothing else",
            where=trace.name,
            remedy="export it to parquet, or to mooncake",
        )
    require_sound(store, trace)
    with sink(path) as stream:
        chosen.write(store, trace, stream, advance or (lambda _: None))
