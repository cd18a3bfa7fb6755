"""What docs/tune.md and the README say of `kvscope tune` is what the program prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import get_args

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder
from kvscope.tuning.target import HELD_OUT, VALIDATION, WARMUP, Limits
from kvscope.tuning.verdict import Verdict

ROOT = Path(__file__).parents[2]
SAMPLES = str(data_folder("sample_traces"))
TUNE = (ROOT / "docs" / "tune.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def printed() -> str:
    """Run the pages' command, the first of docs/tune.md, and return its output in one line."""
    (command,) = re.findall(r"^    kvscope (tune sample_traces.*)$", TUNE, re.MULTILINE)
    assert f"kvscope {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
    asked = command.replace("sample_traces", SAMPLES).split()
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert run([*asked, "--db", ":memory:", "--output", "-"]) == 0
    return " ".join(stdout.getvalue().split())


@pytest.mark.parametrize(("page", "first"), [("docs/tune.md", "Options"), ("README.md", "Options")])
def test_the_excerpt_stands_in_the_output(printed: str, page: str, first: str) -> None:
    """The page's block is part of what the program prints."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```\n({first}.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert " ".join(block.split()) in printed


def test_the_limits_are_the_programs() -> None:
    """The table of limits states the defaults, and every verdict is explained."""
    limits = Limits()
    for text in (
        f"at most {limits.attainment_loss * 100:g} percentage points fewer",
        f"at most {limits.tail_ratio - 1:.0%} more".replace("%", " %"),
        f"at most {limits.max_p50_regression:.0%} more".replace("%", " %"),
        f"at least {limits.min_throughput:.0%} of LRU's".replace("%", " %"),
    ):
        assert text in TUNE
    for verdict in get_args(Verdict):
        assert f"| `{verdict}` |" in TUNE


def test_the_windows_are_the_programs() -> None:
    """The table of windows states the default shares."""
    for name, share in (("warm-up", WARMUP), ("validation", VALIDATION), ("held-out", HELD_OUT)):
        assert f"| {name} | {share:.0%}".replace("%", " %") in TUNE
    assert f"| training | {1 - WARMUP - VALIDATION - HELD_OUT:.0%} |".replace("%", " %") in TUNE
