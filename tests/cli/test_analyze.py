"""`kvscope analyze` and `retention` as their user sees them: hand-computed numbers, agreement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.replayed import write_trace
from tests.cli.shell import Streams, document, streams_of


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two blocks, a stranger's block, the two again with two more: 2 of 7 full blocks hit."""
    return write_trace(tmp_path)


def analyzed(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope analyze` with these arguments."""
    return document(capsys, "analyze", *arguments, "--db", ":memory:")


def test_other_tools_definitions_are_reproduced(trace: Path, capsys: Streams) -> None:
    """libCacheSim counts blocks; kvcache-simulator the last half of the requests' tokens."""
    flat = analyzed(capsys, str(trace), "--compat", "libcachesim")
    assert flat["ideal_hit_rate"] == pytest.approx(2 / 7)
    last_half = analyzed(capsys, str(trace), "--compat", "kvcache-simulator")
    assert last_half["ideal_hit_rate"] == pytest.approx(2 / 5)


def test_data_on_stdout_talk_on_stderr(trace: Path, capsys: Streams) -> None:
    """The report goes to stdout; what was inferred is said on stderr."""
    written = streams_of(capsys, "analyze", str(trace), "--db", ":memory:")
    assert "An infinite cache would hit 28.6%" in written.out
    assert "conversations are inferred" in written.err
    assert "note:" not in written.out


def test_a_capacity_of_nothing_is_told_once_the_trace_is_stored(
    trace: Path, tmp_path: Path, capsys: Streams
) -> None:
    """The mistake costs no second reading."""
    db = str(tmp_path / "store.duckdb")
    asked = ["analyze", str(trace), "--db", db, "--model", "llama2-7b", "--capacity", "1KiB"]
    assert "--capacity: holds not one block" in streams_of(capsys, *asked, code=2).err
    assert trace.stem in streams_of(capsys, "traces", "--db", db).out


@pytest.mark.parametrize("command", ["analyze", "explain"])
def test_a_pool_without_a_latency_is_enough_for_hits(
    trace: Path, capsys: Streams, command: str
) -> None:
    """As with the preset stated; what times requests still has to be named."""
    pool = (str(trace), "--model", "qwen2.5-7b", "--num-gpu-blocks", "15336", "--db", ":memory:")
    found = document(capsys, command, *pool)
    assert found == document(capsys, command, *pool, "--latency", "llama2-7b-a100")
    assert "the latency is unknown" in streams_of(capsys, "simulate", *pool, code=2).err
