"""Sections and tables on a terminal, by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvscope.cli import output

if TYPE_CHECKING:
    from rich.console import Console

    from kvscope.show.section import Section
    from kvscope.show.table import Table


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
    from rich.text import Text

    console.print()
    console.print(Rule(Text(section.title, style="bold"), align="left", style="dim"))
    for sentence in section.sentences:
        console.print(Text(sentence))
    for line in section.plot:
        console.print(Text(line, style="cyan"), soft_wrap=True)
    for table in section.tables:
        console.print()
        _table(console, table)


def _table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=Text(table.note) if table.note else None,
        caption_justify="left",
    )
    for number, column in enumerate(table.columns):
        # A column without a title, past the first, holds bars made of characters.
        left = number == 0 or not column
        drawn.add_column(
            Text(column), justify="left" if left else "right", overflow="fold", no_wrap=True
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)
