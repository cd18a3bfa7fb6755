"""The one owner of stdout: JSON documents for programs, a rich console for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvscope import __version__
from kvscope.cli.diagnostics import one_line
from kvscope.core.trace import Trace

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
_PIPED_WIDTH = 100
_TRACE_FIELDS = (
    "name",
    "format",
    "block_size",
    "requests",
    "accesses",
    "distinct_blocks",
    "span_s",
    "input_tokens",
    "output_tokens",
    "lineage",
    "bad_lines",
)


def emit(text: str) -> None:
    """Write one line to stdout, whatever `text` holds."""
    sys.stdout.write(f"{one_line(text)}\n")


def emit_json(command: str, trace: Trace | None, payload: Mapping[str, Any]) -> None:
    """Write the one document of `--json`: what every command says, then `payload`'s keys.

    Values may be dataclasses and numpy scalars or arrays; NaN and infinities become null. Raises
    ValueError if `payload` claims a key that every document has.
    """
    import msgspec

    document: dict[str, Any] = {
        "kvscope": __version__,
        "schema": SCHEMA,
        "command": command,
        "trace": trace and {name: getattr(trace, name) for name in _TRACE_FIELDS},
    }
    if taken := document.keys() & payload.keys():
        raise ValueError(f"every document has {sorted(taken)} already")
    encoded = msgspec.json.encode(document | dict(payload), enc_hook=_plain)
    text = msgspec.json.format(encoded, indent=2).decode()
    if not text.isascii():  # escapes are JSON in any encoding of stdout
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(f"{text}\n")


def console() -> Console:
    """Rich output on stdout: as wide as the terminal, 100 columns when piped.

    Markup is off, so that a `[` in a trace's name stays one: give styles as `rich.text.Text`.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)


def _plain(value: object) -> object:
    """numpy's scalars and arrays as Python's own, without importing numpy."""
    convert = getattr(value, "tolist", None)
    if convert is None:
        raise TypeError(f"no JSON for {type(value).__name__}")
    return convert()
