"""A decoder in another process: it may talk as it likes, hang, or die."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from kvscope.core.errors import EngineError
from kvscope.latency.calibration import Cell
from kvscope.latency.targets import TorchTarget
from kvscope.serving.interpreter import Interpreter


def target(folder: Path, code: str, start_s: float = 30.0, timeout_s: float = 30.0) -> TorchTarget:
    """Return a target whose interpreter runs this code instead."""
    script = folder / "python"
    body = folder / "decoder.py"
    body.write_text("import sys, time, json\n" + code)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{body}"\n')
    script.chmod(0o755)
    has = Interpreter(str(script), None, None, "2", "cpu", "a test")
    return TorchTarget(has, folder / "config.json", None, start_s=start_s, timeout_s=timeout_s)


def test_a_decoder_that_talks_does_not_block(tmp_path: Path) -> None:
    """Half a megabyte of warnings before each answer: more than any pipe holds."""
    code = """
def answer(what):
    sys.stderr.write("a warning\\n" * 50_000)
    print(json.dumps(what), flush=True)
answer({"device": "cpu"})
for line in sys.stdin:
    answer({"seconds": sum(json.loads(line).values()) / 1000})
"""
    with target(tmp_path, code) as decoder:
        assert decoder.description == {"device": "cpu"}
        assert decoder.read(Cell(64, 256)).ttft_s == 0.32
        assert decoder.read(Cell(64, 0)).ttft_s == 0.064


@pytest.mark.parametrize(("ready", "limits"), [(False, (0.5, 30.0)), (True, (30.0, 0.5))])
def test_a_decoder_that_hangs_is_given_up(
    tmp_path: Path, ready: bool, limits: tuple[float, float]
) -> None:
    """At the start and at a cell, after the time that each of them has."""
    code = f"print('{{}}', flush=True) if {ready} else None; time.sleep(600)"
    before = time.monotonic()
    with (
        pytest.raises(EngineError, match=r"torch: no answer within 0\.5 s; .*--timeout"),
        target(tmp_path, code, *limits) as decoder,
    ):
        decoder.read(Cell(64, 0))
    assert time.monotonic() - before < 20


def test_the_last_line_says_why_it_died(tmp_path: Path) -> None:
    """As the process wrote it."""
    code = "sys.stderr.write('RuntimeError: out of memory\\n'); sys.exit(3)"
    with pytest.raises(EngineError, match="torch: RuntimeError: out of memory"):
        target(tmp_path, code).__enter__()
    with pytest.raises(EngineError, match="ended with status 3"):
        target(tmp_path, "sys.exit(3)").__enter__()
