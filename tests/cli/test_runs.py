"""`kvscope runs`: what simulate kept is listed, compared, and removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.report import stored
from kvscope.report.report import Report
from kvscope.store import traces
from kvscope.store.db import open_store
from tests.cli.replayed import simulated, write_trace
from tests.cli.shell import Streams, streams_of


@pytest.fixture
def db(tmp_path: Path, capsys: Streams) -> str:
    """Return a store with two traces; over the first, lru and belady at two capacities."""
    path = str(tmp_path / "store.duckdb")
    other = str(write_trace(tmp_path, "other"))
    streams_of(capsys, "ingest", other, "--db", path)
    first = write_trace(tmp_path)
    first.write_text(first.read_text() + "\n")
    asked = ("--policy", "lru,belady", "--capacity-blocks", "1,2")
    simulated(capsys, str(first), "--db", path, *asked)
    return path


def listed(capsys: Streams, *arguments: str) -> list[dict[str, Any]]:
    """Return the runs in the JSON document of `kvscope runs` with these arguments."""
    code = run(["runs", *arguments, "--json"])
    written = capsys.readouterr()
    assert code == 0, written.err
    found: list[dict[str, Any]] = json.loads(written.out)["runs"]
    return found


def test_what_was_simulated_is_listed(db: str, capsys: Streams) -> None:
    """Side by side: by capacity, then by policy; with what was counted and when it was made."""
    found = listed(capsys, "--db", db)
    assert [(one["capacity_blocks"], one["policy"]) for one in found] == [
        (1, "lru"),
        (1, "belady"),
        (2, "lru"),
        (2, "belady"),
    ]
    assert found[0]["definition"]["weight"] == "token"
    assert found[0]["kvscope"]
    assert found[0]["created_at"]
    assert found[0]["categories"]
    assert found == listed(capsys, "list", "tiny", "--db", db)
    assert found[::2] == listed(capsys, "tiny", "--db", db, "--policy", "lru")


def test_the_table_puts_settings_apart(db: str, capsys: Streams) -> None:
    """Runs under another SLO stand in a section of their own; hindsight is marked."""
    simulated(
        capsys, "tiny", "--db", db, *("--policy", "lru", "--capacity-blocks", "2", "--slo", "1s")
    )
    told = streams_of(capsys, "runs", "tiny", "--db", db, "--model", "vicuna-7b").out
    assert "tiny, SLO 1 s" in told
    assert told.count("Counted: token-weighted") == 2
    assert "belady*" in told
    assert "0.5 GiB" in told


def test_the_deployment_of_a_run_is_shown(db: str, capsys: Streams) -> None:
    """What was stated, in words above the table and key by key in the document; studies apart."""
    stated = ["--num-gpu-blocks", "99", "--latency", "llama2-7b-a100", "--tp", "2", "--gpu-hour"]
    for price in ("2", "3"):  # the second time it is in the store already
        code = run(["simulate", "--db", db, "--policy", "lru", *stated, price])
        assert code == 0, capsys.readouterr().err
    capsys.readouterr()
    run(["runs", "--db", db, "--json"])
    found = json.loads(capsys.readouterr().out)["runs"]
    deployed = [one["deployment"] for one in found if one["deployment"]]
    assert deployed == [
        {
            "tp": 2,
            "engine": "vllm@0.33",
            "num_gpu_blocks": 99,
            "latency": "llama2-7b-a100",
            "gpu_hour": 3.0,
        }
    ]
    assert len(found) > 1
    run(["runs", "--db", db])
    assert capsys.readouterr().out.count("Deployment: one engine, vllm@0.33.") == 1


def test_runs_are_removed_by_policy_or_all(db: str, capsys: Streams) -> None:
    """Which ones has to be said; the trace stays."""
    assert run(["runs", "remove", "tiny", "--db", db]) == 2
    assert "give --policy, --all or --reports" in capsys.readouterr().err
    assert run(["runs", "remove", "tiny", "--db", db, "--policy", "belady"]) == 0
    assert "removed 2 runs of 'tiny'" in capsys.readouterr().err
    assert {one["policy"] for one in listed(capsys, "tiny", "--db", db)} == {"lru"}
    assert run(["runs", "remove", "--all", "--db", db]) == 0
    assert "kvscope simulate" in streams_of(capsys, "runs", "--db", db).err


def test_reports_are_listed_and_removed(db: str, capsys: Streams) -> None:
    """With the runs of their trace, but for `--policy`; they are removed apart from runs."""
    with open_store(db) as store:
        for trace in traces.all_traces(store):
            found = Report("kvscope tune", trace, dict, list, list)
            stored.keep(store, found, 1.5, summary=f"Keep LRU for {trace.name}.")
    shown = streams_of(capsys, "runs", "tiny", "--db", db).out
    assert "UTC: Keep LRU for tiny." in shown
    assert "other" not in shown
    (report,) = json.loads(streams_of(capsys, "runs", "tiny", "--db", db, "--json").out)["reports"]
    assert (report["command"], report["duration_s"]) == ("kvscope tune", 1.5)
    assert "Keep LRU" not in streams_of(capsys, "runs", "tiny", "--db", db, "--policy", "lru").out
    streams_of(capsys, "runs", "remove", "tiny", "--db", db, "--reports", "--all", code=2)
    assert run(["runs", "remove", "tiny", "--db", db, "--reports"]) == 0
    assert "removed 1 report of 'tiny'" in capsys.readouterr().err
    assert len(listed(capsys, "tiny", "--db", db)) == 4
    with open_store(db) as store:
        assert [report.trace for report in stored.all_reports(store)] == ["other"]


def test_a_trace_takes_its_runs_along(db: str, capsys: Streams) -> None:
    """Removing a trace removes its runs, and no others."""
    assert "no such runs" in streams_of(capsys, "runs", "other", "--db", db).err
    simulated(capsys, "other", "--db", db, "--policy", "lru", "--capacity-blocks", "2")
    streams_of(capsys, "traces", "remove", "tiny", "--db", db)
    assert [one["policy"] for one in listed(capsys, "other", "--db", db)] == ["lru"]
    assert run(["runs", "tiny", "--db", db]) == 3
