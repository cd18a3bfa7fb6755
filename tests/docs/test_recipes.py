"""The recipes of docs/extend.md for a policy and a router, followed to the letter."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.hits import standard
from kvscope.fleet.replay import asked, replay_fleet
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.policies import registry as policies
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.routers import registry as routers
from kvscope.routers.base import Router
from tests import small_traces
from tests.cli.replayed import simulated
from tests.cli.shell import Streams

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
PROFILE = LatencyProfile("made", "made", 0.0, 1.0)


def class_of(name: str, folder: Path) -> Any:
    """Return a class of the page's code, from a file of its own."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if f"class {name}(" in block)
    path = folder / f"{name.lower()}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[LanePolicy]:
    """Register the policy of the page."""
    kind: type[LanePolicy] = class_of("LongFirst", tmp_path)
    monkeypatch.setattr(policies, "POLICIES", (*policies.POLICIES, kind))
    return kind


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Router]:
    """Register the router of the page."""
    kind: type[Router] = class_of("LeastTokens", tmp_path)
    monkeypatch.setattr(routers, "ROUTERS", (*routers.ROUTERS, kind))
    return kind


def test_the_policy_does_what_it_says(policy: type[LanePolicy]) -> None:
    """The long conversation's blocks leave before the older, shorter one's."""
    trace = [
        Request(input_tokens=4, output_tokens=0, hash_ids=[1, 2]),
        Request(input_tokens=8, output_tokens=0, hash_ids=[3, 4, 5, 6]),
        Request(input_tokens=6, output_tokens=0, hash_ids=[1, 2, 7]),
        Request(input_tokens=10, output_tokens=0, hash_ids=[3, 4, 5, 6, 8]),
    ]
    walked = traffic(small_traces.prompts(small_traces.built(trace, 2)), standard())
    done = replay(walked, policy({"long_tokens": 6}), 4)
    assert done.hit_blocks.tolist() == [0, 0, 2, 1]
    assert replay(walked, policy(), 4).hit_blocks.tolist() == [0, 0, 0, 1]  # all short: LRU


@pytest.mark.usefixtures("policy")
def test_the_command_line_has_the_policy(capsys: Streams) -> None:
    """By name, with its parameter in its unit."""
    document = simulated(
        capsys,
        *("sample_traces/to-c.jsonl.gz", "--db", ":memory:", "--capacity-blocks", "5000"),
        *("--policy", "long-first,lru", "--param", "long-first.long_tokens=2k,1M"),
    )
    toys = [result for result in document["results"] if result["policy"] == "long-first"]
    (lru,) = [result for result in document["results"] if result["policy"] == "lru"]
    assert [result["params"]["long_tokens"] for result in toys] == [2_000, 1_000_000]
    assert toys[0]["hit_tokens"] != lru["hit_tokens"]
    assert toys[1]["hit_tokens"] == lru["hit_tokens"]


def test_the_router_does_what_it_says(router: type[Router]) -> None:
    """A long prompt keeps the first replica busy, so the next long one goes to the other."""
    requests = [
        Request(input_tokens=size, output_tokens=1, arrival_s=float(at), hash_ids=[at])
        for at, size in enumerate((8, 2, 2, 8))
    ]
    trace = small_traces.prompts(small_traces.built(requests, 8))
    steps, sent = traffic(trace, standard()), asked(trace)
    for values, replicas in (
        ({"long_tokens": 4}, [0, 1, 0, 1]),
        ({}, [0, 1, 0, 1]),
        ({"long_tokens": 1}, [0, 1, 1, 1]),
    ):
        done = replay_fleet(steps, sent, PROFILE, Lru(), router(values), 2, 9)
        assert done.replica.tolist() == replicas


@pytest.mark.usefixtures("router")
def test_the_command_line_has_the_router(capsys: Streams) -> None:
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
