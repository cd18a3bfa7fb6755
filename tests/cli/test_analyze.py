"""`kvscope analyze` as its user sees it: stdout, stderr and the hand-computed numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from tests.cli.replayed import write_trace
from tests.cli.shell import document


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two blocks, a stranger's block, the two again with two more: 2 of 7 full blocks hit."""
    return write_trace(tmp_path)


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope analyze` with these arguments."""
    return document(capsys, "analyze", *arguments, "--db", ":memory:")


def test_the_hit_rate_is_the_hand_computed_one(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of seven blocks are hit, at three blocks of capacity and not at one."""
    found = analyzed(capsys, str(trace), "--capacity-blocks", "1,2,3")
    assert found["ideal_hit_rate"] == pytest.approx(2 / 7)
    rates = [point["token_hit_rate"] for point in found["asked"]]
    assert rates == pytest.approx([0, 1 / 7, 2 / 7])


def test_a_model_turns_blocks_into_bytes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Vicuna-7B keeps 524,288 bytes a token: a block of 512 is 256 MiB."""
    found = analyzed(
        capsys,
        str(trace),
        *("--model", "vicuna-7b", "--hbm", "1GiB", "--capacity", "512MiB"),
    )
    (asked,) = found["asked"]
    assert asked["capacity_blocks"] == 2
    assert asked["capacity_bytes"] == 2**29
    assert asked["hbm_multiple"] == 0.5


def test_other_tools_definitions_are_reproduced(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """libCacheSim counts blocks; kvcache-simulator the last half of the requests' tokens."""
    flat = analyzed(capsys, str(trace), "--compat", "libcachesim")
    assert flat["ideal_hit_rate"] == pytest.approx(2 / 7)
    last_half = analyzed(capsys, str(trace), "--compat", "kvcache-simulator")
    assert last_half["ideal_hit_rate"] == pytest.approx(2 / 5)


def test_data_on_stdout_talk_on_stderr(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report goes to stdout; what was inferred is said on stderr."""
    assert run(["analyze", str(trace), "--db", ":memory:"]) == 0
    written = capsys.readouterr()
    assert "An infinite cache would hit 28.6%" in written.out
    assert "conversations are inferred" in written.err
    assert "note:" not in written.out


def test_a_capacity_of_nothing_is_told_once_the_trace_is_stored(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mistake costs no second reading."""
    db = str(tmp_path / "store.duckdb")
    asked = ["analyze", str(trace), "--db", db, "--model", "llama2-7b", "--capacity", "1KiB"]
    assert run(asked) == 2
    assert "--capacity: holds not one block" in capsys.readouterr().err
    assert run(["traces", "--db", db]) == 0
    assert trace.stem in capsys.readouterr().out


@pytest.mark.parametrize("command", ["analyze", "explain"])
def test_a_pool_without_a_latency_is_enough_for_hits(
    trace: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """As with the preset stated; what times requests still has to be named."""
    pool = (str(trace), "--model", "qwen2.5-7b", "--num-gpu-blocks", "15336", "--db", ":memory:")
    found = document(capsys, command, *pool)
    assert found == document(capsys, command, *pool, "--latency", "llama2-7b-a100")
    assert run(["simulate", *pool]) == 2
    assert "the latency is unknown" in capsys.readouterr().err
