"""What docs/fleets.md shows is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder

PAGE = (Path(__file__).parents[2] / "docs" / "fleets.md").read_text(encoding="utf-8")
SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")


def test_the_excerpt_stands_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    """The page's command prints the answer and the table that the page shows."""
    (command,) = re.findall(r"^    kvscope (fleet sample_traces.*)$", PAGE, re.MULTILINE)
    (block,) = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    words = command.replace("sample_traces/to-c.jsonl.gz", SAMPLE).split()
    assert run([*words, "--db", ":memory:"]) == 0
    printed = capsys.readouterr().out
    assert "fewest that meet" in block
    assert block in printed
