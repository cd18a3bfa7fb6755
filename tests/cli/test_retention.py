"""`kvscope retention`: one screen, its advice never above what was held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.cli.app import run
from kvscope.retention.advice import RetentionTrial
from kvscope.tuning.bootstrap import Gain

SAMPLES = Path(__file__).parents[2] / "sample_traces"
AGENT, TO_C = str(SAMPLES / "agent.jsonl.gz"), str(SAMPLES / "to-c.jsonl.gz")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store that keeps the samples from test to test."""
    return str(tmp_path_factory.mktemp("retention") / "store.duckdb")


def test_figures_agree_with_simulate_and_analyze(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A TTL's hit rate is that of the policy `ttl`, forever's the ideal one, LRU's LRU's."""

    def document(*command: str) -> dict[str, object]:
        assert run([*command, "--db", db, "--json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    found = document("retention", AGENT, "--capacity-blocks", "3543")
    ttls = {each["ttl_s"]: each for each in found["ttls"]}  # type: ignore[attr-defined]
    replays = document(
        *("simulate", AGENT, "--policies", "ttl", "--param", "ttl.ttl_s=60s,600s"),
        *("--capacity-blocks", "1M"),
    )
    for each in replays["results"]:  # type: ignore[attr-defined]
        rate = ttls[each["params"]["ttl_s"]]["token_hit_rate"]
        assert rate == pytest.approx(each["token_hit_rate"])
    ideal = document("analyze", AGENT)["hit_rates"][0]["ideal"]  # type: ignore[index]
    assert ttls[None]["token_hit_rate"] == pytest.approx(ideal)
    (advice,) = found["advice"]  # type: ignore[misc]
    assert isinstance(advice, dict)
    lru = document(
        *("simulate", AGENT, "--policies", "lru", "--warmup", "75%", "--capacity-blocks", "3543")
    )["results"][0]  # type: ignore[index]
    assert advice["idle"]["lru_token_hit_rate"] == pytest.approx(lru["token_hit_rate"])
    assert not advice["advised"]
    assert sum(each["share_of_hits"] for each in found["categories"]) == pytest.approx(1)  # type: ignore[attr-defined]


def test_without_room_for_a_gain_lru_is_kept(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A cache that holds everything: TTLs change nothing, and the answer says so."""
    assert run(["retention", TO_C, "--db", db, "--capacity-blocks", "1M"]) == 0
    out = capsys.readouterr().out
    assert "Keep LRU" in out
    assert "forever" in out
    assert "In an engine" not in out
    assert run(["retention", TO_C, "--db", db, "--capacity-blocks", "1M", "--full"]) == 0
    assert "Nothing to send" in capsys.readouterr().out
    assert run(["retention", TO_C, "--db", db, "--capacity-blocks", "1M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request_fields"] == []


@pytest.fixture(scope="module")
def hinted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of agents that state pauses for tools, and ends."""
    path = str(tmp_path_factory.mktemp("hinted") / "agents.jsonl")
    options = ("-n", "1200", "--seed", "3", "--param", "hint_share=1", "-o", path)
    assert run(["synth", "agent", *options]) == 0
    return path


def test_pins_for_pauses_are_chosen_and_judged(
    hinted: str, db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second advice pins; its rate is that of `simulate` with its parameters."""
    options = ("--db", db, "--capacity-blocks", "3000", "--json")
    assert run(["retention", hinted, *options]) == 0
    by_category, pins = json.loads(capsys.readouterr().out)["advice"]
    assert (by_category["of"], pins["of"]) == ("categories", "directives")
    assert pins["idle"]["token_hit_rate"] > pins["idle"]["lru_token_hit_rate"]
    param = [f"--param=soft-ttl.{name}={value}" for name, value in pins["params"].items()]
    param[0] += "s"
    for trial, engine in ((pins["idle"], ()), (pins["engine"], ("--capacity-model", "engine"))):
        replayed = ("simulate", hinted, "--policies", "lru,soft-ttl", "--warmup", "75%", *param)
        assert run([*replayed, *engine, *options]) == 0
        lru, own = json.loads(capsys.readouterr().out)["results"]
        assert lru["token_hit_rate"] == pytest.approx(trial["lru_token_hit_rate"])
        assert own["token_hit_rate"] == pytest.approx(trial["token_hit_rate"])
    assert pins["advised"]
    assert run(["retention", hinted, *options[:-1], "--full"]) == 0
    out = capsys.readouterr().out
    assert "pins of" in out
    assert "TokenRangeRetentionConfig" in out
    assert "In an engine with as large a pool" in " ".join(out.split())


def test_what_an_engine_does_not_gain_is_not_advised() -> None:
    """Pins that gain in an idle cache: judged on the engine too, whose gain has to be sure."""
    trial = RetentionTrial("cache", 0.4, 0.5, Gain(0.1, 0.05, 0.15), Gain(0.1, 0.05, 0.15))
    engine = replace(trial, capacity_model="engine", lru_p95_s=2.0, p95_s=2.09)
    assert trial.better
    assert engine.better
    assert not replace(engine, p95_s=2.11).better
    assert not replace(engine, deciding_gain=Gain(0.1, -0.01, 0.2)).better
    assert not replace(engine, gain=Gain(-0.01, -0.05, 0.03)).better
