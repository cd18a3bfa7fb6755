"""What docs/tune.md and the README say of `kvscope tune` is what the program prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder

ROOT = Path(__file__).parents[2]
SAMPLE = str(data_folder("sample_traces") / "birth-death.jsonl.gz")
ASKED = ["tune", SAMPLE, "--slo", "100ms", "--db", ":memory:", "--output", "-"]


@pytest.fixture(scope="module")
def printed() -> str:
    """Run the pages' command and return its output in one line."""
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert run(ASKED) == 0
    return " ".join(stdout.getvalue().split())


@pytest.mark.parametrize(("page", "first"), [("docs/tune.md", "Switch"), ("README.md", "Recomm")])
def test_the_excerpt_stands_in_the_output(printed: str, page: str, first: str) -> None:
    """The page's block is part of what the program prints."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```\n({first}.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert " ".join(block.split()) in printed


def test_the_flags_of_the_readme_are_the_programs(printed: str) -> None:
    """The flags that the README quotes are those that are printed."""
    (flags,) = re.findall(r"`(--radix-eviction-policy .*?)`", (ROOT / "README.md").read_text())
    assert flags in printed
