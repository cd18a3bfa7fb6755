"""`tune --compare-tiers` of hybrid models, end to end: the retention interval beside a CPU tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.deployment.kv_groups import KvGroups
from kvscope.latency.file import write_profile
from kvscope.latency.profile import LatencyProfile
from kvscope.tuning.tiers import OnGroups
from tests.app.answers import BLOCK, write_answers
from tests.cli.shell import Streams, document, streams_of

AMPLE, SMALL = 30_000, 2_000  # blocks: for all windows of all chats, and for those of a few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with chats and a latency that was measured: 10 ms, and 0.1 ms a token."""
    path = tmp_path_factory.mktemp("tiers")
    write_answers(path)
    write_profile(path / "latency.toml", LatencyProfile("measured", "here", 0.01, 1e-4))
    return path


@pytest.fixture(scope="module")
def trace(folder: Path) -> Iterator[kvscope.OpenTrace]:
    """Yield the chats."""
    with kvscope.open_trace(folder / "answers.jsonl", block_size=BLOCK) as opened:
        yield opened


def asked(folder: Path, blocks: int, **changes: Any) -> dict[str, Any]:
    """Return what is asked for a pool of so many blocks."""
    latency = str(folder / "latency.toml")
    pool = {"latency": latency, "model": "gpt-oss-20b", "num_gpu_blocks": blocks, "gpu_hour": 2.5}
    return {"slo": "250ms", **pool, **changes}


def test_an_interval_that_costs_nothing(trace: kvscope.OpenTrace, folder: Path) -> None:
    """All windows fit into the pool: answers are hit, and no tier is credited with that."""
    made = kvscope.tune_tiers(trace, **asked(folder, AMPLE, tier_size="16GiB")).to_dict()
    assert made["recommendation"]["policy"] == "lru-retention"
    assert made["add_tier"] is None
    assert made["tier_doubt"]["why"] == "costs-more"
    assert made["rows"][0]["slo"] != "meets"
    free = made["rows"][made["do_now"]]
    assert free["change"]["tier"] is None
    assert free["ttft_ms"]["p95"]["value"] <= 250
    assert "--prefix-cache-retention-interval" in made["recommendation"]["flags"]["vllm"]


def test_a_tier_with_an_interval(
    capsys: Streams, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small pool keeps no answer, and a tier at vLLM's defaults holds no way to hit one.

    The file is replayed: with the tier, the pool alone, and that with the interval.
    """
    monkeypatch.chdir(folder)
    chats = ("answers.jsonl", "--block-size", str(BLOCK), "--db", ":memory:")
    pool = ("--model", "gpt-oss-20b", "--num-gpu-blocks", str(SMALL), "--latency", "latency.toml")
    tune = ("tune", *chats, "--compare-tiers", "--slo", "250ms", *pool, "--gpu-hour", "2.5")
    made = document(capsys, *tune)
    best = made["rows"][made["add_tier"]]
    recommended = made["recommendation"]
    assert recommended["verdict"] == "switch"
    assert best["change"]["policy"] == recommended["policy"] == "lru-retention"
    assert best["change"]["tier"]["offload"] == "vllm@0.33:offload_prompt_only=false"
    interval = recommended["params"]["retention_tokens"]
    assert f"--prefix-cache-retention-interval {interval:.0f}" in recommended["flags"]["vllm"]
    tiers = [row for row in made["rows"] if row["change"]["tier"]]
    with_lru = [row["ttft_ms"]["p95"]["value"] for row in tiers if row["change"]["policy"] == "lru"]
    assert best["ttft_ms"]["p95"]["value"] < 250 < min(with_lru)

    again = ("simulate", *chats, "--recommendation", "recommendation.toml")
    replayed = document(capsys, *again, "--warmup", "75%")
    (tiered,) = replayed["results"]
    assert (tiered["policy"], tiered["params"]["retention_tokens"]) == ("lru-retention", interval)
    assert replayed["alone_as_recommended"]["policy"] == "lru-retention"
    for figures, of in (
        (tiered, recommended["expected"]),
        (replayed["alone"], recommended["baseline"]),
    ):
        assert figures["token_hit_rate"] == pytest.approx(of["token_hit_rate"])
        p95_ms = figures["queued_ttft_ms"]["p95"]
        assert p95_ms == pytest.approx(of["times_ms"]["p95"], rel=1e-6)
    words = " ".join(streams_of(capsys, *again).out.split())
    assert f"The recommended tier with retention interval {interval:.0f} takes p95 TTFT" in words
    assert "Its retention interval without the tier: " in words
    assert "pool, interval" in words


def test_a_chunk_has_the_bytes_of_the_engine_block() -> None:
    """A block of states has 544 tokens: 34 of the trace's."""
    states = KvGroups.parse("linear/544/0/1+full/544/0/1@0")
    assert OnGroups(states).page_bytes(100, 16) == 3_400
    assert OnGroups(None).page_bytes(100, 16) == 100
