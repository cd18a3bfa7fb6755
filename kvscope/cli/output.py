"""The one owner of stdout: JSON documents for programs, a rich console for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvscope.cli.diagnostics import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from kvscope.app.documents.base import Document

_PIPED_WIDTH = 100


def emit(text: str) -> None:
    """Write one line to stdout, whatever `text` holds."""
    sys.stdout.write(f"{one_line(text)}\n")


def emit_json(document: Document) -> None:
    """Write the one document of `--json`."""
    from kvscope.app.documents.base import to_json

    sys.stdout.write(f"{to_json(document)}\n")


def console() -> Console:
    """Rich output on stdout: as wide as the terminal, 100 columns when piped.

    Markup is off, so that a `[` in a trace's name stays one: give styles as `rich.text.Text`.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)
