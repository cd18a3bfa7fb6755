"""The whole document of `analyze --json` on a sample, as it was when last reviewed.

`KVSCOPE_GOLDEN=write pytest tests/golden` writes it again: look at the difference first.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.files import data_folder

GOLDEN = Path(__file__).parent / "birth-death.json"
SAMPLE = str(data_folder("sample_traces") / "birth-death.jsonl.gz")
SHOWN = 3  # items at either end of a long list


def shortened(value: Any) -> Any:
    """Return the document with long lists as their length and ends, numbers to nine digits."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        items = [shortened(inner) for inner in value]
        return items if len(items) <= 4 * SHOWN else [len(items), *items[:SHOWN], *items[-SHOWN:]]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def missing(golden: Any, actual: Any, place: str = "$") -> list[str]:
    """Return where `actual` lacks what is in `golden`; it may have more keys."""
    if isinstance(golden, dict) and isinstance(actual, dict):
        absent = [f"{place}.{name} is gone" for name in golden.keys() - actual.keys()]
        both = (name for name in golden if name in actual)
        inner = (missing(golden[name], actual[name], f"{place}.{name}") for name in both)
        return sum(inner, absent)
    if isinstance(golden, list) and isinstance(actual, list) and len(golden) == len(actual):
        pairs = enumerate(zip(golden, actual, strict=True))
        return [gap for at, (old, new) in pairs for gap in missing(old, new, f"{place}[{at}]")]
    if isinstance(golden, float) and isinstance(actual, float):
        same = math.isclose(golden, actual, rel_tol=1e-6, abs_tol=1e-12)
    else:
        same = golden == actual
    return [] if same else [f"{place}: {golden!r} became {actual!r}"]


def test_the_document_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Every number stays; keys may be added, never removed."""
    options = ("--model", "vicuna-7b", "--hbm", "24GiB", "--capacity-blocks", "1000")
    assert run(["analyze", SAMPLE, "--db", ":memory:", "--json", *options]) == 0
    actual = shortened(json.loads(capsys.readouterr().out))
    del actual["kvscope"]  # the version
    if os.environ.get("KVSCOPE_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
    assert missing(json.loads(GOLDEN.read_text(encoding="utf-8")), actual) == []
