"""Bars for people on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys

import pytest

from kvscope.cli import diagnostics, output
from kvscope.cli.progress import progress
from tests.cli.shell import Streams


def test_no_progress_in_a_pipe(capsys: Streams) -> None:
    """A log stays free of bars."""
    with progress("reading", total=10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [10, None])
def test_progress_on_a_terminal(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch, total: int | None
) -> None:
    """The bar is on stderr, data printed meanwhile stays on stdout."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("reading [a].jsonl", total=total) as advance:
        advance(5)
        output.emit("data")
        diagnostics.note("halfway")
    out, err = capsys.readouterr()
    assert out == "data\n"
    assert "reading [a].jsonl" in err
    assert "halfway" in err
