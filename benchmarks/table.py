"""Write tables of results in markdown, and into the page of the docs that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct


class Table(Struct, frozen=True):
    """Rows under a title, with a sentence on what was measured."""

    title: str
    description: str
    columns: tuple[str, ...]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return the table in markdown, figures to the right."""
        cells = [list(self.columns), *self.rows]
        widths = [max(len(row[at]) for row in cells) for at in range(len(self.columns))]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        lines = [" | ".join(_aligned(row, widths)) for row in [cells[0], rule, *self.rows]]
        head = [f"### {self.title}", "", self.description, ""]
        return "\n".join([*head, *(f"| {line} |" for line in lines), ""])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Pad the first cell on the right and the others on the left."""
    figures = zip(row[1:], widths[1:], strict=True)
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in figures)]


def record(page: Path, text: str, part: str) -> None:
    """Put `text` between the marks of `part` in `page`. Raise ValueError if it has none."""
    begin, end = f"<!-- measured: {part} -->", f"<!-- measured: {part}, end -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not (mark and last):
        raise ValueError(f"{page}: lacks the marks {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")
