"""A bar on a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import re
import sys
from typing import Literal

import pytest

from kvscope.cli import diagnostics, output
from kvscope.cli.terminal import Terminal
from tests.cli.shell import Streams


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
