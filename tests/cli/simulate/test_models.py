"""`kvscope simulate` with other caches than the plain one: tiers, engine, tenants, samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.policies.registry import POLICIES
from tests.cli.replayed import BLOCK, simulated
from tests.cli.shell import Streams, streams_of


def test_tenants_apart_share_nothing(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """With a salt for each conversation, the later turn still hits its own."""
    asked = (trace, *options, "--policy", "lru", "--capacity-blocks", "3")
    apart = simulated(capsys, *asked, "--isolate", "conversation")
    assert apart["isolate"] == "conversation"
    assert apart["results"][0]["hit_tokens"] == 2 * BLOCK


def test_a_sample_says_its_error(tmp_path: Path, capsys: Streams) -> None:
    """A sampled run has an error, an exact one none, and the exact one lies within it."""
    folder = str(tmp_path / "dataset")
    sample = "sample_traces/to-c.jsonl.gz"
    streams_of(capsys, "ingest", sample, "--into", folder, "--memory", "4GiB", "--workers", "1")
    asked = (folder, "--policy", "lru,fifo")
    at = ("--capacity-blocks", "20000")
    exact = simulated(capsys, *asked, *at)["results"]
    part = simulated(capsys, *asked, *at, "--sample", "50%")["results"]
    for whole, estimate in zip(exact, part, strict=True):
        assert whole["hit_rate_error"] is None
        gap = abs(whole["token_hit_rate"] - estimate["token_hit_rate"])
        assert gap <= estimate["hit_rate_error"]
        assert estimate["queued_ttft_ms"] is None
        assert estimate["requests"] < whole["requests"]


def test_an_engine_gives_running_requests_their_blocks(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The last request's four blocks and its output do not fit into four; in five they do."""
    asked = (trace, *options, "--policy", "lru", "--capacity-model", "engine")
    document = simulated(capsys, *asked, "--capacity-blocks", "4,5", "--slo", "1s")
    assert (document["max_num_seqs"], document["max_num_batched_tokens"]) == (128, 2048)
    small, large = document["results"]
    assert {one["capacity_model"] for one in document["results"]} == {"engine"}
    assert (small["turned_away"], large["turned_away"]) == (1, 0)
    assert small["hit_tokens"] == 0
    assert large["hit_tokens"] == 2 * BLOCK
    assert large["preemptions"] == 0
    assert small["queued_ttft_ms"]["p99"] > 0
    kept = simulated(capsys, trace, *options, "--policy", "lru", "--capacity-blocks", "5")
    assert kept["results"][0]["capacity_model"] == "cache"
    told = " ".join(streams_of(capsys, "runs", *options[:2], "--policy", "lru").out.split())
    assert "Capacity: an engine's block pool" in told
    assert "at most 128 run at once, with 2,048 tokens per step" in told
    assert "Capacity: idle cached blocks" in told


def test_the_usual_policies_are_those_that_a_model_can_run(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Without names, and for all, the others are left out; the page still has its tables."""
    at = ("--capacity-blocks", "6", "--capacity-model", "engine")
    usual = simulated(capsys, trace, *options, *at)["results"]
    assert [one["policy"] for one in usual] == ["lru", "tlru", "wa", "gittins"]
    tiers = ("--tiers", "hbm=2blocks,dram=9blocks:read=1GB/s", "--model", "vicuna-7b")
    every = simulated(capsys, trace, *options, *tiers, "--policy", "all")["results"]
    assert {"lru", "tlru"} <= {one["policy"] for one in every} < {one.name for one in POLICIES}


def test_tiers_tell_what_each_gave_and_cost(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Of the last turn's two blocks HBM has one; the other, 256 MiB, is read at 1 GiB/s.

    The stranger's three blocks and output take four of five.
    """
    lines = Path(trace).read_text().replace("[3]", "[3, 6, 7]")
    Path(trace).write_text(
        lines.replace(f'"input_length": {BLOCK},', f'"input_length": {3 * BLOCK},')
    )
    tiers = "hbm=5blocks, dram=9blocks:read=1GiB/s:latency=1s"
    asked = (trace, *options, "--policy", "lru", "--model", "vicuna-7b", "--tiers", tiers)
    document = simulated(capsys, *asked)
    assert document["tier_mode"] == "vllm@0.33"
    (result,) = document["results"]
    hbm, dram = result["tiers"]
    assert (hbm["name"], dram["name"]) == ("hbm", "dram")
    assert (hbm["capacity_bytes"], result["capacity_blocks"]) == (5 * 2**28, 14)
    assert hbm["hit_tokens"] + dram["hit_tokens"] == result["hit_tokens"] == 2 * BLOCK
    assert dram["hit_tokens"] == BLOCK
    assert dram["token_hit_rate"] == pytest.approx(1 / 9)
    assert (hbm["transfer_ms"], dram["transfer_ms"]) == (0, pytest.approx(1250))
    assert result["ttft_ms"]["p99"] == pytest.approx(1034 + 1250)
    for offload in ((), ("--offload", "vllm@0.33")):  # the default, from the store
        assert simulated(capsys, *asked, *offload)["results"] == [result]


def test_tiers_have_a_table(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """A row a tier, with its hit rate and the wait; the summary names the tiers."""
    tiers = ["--tiers", "hbm=5blocks,dram=9blocks:read=1GiB/s", "--model", "vicuna-7b"]
    assert run(["simulate", trace, *options, *tiers, "--policy", "lru", "--full"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Offloading as in vLLM 0.33: stored when computed, prompts only, LRU." in words
    assert "Sizes: hbm=5blocks,dram=9blocks:read=1GiB/s." in words
    assert "Hits by tier" in words
    assert "lru dram" in words


def test_other_tools_definitions_are_reproduced(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """libCacheSim counts all blocks; kvcache-simulator the last half of the requests' tokens."""
    asked = (trace, *options, "--policy", "lru", "--capacity-blocks", "3")
    flat = simulated(capsys, *asked, "--compat", "libcachesim")["results"][0]
    assert flat["block_hit_rate"] == pytest.approx(2 / 7)
    assert flat["misses"] is None
    half = simulated(capsys, *asked, "--compat", "kvcache-simulator")["results"][0]
    assert half["token_hit_rate"] == pytest.approx(2 / 5)
