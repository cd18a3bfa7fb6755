"""Results on stdout: JSON for programs, sections and tables for people.

No printed line ends in blanks. Text from a trace is printed as one line of printable characters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvscope.cli.diagnostics import note, one_line, reader_may_leave
from kvscope.core.files import STANDARD_STREAM, write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from kvscope.cli.options import ScreenOptions
    from kvscope.report.report import Report
    from kvscope.report.section import Section, Table

_PIPED_WIDTH = 100
_COLOURS = {"meets": "green", "misses": "red", "overloaded": "red"}
_GAP = 3  # blanks between columns where there is room


def emit(text: str) -> None:
    """Write one line to stdout; escape characters that are not printable."""
    sys.stdout.write(f"{one_line(text)}\n")


def emit_text(text: str) -> None:
    """Write text made by kvscope, such as a file, to stdout unchanged."""
    sys.stdout.write(text)


def emit_json(document: Any) -> None:
    """Write `document` to stdout as JSON, the only output of `--json`."""
    from kvscope.usecases.documents import to_json

    sys.stdout.write(f"{to_json(document)}\n")


def emit_result(command: str, result: Any, schema: int = 1) -> None:
    """Write the JSON document of a command's result, schema version `schema`."""
    from kvscope.usecases.documents import document

    emit_json(document(command, result, schema=schema))


def report(result: Report, printing: ScreenOptions, *, quiet: bool = False) -> None:
    """Print a result as JSON, one screen or sections; also write an HTML report with `--html`.

    If the HTML report goes to standard output, or with `quiet`, nothing else is printed.
    """
    with reader_may_leave():
        if quiet or printing.html == STANDARD_STREAM:
            pass
        elif printing.as_json:
            emit_json(result.document())
        else:
            chosen = result.select(printing.section, full=printing.full)
            _print(console(), f"{result.name}: {result.lead}")
            show_sections(chosen)
    if printing.html is not None:
        with reader_may_leave():
            write_text(Path(printing.html), result.html())
        if printing.html != STANDARD_STREAM:
            note(f"report written to {printing.html}")


def console() -> Console:
    """Return rich's console on stdout: as wide as the terminal, 100 columns in a pipe.

    Markup is off, so that a `[` in a trace's name is printed: pass styles as `rich.text.Text`.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)


def show_sections(sections: Sequence[Section]) -> None:
    """Print every section: its title, sentences, plot and tables."""
    screen = console()
    for section in sections:
        _show(screen, section)


def show_table(table: Table) -> None:
    """Print one table."""
    _table(console(), table)


def _show(screen: Console, section: Section) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    title = one_line(section.title)
    rule = "─" * max(screen.width - cell_len(title) - 1, 0)
    screen.print()
    screen.print(Text.assemble((title, "bold"), " ", (rule, "dim")), soft_wrap=True)
    for sentence in section.sentences:
        _print(screen, sentence)
    for line in section.plot:
        screen.print(_text(line.rstrip(), "cyan"), soft_wrap=True)
    for table in section.tables:
        if section.sentences or section.plot or table is not section.tables[0]:
            screen.print()
        _table(screen, table)


def _print(screen: Console, words: str, style: str = "") -> None:
    """Print `words` in a style, wrapped between words; only the first line keeps leading blanks."""
    from rich.text import Text

    for line in _text(words).wrap(screen, screen.width):
        screen.print(Text(line.plain.rstrip(), style), soft_wrap=True)


def _table(screen: Console, table: Table) -> None:
    """Print the widest layout of a table that fits the screen, else the narrowest.

    Figures are never cut: without its last digits a figure would be wrong.
    """
    if table.title:
        _print(screen, table.title, "bold")
    for lines in _forms(table, screen.width):
        width = max(line.cell_len for line in lines)
        if width <= screen.width:
            break
    for line in lines:
        screen.print(line, soft_wrap=True)
    if table.note:
        _print(screen, table.note, "dim italic")


def _forms(table: Table, width: int) -> Iterator[list[Text]]:
    """Yield the table's lines in ever narrower layouts: no bars, small gaps, folded names."""
    cells = replace(
        table,
        columns=tuple(map(one_line, table.columns)),
        rows=tuple(tuple(map(one_line, row)) for row in table.rows),
    )
    figures = [at for at, title in enumerate(table.columns) if title or not at]
    plain = replace(
        cells,
        columns=tuple(cells.columns[at] for at in figures),
        rows=tuple(tuple(row[at] for at in figures) for row in cells.rows),
        words=tuple(figures.index(at) for at in cells.words),
    )
    yield _lines(cells, _GAP)
    yield _lines(plain, _GAP)
    yield _lines(plain, 2)
    yield _lines(plain, 2, stacked=True)
    yield _lines(plain, 1, stacked=True)
    natural = max(line.cell_len for line in _lines(plain, 1, stacked=True))
    yield _lines(plain, 1, stacked=True, narrower=natural - width)


def _lines(table: Table, gap: int, *, stacked: bool = False, narrower: int = 0) -> list[Text]:
    """Return the lines of the table with `gap` blanks between columns.

    `stacked` puts each word of a title on its own line. The first column is up to `narrower`
    characters narrower than its longest name; longer names wrap.
    """
    from rich.cells import cell_len
    from rich.text import Text

    titles = [title.split() if stacked else [title] for title in table.columns]
    height = max(len(words) for words in titles)
    head = [
        [*[""] * (height - len(words)), *words] if at else [*words, *[""] * (height - len(words))]
        for at, words in enumerate(titles)
    ]
    names = [row[0] for row in table.rows]
    first = max(map(cell_len, [*head[0], *names]), default=0)
    longest_word = max(
        (cell_len(word) for name in [*head[0], *names] for word in name.split()), default=0
    )
    first = max(first - max(narrower, 0), longest_word)
    widths = [
        first,
        *(
            max(map(cell_len, [*head[at], *(row[at] for row in table.rows)]), default=0)
            for at in range(1, len(table.columns))
        ),
    ]
    is_left = [not at or not title or at in table.words for at, title in enumerate(table.columns)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell + " " * (width - cell_len(cell))
            if is_left[at]
            else " " * (width - cell_len(cell)) + cell
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return (" " * gap).join(padded).rstrip()

    made = [Text(line([words[at] for words in head]), "bold") for at in range(height)]
    made.append(Text("─" * (sum(widths) + gap * (len(widths) - 1)), "dim"))
    for row in table.rows:
        folded = _folded(row[0], first)
        made += [Text(line([part, *[""] * (len(row) - 1)])) for part in folded[:-1]]
        made.append(Text(line([folded[-1], *row[1:]])))
        for answer in _COLOURS.keys() & set(row):
            made[-1].highlight_words([answer], _COLOURS[answer])
    return made


def _folded(name: str, width: int) -> list[str]:
    """Return a name in lines of at most `width` columns, if no word is longer: words stay whole."""
    from rich.cells import cell_len

    lines = [""]
    for word in name.split(" ") if cell_len(name) > width else [name]:
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(one_line(text), style)
