"""Every trace format kvscope reads; a new one is a file in this folder and a line here."""

from __future__ import annotations

from difflib import get_close_matches

from kvscope.core.errors import InputError, UsageError
from kvscope.ingest.formats.bailian import Bailian
from kvscope.ingest.formats.base import TraceFormat
from kvscope.ingest.formats.json_lines import common_keys
from kvscope.ingest.formats.lengths import LengthsCsv
from kvscope.ingest.formats.mooncake import Mooncake
from kvscope.ingest.formats.parquet import Parquet
from kvscope.ingest.formats.weka import Weka

FORMATS: tuple[type[TraceFormat], ...] = (Bailian, Mooncake, Weka, LengthsCsv, Parquet)

RECORD = "record a trace with `kvscope record`"

_TEXT_KEYS = frozenset(
    {"completion", "content", "conversations", "messages", "prompt", "question", "text"}
)
_MOST_NAMES = 6


def by_name(name: str) -> type[TraceFormat]:
    """Return the format called `name`, in any case. Raises UsageError if there is none."""
    for known in FORMATS:
        if known.name == name.lower():
            return known
    raise UsageError(
        f"unknown trace format {name!r}",
        where="--format",
        remedy="take one of " + ", ".join(known.name for known in FORMATS),
    )


def detect(head: bytes, path: str) -> type[TraceFormat]:
    """Return the one format that recognizes `head`, the first bytes of the trace at `path`.

    Raises InputError if none does; it says what the file looks like and which format is nearest.
    """
    if not head.strip():
        raise InputError("the trace is empty", where=path)
    for known in FORMATS:
        if known.recognizes(head):
            return known
    looks, remedy = _description(head)
    raise InputError(f"no trace format that kvscope knows: {looks}", where=path, remedy=remedy)


def _description(head: bytes) -> tuple[str, str]:
    """Return what a file of no known format looks like, and what to do about it."""
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    see = "see `kvscope formats`"
    if "\0" in text:
        return "binary data", see
    if text.startswith("["):
        return "one JSON array", "write its objects one per line, for example with `jq -c '.[]'`"
    if text.startswith("{"):
        names = sorted(common_keys(head))
        if not names:
            return "JSON, but no object with fields on each line", see
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"JSON lines with {', '.join(names[:_MOST_NAMES])}{more}", _nearest(names) or see
    line = text.split("\n", 1)[0].strip()
    looks = f"text that begins with {line[:40]!r}"
    return looks, _nearest([name.strip() for name in line.split(",")]) or see


def _nearest(names: list[str]) -> str | None:
    """Return what makes a file with these field names one of the nearest format, None if none."""
    folded = [name.casefold() for name in names]
    if _TEXT_KEYS & set(folded):
        return f"kvscope reads block hashes, never text: {RECORD}"

    def shared(known: type[TraceFormat]) -> int:
        fields = (field.casefold() for field in known.fields)
        return sum(bool(get_close_matches(field, folded, n=1, cutoff=0.75)) for field in fields)

    nearest = max(FORMATS, key=lambda known: (shared(known), -len(known.fields)))
    if not shared(nearest):
        return None
    return f"the nearest is {nearest.name}: give it {', '.join(nearest.fields)}"
