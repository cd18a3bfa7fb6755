"""The recipe in docs/add-a-router.md, followed to the letter."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.hits import standard
from kvscope.fleet.replay import asked, replay_fleet
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.replay.traffic import traffic
from kvscope.routers import registry
from kvscope.routers.base import Router
from tests import small_traces

ROOT = Path(__file__).parents[2]
PROFILE = LatencyProfile("made", "made", 0.0, 1.0)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Router]:
    """Register the router of the page, from a file of its own."""
    text = (ROOT / "docs" / "add-a-router.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "least_tokens.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("least_tokens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    router: type[Router] = module.LeastTokens
    monkeypatch.setattr(registry, "ROUTERS", (*registry.ROUTERS, router))
    return router


def test_it_does_what_it_says(toy: type[Router]) -> None:
    """A long prompt keeps the first replica busy, so the next long one goes to the other."""
    sizes = (8, 2, 2, 8)
    trace = small_traces.prompts(
        small_traces.built(
            [
                Request(input_tokens=size, output_tokens=1, arrival_s=float(at), hash_ids=[at])
                for at, size in enumerate(sizes)
            ],
            8,
        )
    )
    steps = traffic(trace, standard())
    done = replay_fleet(steps, asked(trace), PROFILE, Lru(), toy({"long_tokens": 4}), 2, 9)
    assert done.replica.tolist() == [0, 1, 0, 1]
    in_turn = replay_fleet(steps, asked(trace), PROFILE, Lru(), toy(), 2, 9)
    assert in_turn.replica.tolist() == [0, 1, 0, 1]
    crowded = replay_fleet(steps, asked(trace), PROFILE, Lru(), toy({"long_tokens": 1}), 2, 9)
    assert crowded.replica.tolist() == [0, 1, 1, 1]


@pytest.mark.usefixtures("toy")
def test_the_command_line_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with its parameter in its unit."""
    assert run(["routers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["routers"][-1]["name"] == "least-tokens"
    command = ("fleet", "sample_traces/to-c.jsonl.gz", "--db", ":memory:", "--slo", "1s")
    options = ("--router", "least-tokens", "--param", "least-tokens.long_tokens=2k,1M")
    where = ("--capacity-blocks", "3000", "--replicas", "3")
    assert run([*command, *options, *where, "--json"]) == 0
    fleets = json.loads(capsys.readouterr().out)["fleets"]
    assert sorted(row["router_params"]["long_tokens"] for row in fleets) == [2_000, 1_000_000]
    assert fleets[0]["hit_rate"] != fleets[1]["hit_rate"]
