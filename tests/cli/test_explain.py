"""`kvscope explain`: its causes add up to analyze's misses; single requests; conditions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.percentiles import Percentiles
from kvscope.store.db import open_store
from kvscope.store.results import add_validation
from kvscope.store.traces import find
from kvscope.validate.result import EngineFacts, Figures, RunFacts, ValidationFacts
from tests.cli.shell import Streams, document, streams_of

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRACE = str(SAMPLES / "birth-death.jsonl.gz")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store that keeps the samples from test to test."""
    return str(tmp_path_factory.mktemp("explain") / "store.duckdb")


def test_one_request_says_what_it_shares_and_why_it_stops(db: str, capsys: Streams) -> None:
    """The request that lost most, by its number."""
    options = ("--db", db, "--capacity-blocks", "100")
    worst = json.loads(streams_of(capsys, "explain", TRACE, *options, "--json").out)["requests"][0]
    out = streams_of(capsys, "explain", TRACE, *options, "--request", str(worst["request"])).out
    assert f"request {worst['last_use']}" in out
    assert f"{worst['written_blocks']:,} blocks were written since" in out


def line(number: int, ids: list[int], **more: object) -> str:
    """Return a request in blocks of 16 tokens, one second after the other, its last block cut."""
    return json.dumps(
        {
            "chat_id": f"request-{number}",
            "timestamp": float(number),
            "input_length": 16 * len(ids) + 1,
            "output_length": 1,
            "hash_ids": [*ids, 10**6 + number],
            **more,
        }
    )


@pytest.fixture
def served(tmp_path: Path) -> str:
    """Return a trace whose requests share a prompt, but not a worker, salt, adapter or model."""
    prompt = [1, 2, 3, 4]
    path = tmp_path / "served.jsonl"
    lines = (
        line(0, prompt, worker="a"),
        line(1, prompt, worker="b", cached_tokens=0),
        line(2, prompt, worker="a", cached_tokens=64),
        line(3, prompt, worker="a", cache_salt="x"),
        line(4, prompt, worker="a", lora_name="tuned"),
        line(5, prompt, worker="a", model="other"),
    )
    path.write_text("\n".join(lines))
    return str(path)


def explained(capsys: Streams, *command: str) -> dict[str, Any]:
    """Return the document of `kvscope explain`."""
    return document(capsys, "explain", *command)


def test_misses_of_workers_and_tenants_are_told_apart(
    served: str, db: str, capsys: Streams
) -> None:
    """Each its 4 blocks; with one cache for all workers, the other worker's are hits."""
    found = explained(capsys, served, "--db", db)
    causes = {each["cause"]: each["tokens"] for each in found["causes"] if each["tokens"]}
    assert causes == dict.fromkeys(("cold", "routed", "salt", "lora", "model"), 64) | {
        "below-block": 6
    }
    assert (found["workers"], found["hit_tokens"]) == (2, 64)
    assert {each["cause"] for each in found["findings"]} == {*causes} - {"cold"}
    assert found["observed"]["fewer_tokens"] == found["observed"]["more_tokens"] == 0
    pooled = explained(capsys, served, "--db", db, "--pooled")
    assert (pooled["workers"], pooled["hit_tokens"]) == (1, 128)
    assert pooled["observed"]["gaps"][0] == {"cause": "routed", "tokens": 64}
    assert run(["explain", served, "--db", db]) == 0
    assert "2 workers, each an infinite cache, hit" in capsys.readouterr().out


def test_a_request_is_named_by_its_id_too(served: str, db: str, capsys: Streams) -> None:
    """The third one, which another request under no salt had before."""
    (request,) = explained(capsys, served, "--db", db, "--request", "request-3")["requests"]
    assert (request["request"], request["computed_by"]) == (3, [{"cause": "salt", "request": 2}])
    assert run(["explain", served, "--db", db, "--request", "3"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "64 tokens were computed before under another cache salt, last by request 2." in words
    assert run(["explain", served, "--db", db, "--request", "id:3"]) == ExitCode.USAGE
    assert "none with the id '3'" in capsys.readouterr().err


def test_hits_of_a_validation_are_set_against_the_prediction(
    served: str, tmp_path: Path, capsys: Streams
) -> None:
    """Of the requests that it counted, here all but the first two and the one that failed."""
    db = str(tmp_path / "store.duckdb")
    unreported = str(tmp_path / "unreported.jsonl")
    Path(unreported).write_text(Path(served).read_text().replace("cached_tokens", "unknown"))
    assert run(["ingest", unreported, "--db", db]) == 0
    figures = Figures(0, 0.0, Percentiles(0.0, 0.0, 0.0, 0.0), None, None)
    measured = RunFacts(
        policy="lru",
        leaves="any",
        params={},
        repeat=0,
        flags=(),
        predicted=figures,
        measured=figures,
        counted=np.array([False, True, True, True, False]),
        mismatched_requests=1,
        mismatched_tokens=16,
        predicted_hit_tokens=np.array([0, 64, 0, 0, 0]),
        measured_hit_tokens=np.array([0, 48, 0, 0, 0]),
        predicted_ttft_s=np.full(5, 0.1),
        measured_ttft_s=np.full(5, 0.1),
        failed={4: "closed"},
        numbers=np.array([1, 2, 3, 4, 5]),
    )
    with open_store(db) as store:
        trace = find(store, None)
        facts = ValidationFacts(
            engine=EngineFacts("vLLM", "0.32.0", "cpu", "tiny", 100, 16),
            pace="one by one",
            forced_outputs=True,
            latency="",
            tolerance=0.1,
            slo_s=None,
            verdict="confirmed",
            ended="",
            runs=(replace(measured, policy="tlru"), measured),
        )
        add_validation(store, trace, facts)
    capsys.readouterr()
    found = explained(capsys, "--db", db)["observed"]
    assert (found["source"], found["engine_blocks"], found["requests"]) == ("validation", 100, 3)
    assert (found["predicted_hit_tokens"], found["observed_hit_tokens"]) == (64, 48)
    assert {each["cause"]: each["tokens"] for each in found["gaps"] if each["tokens"]} == {
        "evicted": 16
    }
    assert run(["explain", "--db", db, "--request", "2"]) == 0
    assert "Observed: 48 hit tokens; 16 predicted ones" in capsys.readouterr().out


def test_divergence_is_told_by_what_was_changed(db: str, tmp_path: Path, capsys: Streams) -> None:
    """Reordered tools, a compacted history, and an edited message of a later turn."""
    tools, reordered = [1, 2, 3], [1, 3, 2]
    turns = [
        ([*tools, 10, 11], None),
        ([*reordered, 10, 11, 12], 0),  # at block 1
        ([*tools, 20, 21, 22, 23], None),
        ([*tools, 24, 25], 2),  # at block 3, and shorter
        ([*tools, 30], None),
        ([*tools, 30, 31, 32], 4),
        ([*tools, 30, 33, 32, 34], 5),  # at block 4, behind the first prompt
    ]
    path = tmp_path / "diverged.jsonl"
    lines = (
        line(at, ids, parent_chat_id=-1 if before is None else f"request-{before}")
        for at, (ids, before) in enumerate(turns)
    )
    path.write_text("\n".join(lines))
    findings = explained(capsys, str(path), "--db", db)["findings"]
    diverged = {each["place"]: each for each in findings if each["cause"] == "diverged"}
    assert {place: (each["at_token"], each["tokens"]) for place, each in diverged.items()} == {
        "first-prompt": (16, 64),
        "shortened": (48, 32),
        "history": (64, 32),
    }


def test_a_head_that_changes_hourly_is_a_finding(db: str, tmp_path: Path, capsys: Streams) -> None:
    """The first of each hour computes 6 shared blocks again; the block that changes is named."""
    path = tmp_path / "hourly.jsonl"
    lines = (
        line(number, [1, 2, 100 + number // 60, 3, 4, 5, 6, 7], timestamp=60.0 * number + 7)
        for number in range(8 * 60)
    )
    path.write_text("\n".join(lines))
    finding = explained(capsys, str(path), "--db", db)["findings"][0]
    assert (finding["cause"], finding["tokens"]) == ("periodic", 7 * 6 * 16)
    assert (finding["at_token"], finding["period_s"], finding["values"]) == (32, 3600, 8)
    words = " ".join(streams_of(capsys, "explain", str(path), "--db", db).out.split())
    assert "1. periodic, -1.1 pp: tokens 32-47 of shared prompts change hourly (8 values)" in words


def test_who_evicts_whom(db: str, capsys: Streams) -> None:
    """Each type's evicted tokens add up to the cause; screen and document say the same."""
    command = ("explain", str(SAMPLES / "to-c.jsonl.gz"), "--db", db, "--capacity-blocks", "8000")
    known = document(capsys, *command, "--by", "type")
    groups = {each["name"]: each for each in known["groups"]}
    assert set(groups) == {"text", "search", "multimodal", "file", "api"}
    (evicted,) = (each["tokens"] for each in known["causes"] if each["cause"] == "evicted")
    assert sum(each["evicted_tokens"] for each in groups.values()) == evicted
    assert sum(each["hit_tokens"] for each in groups.values()) == known["hit_tokens"]
    search = groups["search"]
    most = max(search["evicted_by"], key=lambda each: each["tokens"])
    assert most["name"] == "text"
    screen = " ".join(streams_of(capsys, *command, "--by", "type").out.split())
    assert f"text {most['tokens'] / search['evicted_tokens']:.1%}, itself" in screen
    assert document(capsys, *command)["groups"] == []
    one = str(SAMPLES / "birth-death.jsonl.gz")
    wrong = ["explain", one, "--db", db, "--capacity-blocks", "8", "--by", "type"]
    assert run(wrong) == ExitCode.USAGE
    assert "--by type: the trace names fewer than two types" in capsys.readouterr().err


def test_what_sglang_turns_away(capsys: Streams) -> None:
    """Requests longer than its pool are rejected, not evicted: as many as `simulate` counts."""
    engine = ("--gpu", "h100", "--model", "llama3-8b", "--engine", "sglang")
    pool = ("--db", ":memory:", *engine, "--num-gpu-blocks", "8000")
    words = (str(SAMPLES / "to-b.jsonl.gz"), *pool)
    explained = document(capsys, "explain", *words)
    (rejected,) = (each for each in explained["causes"] if each["cause"] == "rejected")
    (lru,) = document(capsys, "simulate", *words, "--policy", "lru")["results"]
    assert rejected["requests"] == lru["turned_away"] > 0
    assert explained["hit_tokens"] == lru["hit_tokens"]
