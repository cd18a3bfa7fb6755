"""`kvscope retention`: one screen, whose figures other commands have too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.cli.app import run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
AGENT, TO_C = str(SAMPLES / "agent.jsonl.gz"), str(SAMPLES / "to-c.jsonl.gz")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store that keeps the samples from test to test."""
    return str(tmp_path_factory.mktemp("retention") / "store.duckdb")


def test_figures_agree_with_simulate_and_analyze(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A TTL's hit rate is that of the policy `ttl`, forever's the ideal one."""

    def document(*command: str) -> dict[str, object]:
        assert run([*command, "--db", db, "--json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    found = document("retention", AGENT)
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
    assert sum(each["share_of_hits"] for each in found["categories"]) == pytest.approx(1)  # type: ignore[attr-defined]
