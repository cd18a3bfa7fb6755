"""Commands that are asked the same of a deployment give the same hit rate: one simulation."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.core.files import data_folder
from tests.golden.samples import write_beginnings

MOONCAKE = Path(os.environ.get("KVSCOPE_TRACES", "/nowhere")) / "mooncake_conversation.jsonl.gz"
WHERE: dict[str, Any] = {"gpu": "l4", "model": "qwen2-7b", "num_gpu_blocks": 3000}
ON_SGLANG = WHERE | {"engine": "sglang", "num_gpu_blocks": 48_000}  # its blocks are single tokens
ON_HICACHE = ON_SGLANG | {"engine": "sglang:hicache_ratio=2:hicache_write_policy=write_back"}
NEEDED = pytest.mark.skipif(not MOONCAKE.exists(), reason="needs the trace")
DEPLOYED = [
    *(
        pytest.param(f"{name}.jsonl.gz", WHERE, id=name)
        for name in ("to-c", "to-b", "agent", "birth-death")
    ),
    pytest.param(str(MOONCAKE), WHERE, id="mooncake", marks=NEEDED),
    pytest.param("to-b.jsonl.gz", ON_SGLANG, id="to-b, sglang"),
    pytest.param("to-c.jsonl.gz", ON_HICACHE, id="to-c, sglang with a host tier"),
]


@pytest.fixture(scope="module")
def beginnings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the first 2,500 requests of each sample."""
    folder = tmp_path_factory.mktemp("samples") / "beginnings"
    write_beginnings(folder, 2_500)
    return folder


@pytest.mark.parametrize(("path", "where"), DEPLOYED)
def test_one_engine(beginnings: Path, path: str, where: dict[str, Any]) -> None:
    """`analyze`, `explain` and `simulate` have one rate, and the first two one list of causes."""
    with kvscope.open_trace(beginnings / path) as trace:
        pool = kvscope.analyze(trace, **where).to_dict()["pool"]
        explained = kvscope.explain(trace, **where).to_dict()
        (lru,) = kvscope.simulate(trace, policy="lru", **where).to_dict()["results"]
    assert pool["causes"] == explained["causes"]
    assert pool["token_hit_rate"] == explained["hit_tokens"] / explained["input_tokens"]
    assert pool["token_hit_rate"] == lru["token_hit_rate"]
    assert (pool["workers"], pool["router"]) == (1, None)


def test_simulate_sets_the_guards_of_tune(beginnings: Path) -> None:
    """On a deployment, where a policy takes one and nothing else is stated."""
    with kvscope.open_trace(beginnings / "to-c.jsonl.gz") as trace:
        runs = kvscope.simulate(trace, policy="tlru,wa", **WHERE).to_dict()["results"]
        free = kvscope.simulate(trace, policy="tlru", param=["tlru.guard=0"], **WHERE).to_dict()
        alone = kvscope.simulate(trace, policy="tlru", capacity_blocks=3000).to_dict()
    assert [run["params"]["guard"] for run in runs] == [1, 1]
    assert free["results"][0]["params"]["guard"] == alone["results"][0]["params"]["guard"] == 0


@pytest.mark.parametrize("where", [WHERE, ON_SGLANG, ON_HICACHE], ids=lambda each: str(len(each)))
def test_a_recommendation_is_of_the_deployment(
    beginnings: Path, tmp_path: Path, where: dict[str, Any]
) -> None:
    """Replayed by itself it has LRU's hits and times there, copies of a host tier included."""
    path = tmp_path / "recommendation.toml"
    with kvscope.open_trace(beginnings / "to-c.jsonl.gz") as trace:
        kvscope.tune(trace, slo="1s", policy="lru", **where).save(path)
        alone = kvscope.simulate(trace, recommendation=str(path)).to_dict()
        named = kvscope.simulate(trace, slo="1s", policy="lru", **where).to_dict()
    figures = [run["results"][0] for run in (alone, named)]
    for figure in ("token_hit_rate", "ttft_ms", "queued_ttft_ms", "queued_tel_ms"):
        assert figures[0][figure] == figures[1][figure], figure


@pytest.mark.parametrize(("path", "where"), DEPLOYED)
def test_replicas(beginnings: Path, path: str, where: dict[str, Any]) -> None:
    """With several, `analyze` and `explain` have the rate of `fleet` behind the router named."""
    with kvscope.open_trace(beginnings / path) as trace:
        pool = kvscope.analyze(trace, replicas=3, **where).to_dict()["pool"]
        explained = kvscope.explain(trace, replicas=3, **where).to_dict()
        fleet = kvscope.simulate_fleet(
            trace, router=pool["router"], replicas="3", warmup=0, slo="9s", **where
        ).to_dict()
    assert pool["causes"] == explained["causes"]
    assert pool["token_hit_rate"] == explained["hit_tokens"] / explained["input_tokens"]
    assert (explained["workers"], explained["router"]) == (3, "session")
    (session,) = fleet["fleets"]
    assert session["hit_rate"] == pytest.approx(pool["token_hit_rate"], abs=1e-12)


_SAID = {"name", "created_at", "rate_scale", "span_s", "words"}  # of the two runs that are compared


def without(said: set[str], document: Any) -> Any:
    """Return a document without what these keys say."""
    if isinstance(document, dict):
        return {key: without(said, of) for key, of in document.items() if key not in said}
    return [without(said, of) for of in document] if isinstance(document, list) else document


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (kvscope.simulate, {"policy": "all", "param": ["ttl.ttl_s=60s"], "capacity_blocks": 3000}),
        (kvscope.simulate, {"policy": "lru,tlru,wa,gittins"} | WHERE),
        (kvscope.simulate, {"policy": "all"} | ON_SGLANG),
        (kvscope.simulate_fleet, {"router": "all", "replicas": "3"} | WHERE),
        (kvscope.simulate_fleet, {"router": "all", "replicas": "3", "capacity_blocks": 3000}),
        (kvscope.tune, {"capacity_blocks": 3000}),
        (kvscope.tune, WHERE | {"policy": "tlru,gittins"}),
    ],
    ids=lambda each: each.__name__ if callable(each) else "-".join(each),
)
def test_faster_arrivals(tmp_path: Path, ask: Any, asked: dict[str, Any]) -> None:
    """A trace that is sped up fares as one whose requests come so fast, in every figure."""
    path = data_folder("sample_traces") / "to-c.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()[:400]]
    fast, slow = tmp_path / "fast.jsonl", tmp_path / "slow.jsonl"
    for written, times in ((fast, 1), (slow, 4)):
        rows = (line | {"timestamp": line["timestamp"] * times} for line in lines)
        written.write_text("\n".join(map(json.dumps, rows)))
    with kvscope.open_trace(fast) as trace:
        expected = ask(trace, slo="500ms", **asked).to_dict()
    with kvscope.open_trace(slow) as trace:
        scaled = ask(trace, slo="500ms", rate_scale=4, **asked)
    assert without(_SAID, scaled.to_dict()) == without(_SAID, expected)
    if ask is kvscope.simulate_fleet:
        assert ", arriving 4 times as fast" in scaled._repr_html_()
