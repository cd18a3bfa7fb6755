"""Sections and tables on a terminal, by rich; what a trace says is shown there, never obeyed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvscope.cli import output
from kvscope.cli.diagnostics import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from kvscope.report.section import Section
    from kvscope.report.table import Table

_NO_LIMIT = 10_000  # columns


def show_sections(sections: Sequence[Section]) -> None:
    """Print every section: its title, words, plot and tables."""
    console = output.console()
    for section in sections:
        _show(console, section)


def show_table(table: Table) -> None:
    """Print one table."""
    _table(output.console(), table)


def _show(console: Console, section: Section) -> None:
    from rich.rule import Rule

    console.print()
    console.print(Rule(_text(section.title, "bold"), align="left", style="dim"))
    for sentence in section.sentences:
        console.print(_text(sentence))
    for line in section.plot:
        console.print(_text(line, "cyan"), soft_wrap=True)
    for table in section.tables:
        console.print()
        _table(console, table)


def _table(console: Console, table: Table) -> None:
    """Print the roomiest form of a table that fits; the closest one folds its first column.

    Never narrower than its figures: one that lost its last digits would be a wrong one.
    """
    if table.title:
        console.print(_text(table.title, "bold"))
    for drawn in _forms(table):
        natural = console.options.update(max_width=_NO_LIMIT)
        width = console.measure(drawn, options=natural).maximum
        if width <= console.width:
            break
    else:
        drawn.columns[0].no_wrap = False
        width -= min(width - console.width, _spare(table))
    drawn.width = width
    console.print(drawn, soft_wrap=True)
    if table.note:
        console.print(_text(table.note, "dim italic"))


def _forms(table: Table) -> Iterator[RichTable]:
    """The table from roomy to close."""
    yield _drawn(table)
    yield _drawn(table, bars=False)
    yield _drawn(table, bars=False, close=True)


def _drawn(table: Table, *, bars: bool = True, close: bool = False) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable

    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=not close,
        padding=(0, 0) if close else (0, 1),
    )
    # A column without a title, past the first, holds bars made of characters.
    is_bar = [number > 0 and not title for number, title in enumerate(table.columns)]
    kept = [number for number, bar in enumerate(is_bar) if bars or not bar]
    for number in kept:
        title = _text(table.columns[number])
        if close:
            title.plain = title.plain.replace(" ", "\n")
        left = number == 0 or is_bar[number]
        drawn.add_column(title, justify="left" if left else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(_text(row[number]) for number in kept))
    return drawn


def _spare(table: Table) -> int:
    """How many characters narrower the first column can be without cutting a word."""
    from rich.cells import cell_len

    names = [*table.columns[0].split(), *(one_line(row[0]) for row in table.rows)]
    words = [word for name in names for word in name.split()]
    return max(map(cell_len, names), default=0) - max(map(cell_len, words), default=0)


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(one_line(text), style)
