"""The whole document of `analyze --json` on a sample, as it was when it was last looked through.

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
    """Long lists by their length and their ends, numbers to nine digits."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        kept = [shortened(inner) for inner in value]
        return kept if len(kept) <= 4 * SHOWN else [len(kept), *kept[:SHOWN], *kept[-SHOWN:]]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def missing(golden: Any, found: Any, place: str = "$") -> list[str]:
    """Where `found` lacks what is in `golden`; it may have more keys."""
    if isinstance(golden, dict) and isinstance(found, dict):
        absent = [f"{place}.{name} is gone" for name in golden.keys() - found.keys()]
        both = (name for name in golden if name in found)
        inner = (missing(golden[name], found[name], f"{place}.{name}") for name in both)
        return sum(inner, absent)
    if isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        pairs = enumerate(zip(golden, found, strict=True))
        return [one for at, (old, new) in pairs for one in missing(old, new, f"{place}[{at}]")]
    if isinstance(golden, float) and isinstance(found, float):
        same = math.isclose(golden, found, rel_tol=1e-6, abs_tol=1e-12)
    else:
        same = golden == found
    return [] if same else [f"{place}: {golden!r} became {found!r}"]


def test_the_document_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Every number of it; keys may be added, never taken away."""
    options = ("--model", "vicuna-7b", "--hbm", "24GiB", "--capacity-blocks", "1000")
    assert run(["analyze", SAMPLE, "--db", ":memory:", "--json", *options]) == 0
    found = shortened(json.loads(capsys.readouterr().out))
    del found["kvscope"]  # the version
    if os.environ.get("KVSCOPE_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert missing(json.loads(GOLDEN.read_text(encoding="utf-8")), found) == []
