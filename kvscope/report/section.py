"""Sections of a report: sentences, tables and plots, the same for terminal, HTML and dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PLOT_WIDTH = 60  # characters

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"


class Table(Struct, frozen=True):
    """A titled table; every cell is text already.

    The first column (0) names the row; the others are figures, aligned right, except the indices in
    `words`. A further column titled "" holds bars of characters. `note` explains columns.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: tuple[int, ...] = ()


class Tile(Struct, frozen=True):
    """A figure to see first, explained by `about`; `good`: it meets its target (None: has none)."""

    label: str
    value: str
    about: str = ""
    good: bool | None = None


class Section(Struct, frozen=True):
    """One subject of a report.

    `tiles` are its most important figures, for pages, which have room for large ones. `plot` is
    drawn in lines of characters on a terminal; `figures` build the charts of the HTML report and
    the dashboard when they are called, so that plotly loads only then.
    """

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plot: tuple[str, ...] = ()
    figures: tuple[Callable[[], Figure], ...] = ()
    tiles: tuple[Tile, ...] = ()

    @classmethod
    def of(cls, title: str, *parts: Part | None, plot: Iterable[str] = ()) -> Section:
        """Return a section of sentences, tables, tiles and charts, each kind in order, no None."""
        return cls(
            title,
            tuple(part for part in parts if isinstance(part, str)),
            tuple(part for part in parts if isinstance(part, Table)),
            tuple(plot),
            tuple(part for part in parts if callable(part)),
            tuple(part for part in parts if isinstance(part, Tile)),
        )

    @property
    def name(self) -> str:
        """The name for `--section`: `reuse-gaps` for "Reuse gaps: hours"."""
        return self.title.partition(":")[0].rstrip("?").lower().replace(" ", "-")


Part: TypeAlias = "str | Table | Tile | Callable[[], Figure]"
"""A sentence, a table, a tile, or a function that draws a chart."""

Columns = Mapping[str, Callable[[Any], str]]
"""Titles of columns, each with the function that writes its cell of a row."""


def tabulate(
    title: str, rows: Iterable[Any], columns: Columns, note: str = "", words: Sequence[str] = ()
) -> Table:
    """Return a table; `columns` maps titles to functions from row to cell.

    The columns whose titles are in `words` are aligned left.
    """
    return Table(
        title,
        tuple(columns),
        tuple(tuple(cell(row) for cell in columns.values()) for row in rows),
        note,
        tuple(at for at, name in enumerate(columns) if name in words),
    )


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError for a section name that is not in `known`, ignoring case."""
    if unknown := [name for name in names if name.lower() not in known]:
        raise UsageError(
            f"there is no section {unknown[0]!r}",
            where="--section",
            remedy=f"name one of {', '.join(known)}",
        )


def bar(share: float, width: int = 24) -> str:
    """Return a horizontal bar of `width` characters; a `share` (0–1) of it is filled."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float | None], top: float | None = None) -> str:
    """Return one character per value; heights are relative to `top` (default: the largest).

    None is a blank. More values than PLOT_WIDTH are thinned to their means.
    """
    values = thinned(values, PLOT_WIDTH)
    highest = top if top is not None else max((value or 0.0 for value in values), default=0.0)
    if highest <= 0:
        return "▁" * len(values)
    return "".join(" " if value is None else _letter(_LEVELS, value / highest) for value in values)


def _letter(letters: str, share: float) -> str:
    last = len(letters) - 1
    return letters[min(last, max(0, round(share * last)))]


def curve_plot(
    at: Sequence[float], curves: Mapping[str, Sequence[float]], write: Callable[[float], str]
) -> tuple[str, ...]:
    """Return a sparkline for each named curve over `at`, and a line with both ends of the axis.

    `write` formats an end. All share a scale and start where the first exceeds 2 % of its peak.
    """
    first = next(iter(curves.values()), ())
    top = max(first, default=0.0)
    if top <= 0:
        return ()
    begin = next(number for number, value in enumerate(first) if value > 0.02 * top)
    lines = {name: sparkline(values[begin:], top) for name, values in curves.items()}
    low, high = write(at[begin]), write(at[-1])
    width = max(len(at) - begin, len(low) + len(high) + 1)
    rows = tuple(f"{name:<16} {line}" for name, line in lines.items())
    return (*rows, f"{'':<16} {low:<{min(width, PLOT_WIDTH) - len(high)}}{high}")


def heat_map(rows: Sequence[Sequence[float]], top: float | None = None) -> list[str]:
    """Return a line per row, two characters per cell, darker for larger shares of `top`.

    By default, `top` is the largest cell.
    """
    highest = top if top is not None else max((max(row, default=0.0) for row in rows), default=0.0)
    scale = highest if highest > 0 else 1.0
    return ["".join(2 * _letter(_SHADES, cell / scale) for cell in row) for row in rows]


def thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return at most `width` values: means of equal segments, None left out (None if all are)."""
    if len(values) <= width:
        return list(values)
    thin: list[float | None] = []
    for column in range(width):
        segment = values[column * len(values) // width : (column + 1) * len(values) // width]
        known = [value for value in segment if value is not None]
        thin.append(sum(known) / len(known) if known else None)
    return thin
