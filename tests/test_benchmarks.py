"""The benchmarks still fit the product: the trace is sound, a part runs, the workers load."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import ROOT, analyze, hybrid_harm, no_harm, tier_harm
from benchmarks.generate import BLOCK_TOKENS, records, write
from benchmarks.held_out import HeldOut, generated
from benchmarks.table import Table, record
from benchmarks.traces import TraceFile

WORKERS = ROOT / "benchmarks" / "workers"


def test_generated_trace_is_sound() -> None:
    """Requests come in order, have their blocks, and continue what their parent's turn cached."""
    requests = list(records(500, seed=1))
    by_id = {request["chat_id"]: request for request in requests}
    for before, after in pairwise(requests):
        assert before["timestamp"] <= after["timestamp"]
    for request in requests:
        assert len(request["hash_ids"]) == -(-request["input_length"] // BLOCK_TOKENS)
        parent = by_id.get(request["parent_chat_id"])
        if parent is None:
            assert request["turn"] == 1
            continue
        full = parent["input_length"] // BLOCK_TOKENS
        assert request["hash_ids"][:full] == parent["hash_ids"][:full]
        assert request["input_length"] > parent["input_length"] + parent["output_length"]
    assert any(request["turn"] > 2 for request in requests)


def test_generated_trace_is_seeded() -> None:
    """A seed gives one trace, another seed another."""
    assert list(records(50, seed=1)) == list(records(50, seed=1))
    assert list(records(50, seed=1)) != list(records(50, seed=2))


def test_record_replaces_what_was_measured(tmp_path: Path) -> None:
    """Recording a part twice keeps the rest of the page, and the later table alone."""
    page = tmp_path / "page.md"
    recorded = ROOT / "docs" / "evidence" / "benchmarks.md"
    page.write_text(recorded.read_text(encoding="utf-8"), encoding="utf-8")
    for figure in ("1.5", "2.5"):
        table = Table("speed", "One run.", ("what", "s"), [["all", figure]])
        record(page, table.markdown(), "peers")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Evidence: speed and memory")
    assert "| all  | 2.5 |" in text
    assert "| all  | 1.5 |" not in text


@pytest.mark.slow
def test_a_part_is_measured_from_trace_to_table(tmp_path: Path) -> None:
    """A generated trace goes through whole processes of `kvscope analyze` into a row."""
    path = tmp_path / "t6.jsonl"
    write(path, 300)
    table = analyze.table([TraceFile("t6", path, BLOCK_TOKENS)], rounds=1)
    ((name, requests, *figures),) = table.rows
    assert (name, requests) == ("t6", "300")
    assert all(figures)


@pytest.mark.slow
def test_recommendations_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form: changes that are recommended, none worse on requests that no choice saw."""
    results = []
    monkeypatch.setattr(no_harm, "FACTORS", (0.6, 1.0))
    for trace in generated(no_harm.SHORT, tmp_path):
        for result in no_harm.measured(trace, {"level": no_harm.LEVELS[0]}, 0.95):
            results.append({"trace": trace.name, "deployment": "cache", **result})
    assert len(results) == len(no_harm.SHORT) * len(no_harm.FACTORS)
    now = [result for result in results if result["grade"] == "do-now"]
    assert now
    assert all(result["right"] and not result["worse"] for result in now)
    table = no_harm.harm_table(results)
    assert [row[0] for row in table.rows][-1] == "all"
    assert len(table.rows) == len(no_harm.SHORT) + 1


def test_hybrid_models_are_judged_on_later_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval, no worse on requests that no choice saw; a row of a deployment, one of all."""
    monkeypatch.setattr(hybrid_harm, "LOADS", ((1.0, 0.8),))
    trace = HeldOut("to-c", ROOT / "sample_traces" / "to-c.jsonl.gz")
    deployment = hybrid_harm.DEPLOYMENTS[8]
    (result,) = no_harm.measured_hybrid(trace, deployment, 0.9)
    assert (result["grade"], result["worse"], result["harmed"]) == ("do-now", False, False)
    named = {"trace": trace.name, "deployment": hybrid_harm.called(deployment), **result}
    for holds in (True, False):  # at both ends of pool and latency: with flags, or withheld
        first, every = no_harm.hybrid_table([named | {"holds": holds}]).rows
        assert first[0] == "qwen3-next-80b 0.92"
        assert first[1:] == every[1:]
        assert (first[2], first[9]) == (("1", "0") if holds else ("0", "1"))


def test_the_rule_is_judged_on_other_traffic_than_it_was_made_on() -> None:
    """No seed of a profile is in two of the lists."""
    lists = (no_harm.DEVELOPMENT, no_harm.JUDGING, no_harm.SHORT)
    seeds = [{(profile, seed) for profile, _, seed in each} for each in lists]
    assert len(set.union(*seeds)) == sum(map(len, seeds))


@pytest.mark.long
def test_recommended_tiers_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier pays for agents' prompts on a small pool, on requests that no choice saw too."""
    for name, values in (("FACTORS", (0.6,)), ("TIMES", (1.0,)), ("_RATES", (0.25,))):
        monkeypatch.setattr(tier_harm, name, values)
    trace = HeldOut("agent", ROOT / "sample_traces" / "agent.jsonl.gz")
    deployment = tier_harm.DEPLOYMENTS[1]
    results = list(tier_harm.measured(trace, deployment, 0.9, no_harm.SEEN))
    assert [(each["verdict"], each["worse"]) for each in results] == [("add", [[], []])]
    assert all(each["meets"] and each["net"][0] > 0 for each in results)
    named = [{"trace": "agent", "deployment": "one", **result} for result in results]
    (row,) = tier_harm.table(named).rows
    assert row[3] == "1 add"
    assert row[5] == "0"


@pytest.mark.parametrize("module", [path.stem for path in WORKERS.glob("[a-z]*.py")])
def test_workers_load(module: str) -> None:
    """What a worker imports of kvscope and its peers is there."""
    importlib.import_module(f"benchmarks.workers.{module}")
