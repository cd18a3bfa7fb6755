"""`kvscope analyze` as its user sees it: stdout, stderr, exit codes, the JSON contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run

BLOCK = 512


def mooncake(path: Path, rows: list[tuple[int, int, int, list[int]]]) -> Path:
    """Return a mooncake trace of (timestamp ms, input, output, hash ids)."""
    lines = [
        json.dumps(
            dict(zip(("timestamp", "input_length", "output_length", "hash_ids"), row, strict=True))
        )
        for row in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two blocks, a stranger's block, the two again with two more: 2 of 7 full blocks hit."""
    return mooncake(
        tmp_path / "tiny.jsonl",
        [
            (0, 2 * BLOCK, 10, [1, 2]),
            (1000, BLOCK, 10, [3]),
            (3000, 4 * BLOCK, 10, [1, 2, 4, 5]),
        ],
    )


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON document of `kvscope analyze` with these arguments."""
    code = run(["analyze", *arguments, "--db", ":memory:", "--json"])
    written = capsys.readouterr()
    assert code == 0, written.err
    document: dict[str, Any] = json.loads(written.out)
    return document


def test_the_document_keeps_its_contract(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts depend on these keys; they may only grow."""
    document = analyzed(capsys, str(trace))
    assert document["command"] == "analyze"
    assert document["schema"] == 1
    assert document["trace"] == {
        "name": "tiny",
        "format": "mooncake",
        "block_size": BLOCK,
        "requests": 3,
        "accesses": 7,
        "distinct_blocks": 5,
        "span_s": 3.0,
        "input_tokens": 7 * BLOCK,
        "output_tokens": 30,
        "lineage": "inferred",
        "bad_lines": 0,
        "models": 0,
        "adapters": 0,
        "salts": 0,
        "tenants": 1,
        "workers": 0,
        "measured_requests": 0,
    }
    assert {"skew", "spatial", "working_set"} <= set(document)
    assert {
        "definition",
        "weight",
        "window",
        "partial",
        "last_token_rule",
        "ideal",
    } <= set(document["hit_rates"][0])
    category = document["categories"][0]
    assert {"category", "requests", "share", "multi_turn_share", "hit_share"} <= set(category)
    assert set(category["lifetime_s"]) == {"p50", "p80", "p90", "p99"}
    assert {"capacity_blocks", "capacity_bytes", "token_hit_rate"} <= set(document["curve"][0])


def test_the_hit_rate_is_the_hand_computed_one(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of seven blocks are hit, at three blocks of capacity and not at one."""
    document = analyzed(capsys, str(trace), "--capacity-blocks", "1,2,3")
    assert document["ideal_hit_rate"] == pytest.approx(2 / 7)
    rates = [point["token_hit_rate"] for point in document["asked"]]
    assert rates == pytest.approx([0, 1 / 7, 2 / 7])


def test_a_model_turns_blocks_into_bytes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Vicuna-7B keeps 524,288 bytes a token: a block of 512 is 256 MiB."""
    document = analyzed(
        capsys,
        str(trace),
        *("--model", "vicuna-7b", "--hbm", "1GiB", "--capacity", "512MiB"),
    )
    (asked,) = document["asked"]
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


def test_lengths_alone_give_what_they_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A length-only trace is analyzed, and what is missing is said."""
    path = tmp_path / "lengths.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    assert run(["analyze", str(path), "--db", ":memory:"]) == 0
    assert "without block hashes nothing can be said" in capsys.readouterr().out
    document = analyzed(capsys, str(path))
    assert document["curve"] == []
    assert document["ideal_hit_rate"] is None
    assert document["lengths"]["input_tokens"]["mean"] == pytest.approx(385)


def test_one_request_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace of one request has no span and no reuse, and is analyzed all the same."""
    path = mooncake(tmp_path / "one.jsonl", [(0, 700, 5, [1, 2])])
    assert run(["analyze", str(path), "--db", ":memory:"]) == 0
    assert "An infinite cache would hit 0.0%" in capsys.readouterr().out


def test_a_new_trace_and_a_stored_one_are_told_alike(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is begun while a trace is stored comes to the same as what is asked of the store."""
    db = str(tmp_path / "store.duckdb")
    found = []
    for _ in range(2):
        assert run(["analyze", str(trace), "--db", db, "--json", "--capacity-blocks", "2"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["asked"][0]["capacity_blocks"] == 2


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


def test_the_last_trace_is_taken_up_again(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name, the trace last worked on is analyzed, and stderr says which."""
    db = str(tmp_path / "store.duckdb")
    assert run(["ingest", str(trace), "--db", db]) == 0
    assert run(["analyze", "--db", db, "--json"]) == 0
    written = capsys.readouterr()
    assert "working on 'tiny'" in written.err


def test_the_report_is_one_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--html` writes the page beside the terminal's report."""
    target = tmp_path / "report.html"
    assert run(["analyze", str(trace), "--db", ":memory:", "--html", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"report written to {target}" in capsys.readouterr().err
