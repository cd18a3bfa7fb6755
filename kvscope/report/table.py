"""A table of words: what the terminal, the HTML report and the dashboard all draw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; every cell is text already, with its unit.

    The first column names the row; the others are figures and stand flush right. `note` says what
    the figures mean.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
