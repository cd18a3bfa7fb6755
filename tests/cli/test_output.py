"""What goes to stdout, JSON and tables on terminals of any width; progress on stderr."""

from __future__ import annotations

import json
import re
import sys
from typing import Literal

import pytest

from kvscope.cli import diagnostics, output
from kvscope.cli.output import show_sections, show_table
from kvscope.cli.terminal import Terminal
from kvscope.core.trace import Trace
from kvscope.report.section import Section, Table
from kvscope.usecases.catalog import StoredTrace
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
TRACE = Trace(
    trace_id=3,
    name="conv",
    source="conv.jsonl",
    format="mooncake",
    block_size=512,
    requests=2,
    accesses=5,
    distinct_blocks=4,
    span_s=1.5,
    input_tokens=2048,
    output_tokens=7,
    lineage="inferred",
    has_users=False,
    lines=2,
    bad_lines=0,
    out_of_order=0,
    notes=(),
)


def test_a_line_stays_one(capsys: Streams) -> None:
    """What a trace calls itself cannot steer the terminal or begin another line."""
    output.emit("a\x1b[31m\nb: 3 blocks")
    assert capsys.readouterr().out == "a\\x1b[31m b: 3 blocks\n"


def test_json_document(capsys: Streams) -> None:
    """A document is indented JSON, and ends its line."""
    output.emit_result("traces", {"traces": (StoredTrace(TRACE),)})
    out = capsys.readouterr().out
    assert out.endswith("\n}\n")
    assert json.loads(out)["traces"][0]["name"] == "conv"


def test_console(capsys: Streams) -> None:
    """Piped tables are 100 columns wide, and brackets in names stay what they are."""
    console = output.console()
    console.print("[bold]trace[/bold] :smile:")
    assert console.width == 100
    assert capsys.readouterr().out == "[bold]trace[/bold] :smile:\n"


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Make stdout a terminal of this width; in a fixture it would be another stdout."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [20, 40, 61, 80, 200])
@pytest.mark.parametrize("table", [TABLE, WIDE])
def test_a_table_gives_way_to_a_narrow_terminal(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch, columns: int, table: Table
) -> None:
    """Bars go first, then room between columns, then the names fold; so does the note.

    Figures stay whole where a table is too wide all the same; the terminal may break lines.
    """
    on_terminal(monkeypatch, columns)
    show_table(table)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    for row in table.rows:
        assert any(re.search(r"\s+".join(row[1:-1]), line) for line in out.splitlines())
    if columns > 60:
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


def test_short_work_in_a_pipe(capsys: Streams) -> None:
    """A log stays free of bars, and of lines on work that takes less than a few seconds."""
    with Terminal().steps("reading", total=10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [
        (8, "steps", r"replaying \\x1b\[31m: 2 of 8 \(25%\), \d+ s"),
        (2048, "bytes", r"replaying \\x1b\[31m: 2 B of 2 KiB \(0%\), \d+ s"),
        (None, "steps", r"replaying \\x1b\[31m: \d+ s"),
    ],
)
def test_long_work_in_a_pipe(
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    total: int | None,
    unit: Literal["bytes", "steps"],
    line: str,
) -> None:
    """Lines on stderr say how far the work is, and end with it."""
    monkeypatch.setattr("kvscope.cli.terminal.LINE_EVERY_S", 0.02)
    err = ""
    with Terminal().steps("replaying \x1b[31m", total, unit=unit) as advance:
        advance(2)
        while not err:  # the first line
            out, err = capsys.readouterr()
            assert out == ""
    assert re.fullmatch(line, err.splitlines()[0])


@pytest.mark.parametrize("total", [10, None])
def test_progress_on_a_terminal(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch, total: int | None
) -> None:
    """The bar is on stderr, data printed meanwhile stays on stdout."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Terminal().steps("reading [a].jsonl", total=total) as advance:
        advance(5)
        output.emit("data")
        diagnostics.note("halfway")
    out, err = capsys.readouterr()
    assert out == "data\n"
    assert "reading [a].jsonl" in err
    assert "halfway" in err
