"""A section of a report: sentences, tables and plots, the same for terminal, HTML and dashboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; every cell is text already.

    The first column names the row; the others are figures, aligned right, except the columns
    numbered in `words`. A further column without a title holds bars made of characters. `note`
    explains columns.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One subject of a report.

    `plot` is drawn in lines of characters on a terminal; `figures` build the charts of the HTML
    report and the dashboard when they are called, so that plotly loads only then.
    """

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plot: tuple[str, ...] = ()
    figures: tuple[Callable[[], Figure], ...] = ()

    @property
    def name(self) -> str:
        """The title as `--section` takes it: "Reuse gaps" is reuse-gaps."""
        return self.title.partition(":")[0].lower().replace(" ", "-")


def select(
    screen: Callable[[], Sequence[Section]],
    sections: Callable[[], Sequence[Section]],
    *,
    full: bool,
    names: Sequence[str],
) -> Sequence[Section]:
    """Return what a command prints: its one screen, all sections, or those of these names.

    Names match without regard to case. Raises UsageError for one that this report does not have.
    """
    if not full and not names:
        return screen()
    known = {section.name: section for section in sections()}
    if full:
        return list(known.values())
    if missing := [name for name in names if name.lower() not in known]:
        raise UsageError(
            f"this report has no section {missing[0]!r}",
            where="--section",
            remedy=f"name one of {', '.join(known)}",
        )
    return [known[name.lower()] for name in names]


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError for a section that no report of a command has, before any work."""
    if unknown := [name for name in names if name.lower() not in known]:
        raise UsageError(
            f"no section is called {unknown[0]!r}",
            where="--section",
            remedy=f"name one of {', '.join(known)}",
        )
