"""The recipe in docs/add-a-policy.md, followed to the letter."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from kvscope.core.hits import standard
from kvscope.ingest.formats.base import Request
from kvscope.policies import registry
from kvscope.policies.base import LanePolicy
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from tests import small_traces
from tests.cli.replayed import simulated

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[LanePolicy]:
    """Register the policy of the page, from a file of its own."""
    text = (ROOT / "docs" / "add-a-policy.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "long_first.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("long_first", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policy: type[LanePolicy] = module.LongFirst
    monkeypatch.setattr(registry, "POLICIES", (*registry.POLICIES, policy))
    return policy


def test_it_does_what_it_says(toy: type[LanePolicy]) -> None:
    """The long conversation's blocks leave before the older, shorter one's."""
    trace = [
        Request(input_tokens=4, output_tokens=0, hash_ids=[1, 2]),
        Request(input_tokens=8, output_tokens=0, hash_ids=[3, 4, 5, 6]),
        Request(input_tokens=6, output_tokens=0, hash_ids=[1, 2, 7]),
        Request(input_tokens=10, output_tokens=0, hash_ids=[3, 4, 5, 6, 8]),
    ]
    walked = traffic(small_traces.prompts(small_traces.built(trace, 2)), standard())
    done = replay(walked, toy({"long_tokens": 6}), 4)
    assert done.hit_blocks.tolist() == [0, 0, 2, 1]
    assert replay(walked, toy(), 4).hit_blocks.tolist() == [0, 0, 0, 1]  # all short: LRU


@pytest.mark.usefixtures("toy")
def test_the_command_line_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with its parameter in its unit."""
    document = simulated(
        capsys,
        *("sample_traces/to-c.jsonl.gz", "--db", ":memory:", "--capacity-blocks", "5000"),
        *("--policies", "long-first,lru", "--param", "long-first.long_tokens=2k,1M"),
    )
    toys = [result for result in document["results"] if result["policy"] == "long-first"]
    (lru,) = [result for result in document["results"] if result["policy"] == "lru"]
    assert [result["params"]["long_tokens"] for result in toys] == [2_000, 1_000_000]
    assert toys[0]["hit_tokens"] != lru["hit_tokens"]
    assert toys[1]["hit_tokens"] == lru["hit_tokens"]
