"""Tables on terminals of any width."""

from __future__ import annotations

import re
import sys

import pytest

from kvscope.cli.output import show_sections, show_table
from kvscope.report.section import Section, Table
from tests.cli.shell import Streams

TABLE = Table(
    "A title",
    ("capacity", "tokens", "hit rate", ""),
    (("25% of ideal", "1,234,567,890", "45.00%", "█" * 20), ("all of it", "2", "100.00%", "")),
)


WIDE = Table(
    "Seven columns",
    (*("definition", "partial block", "last-token rule"), *("outputs carried",) * 3, ""),
    (("outputs ignored", *("1,234,567",) * 5, "█" * 20),),
    note="a sentence that is longer than any table is wide " * 4,
)


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Make stdout a terminal of this width; in a fixture it would be another stdout."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("table", [TABLE, WIDE])
def test_no_figure_loses_its_digits(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch, columns: int, table: Table
) -> None:
    """A table too wide for the terminal keeps its figures whole; the terminal may break lines."""
    on_terminal(monkeypatch, columns)
    show_table(table)
    lines = capsys.readouterr().out.splitlines()
    for row in table.rows:
        assert any(re.search(r"\s+".join(row[1:-1]), line) for line in lines)


@pytest.mark.parametrize("columns", [61, 80, 200])
@pytest.mark.parametrize("table", [TABLE, WIDE])
def test_a_table_gives_way_to_a_narrow_terminal(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch, columns: int, table: Table
) -> None:
    """Bars go first, then room between columns, then the names fold; so does the note."""
    on_terminal(monkeypatch, columns)
    show_table(table)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(len(line) for line in out.splitlines()) <= columns
    assert ("█" in out) is (columns == 200 or (columns == 80 and table is TABLE))
    assert out.split()[-len(table.note.split()) :] == table.note.split() or not table.note


def test_what_a_trace_says_cannot_steer_the_terminal(capsys: Streams) -> None:
    """Escape codes and line feeds of a trace are shown, not obeyed, wherever they stand."""
    wild = "a\x1b[31m\r\nb\u202e"
    shown = "a\\x1b[31m b\\u202e"
    table = Table(wild, (wild, wild), ((wild, wild),), note=wild)
    show_sections([Section(wild, sentences=(wild,), tables=(table,), plot=(wild,))])
    out = capsys.readouterr().out
    assert not set("\x1b\r\u202e") & set(out)
    assert out.count(shown) == 9


def test_whether_the_slo_is_met_has_a_colour(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Green and red on a terminal that has colours; what is uncertain has none."""
    on_terminal(monkeypatch, 80)
    rows = (("lru", "misses"), ("2 replicas", "meets"), ("gittins", "meets?"))
    show_table(Table("", ("option", "SLO"), rows, words=(1,)))
    printed = capsys.readouterr().out
    assert "\x1b[31mmisses" in printed
    assert "\x1b[32mmeets\x1b" in printed
    assert "mmeets?" not in printed
