"""A section of an analysis: words, tables, plots, the same in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvscope.report.table import Table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, slots=True)
class Section:
    """One subject of an analysis.

    `sentences` say in words what was found, `plot` shows it in lines of characters for a terminal,
    `figures` make the charts of the report when they are called; plotly loads only then.
    """

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plot: tuple[str, ...] = ()
    figures: tuple[Callable[[], Figure], ...] = ()
