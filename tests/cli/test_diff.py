"""`kvscope diff`: traces, runs and recommendations, what differs, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.cli.app import run
from kvscope.core.files import data_folder
from tests.cli import shell
from tests.cli.replayed import simulated, write_profile, write_trace
from tests.cli.shell import Streams, streams_of

ROOT = Path(__file__).parents[2]
BEFORE = ROOT / "tests" / "written_before"
TLRU, GITTINS = (str(BEFORE / f"recommendation-{name}.toml") for name in ("tlru", "gittins"))


def compared(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the document of `kvscope diff`."""
    return shell.document(capsys, "diff", *arguments)


def test_two_traces(tmp_path: Path, capsys: Streams) -> None:
    """Shares change in points, amounts relative; hits stand before capacity and traffic."""
    first, other = write_trace(tmp_path), write_trace(tmp_path, "other")
    rows = other.read_text().splitlines()
    other.write_text("\n".join([*rows, rows[-1].replace("3000", "4000")]))
    store = ("--db", str(tmp_path / "k.duckdb"))
    document = compared(capsys, str(first), str(other), *store)
    facts = {fact["name"]: fact for fact in document["differences"]}
    ideal = facts["ideal hit rate"]
    assert (ideal["left"], ideal["right"]) == (pytest.approx(2 / 7), pytest.approx(5 / 11))
    assert ideal["change"] == pytest.approx(5 / 11 - 2 / 7)
    assert facts["requests"]["change"] == pytest.approx(4 / 3 - 1)
    topics = [fact["topic"] for fact in document["differences"]]
    assert topics == sorted(topics, key=["ideal", "capacity", "traffic"].index)
    assert {trace["name"] for trace in document["traces"]} == {"tiny", "other"}
    assert run(["diff", "tiny", "other", *store]) == 0  # by their names in the store
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny and other: ")
    assert lines[5].split() == ["ideal", "hit", "rate", "28.6%", "45.5%", "+16.9", "pp"]
    assert run(["diff", "tiny", "tiny", *store]) == 0
    assert re.fullmatch(r"tiny and tiny: all \d+ figures are the same.\n", capsys.readouterr().out)


def test_two_runs(tmp_path: Path, capsys: Streams) -> None:
    """By their numbers in `kvscope runs`: by capacity, hits and times, worked out by hand."""
    profile = ("--latency", str(write_profile(tmp_path)), "--policy", "lru")
    store = ("--db", str(tmp_path / "k.duckdb"))
    trace = str(write_trace(tmp_path))
    for blocks in ("1", "3"):
        simulated(capsys, trace, *store, *profile, "--capacity-blocks", blocks)
    run(["runs", "tiny", *store, "--json"])
    known = json.loads(capsys.readouterr().out)["runs"]
    numbers = {each["capacity_blocks"]: each["run_id"] for each in known}
    names = f"run:{numbers[1]}", f"run:{numbers[3]}"
    document = compared(capsys, *names, *store)
    (hits, capacity, *_) = document["differences"]
    assert (hits["name"], hits["left"], hits["right"]) == ("hit rate", 0, pytest.approx(2 / 7))
    assert capacity["name"] == "evictions (blocks)" or capacity["change"] == 2.0
    (shares, times) = document["by_category"]
    assert (shares["name"], times["name"]) == ("Hit rate", "p95 TTFT")
    assert run(["diff", *names, *store, "--html", str(tmp_path / "diff.html"), "--full"]) == 0
    assert "Hit rate over time" in (tmp_path / "diff.html").read_text()
    assert "p95 TTFT" in capsys.readouterr().out


def test_two_recommendations(capsys: Streams) -> None:
    """Policy and parameters in the table, flags in sentences; no store is needed."""
    document = compared(capsys, TLRU, GITTINS, "--db", ":memory:")
    facts = {fact["name"]: (fact["left"], fact["right"]) for fact in document["differences"]}
    assert facts["policy"] == ("tlru", "gittins")
    assert facts["xi_tokens"] == ("57", "512")
    assert facts["sglang flags"][0].startswith("--radix-eviction-policy tlru")
    assert "hit rate" in {fact["name"] for fact in document["same"]}
    assert kvscope.diff(TLRU, GITTINS).to_dict() == document
    assert len(kvscope.diff(TLRU, GITTINS).to_polars()) == len(facts)
    out = streams_of(capsys, "diff", TLRU, GITTINS, "--db", ":memory:").out
    assert "sglang flags, recommendation-tlru.toml: --radix-eviction-policy tlru" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The command of docs/ci.md runs as it stands there."""
    monkeypatch.chdir(tmp_path)
    sample = (data_folder("sample_traces") / "regime-change.jsonl.gz").read_bytes()
    lines = gzip.decompress(sample).splitlines(keepends=True)
    for day, part in (("monday", lines[:300]), ("tuesday", lines[-300:])):
        Path(f"{day}.jsonl.gz").write_bytes(gzip.compress(b"".join(part)))
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    kvscope (diff .*)$", page, re.MULTILINE)
    assert run([*shlex.split(command), "--db", ":memory:"]) == 0
    out = capsys.readouterr().out
    assert "monday and tuesday: 5 of 14 figures differ by more than chance" in out
    assert "mean input tokens " in out.partition("Differences ─")[2]


def test_what_chance_explains_is_no_difference(tmp_path: Path, capsys: Streams) -> None:
    """Two seeds of one profile are the same traffic; the halves of `test_the_page` are not."""
    paths = []
    for seed in ("1", "2"):
        paths.append(str(tmp_path / f"to-c-{seed}.jsonl"))
        assert run(["synth", "to-c", "-n", "400", "--seed", seed, "-o", paths[-1]]) == 0
    capsys.readouterr()
    same = compared(capsys, *paths, "--db", str(tmp_path / "k.duckdb"))
    assert same["differences"] == []
    changed = [fact for fact in same["same"] if fact["left"] != fact["right"]]
    assert len(changed) > 8
    assert all(abs(fact["change"]) <= fact["noise"] for fact in changed)
