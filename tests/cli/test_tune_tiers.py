"""`kvscope tune --compare-tiers`: the answer on one screen, a document, and conditions."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from tests.cli.replayed import write_short
from tests.cli.shell import Streams, document, streams_of

ENGINE = ("--gpu", "h100", "--model", "llama3-8b", "--num-gpu-blocks", "3000")
COMMON = ("--db", ":memory:", "--compare-tiers", "--slo", "20s", "--policy", "lru", *ENGINE)
SLOW = ("--gpu", "l4", "--num-gpu-blocks", "1000")  # gains by more memory
AGENTS = {"gpu": "h200", "model": "llama3-70b", "weight_dtype": "fp8"}
"""Where a tier pays for the prompts of agents."""
POOL_ALONE = Path(__file__).parents[1] / "written_before" / "recommendation-tlru.toml"
NO_FILE = ("--output", "-")
PLAIN = "vllm@0.33:eviction_policy=lru"
"""An option stated: none is searched."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of 500 requests."""
    return write_short(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of 420 requests of agents."""
    return write_short(tmp_path_factory.mktemp("agents"), 420, "agent")


def rows(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows with a tier."""
    return [row for row in made["rows"] if row["change"]["tier"]]


def test_every_way_and_size_is_an_option(capsys: Streams, tmp_path: Path) -> None:
    """A price is of the list, or of yours; what is saved has the GPU's."""
    trace = write_short(tmp_path, 420)
    ways = "vllm@0.33", "vllm@0.33:store_threshold=2"
    sizes = ("--tier-size", "4GiB,16GiB", "--offload", f"{PLAIN},{ways[1]}")
    prices = ("--gpu-hour", "2", "--dram-price", "0.004")
    made = document(capsys, "tune", trace, *COMMON, *SLOW, *sizes, *NO_FILE, *prices)
    tried = {(row["change"]["tier"]["offload"], row["change"]["tier"]["gib"]) for row in rows(made)}
    assert tried <= {(way, size) for way in ways for size in (4, 16)}
    assert len(tried) > 1
    today = made["rows"][0]
    for row in rows(made):
        tier = row["change"]["tier"]
        assert tier["price_hour"] == pytest.approx(0.004 * tier["gib"])
        assert row["price_per_hour"] == pytest.approx(2 + tier["price_hour"])
        freed = today["utilization"] - row["utilization"]
        assert row["saves_per_hour"] == pytest.approx(2 * freed)
    assert (made["add_tier"] is None) == (made["tier_doubt"] is not None)


@pytest.mark.parametrize(
    ("requests", "gib", "options", "rated"),
    [(500, 64, (), 1.3), (420, 4, ("--ssd-writes-per-day", "0.5", *SLOW), 0.5)],
)
def test_files_below_cpu_memory(
    capsys: Streams,
    tmp_path: Path,
    requests: int,
    gib: int,
    options: tuple[str, ...],
    rated: float,
) -> None:
    """An SSD below is compared with its CPU memory alone, and priced with its writes.

    Beyond its rating it wears out, and is charged so.
    """
    sizes = ("--tier-size", f"dram:4GiB+ssd:{gib}GiB", "--offload", PLAIN)
    trace = write_short(tmp_path, requests)
    made = document(capsys, "tune", trace, *COMMON, *sizes, *NO_FILE, *options)
    *alone, both = sorted(
        (row["change"]["tier"] for row in rows(made)), key=lambda x: x["files_gib"]
    )
    assert (both["gib"], both["files_gib"]) == (4, gib)
    assert {(each["gib"], each["files_gib"], each["full_s"]) for each in alone} <= {(4, 0, None)}
    assert alone or options
    assert both["full_s"] == pytest.approx(gib * 2**30 / both["written_bytes_s"])
    assert both["wear"] == pytest.approx(86_400 / both["full_s"] / rated)
    assert both["wear"] > 1
    cost = 4 * 0.004237 + gib * 0.00011 * max(1.0, both["wear"])
    assert both["price_hour"] == pytest.approx(cost)


def test_files_that_all_replicas_share(capsys: Streams, trace: str) -> None:
    """An option is that fleet above its pool, at a part of its price; CPU memory alone is another.

    What `kvscope fleet` says of it is the same.
    """
    pool = "dram:8GiB+shared:64GiB:bandwidth=40GB/s:evict=lru"
    fleet = (trace, "--db", ":memory:", *ENGINE, "--replicas", "2", "--slo", "300ms")
    memory = ("--compare-tiers", "--tier-size", pool, "--offload", PLAIN, "--pool-price", "0.001")
    others = ("--policy", "lru", "--gpu-hour", "2", "--warmup", "0", *NO_FILE)
    made = document(capsys, "tune", *fleet, *memory, *others)
    row, more = (row for row in rows(made) if row["change"]["tier"]["shared"])
    assert (row["change"]["replicas"], more["change"]["replicas"] > 2) == (2, True)
    tier = row["change"]["tier"]
    assert (tier["gib"], tier["files_gib"], tier["full_s"]) == (8, 64, None)
    daily = 2 * tier["written_bytes_s"] * 86_400 / (64 << 30)
    assert tier["wear"] == pytest.approx(daily / 1.3)
    assert tier["price_hour"] == pytest.approx(8 * 0.004237 + 64 * 0.001 * max(1, tier["wear"]) / 2)
    assert row["price_per_hour"] == pytest.approx(2 * (2 + tier["price_hour"]))
    assert {each["change"]["tier"]["files_gib"] for each in rows(made)} <= {0, 64}
    split = made["split"]
    warmup = 500 - split["validation_requests"] - split["held_out_requests"]
    share = f"{100 * (warmup + 0.5) / 500}%"
    behind = ("--router", "session", "--tier-size", pool, "--warmup", share)
    study = document(capsys, "fleet", *fleet, *behind)
    held, evicted = (
        next(each[part] for each in study["pool_sizes"] if each["gib"] == 64)
        for part in ("used_gib", "evicted_gib")
    )
    span_s = study["trace"]["span_s"]
    assert 2 * tier["written_bytes_s"] * span_s == pytest.approx((held + evicted) * 2**30)
    assert evicted > 0
    (same,) = study["fleets"]
    assert same["hit_rate"] == pytest.approx(row["hit_rate"])
    assert same["ttft_at_percentile_ms"] == pytest.approx(row["ttft_ms"]["p95"]["value"])


@pytest.mark.parametrize("evicts", [True, False])
def test_a_shared_pool_is_added_in_words(agents: str, evicts: bool) -> None:
    """What it writes a day, who deletes its files and when it is full are all replicas'."""
    size = "dram:64GiB+shared:1TiB" + (":evict=lru" if evicts else "")
    slower: dict[str, Any] = {"rate_scale": 0.125, "slo": "30s", "replicas": 2, "policy": "lru"}
    slower["num_gpu_blocks"] = 11_778  # in another pool, another change may be the one
    memory = {"compare_tiers": True, "tier_size": size, "offload": PLAIN}
    tuned = kvscope.tune(agents, db=":memory:", **slower, **AGENTS, **memory)
    text = " ".join(html.unescape(re.sub("<[^>]+>", " ", tuned._repr_html_())).split())
    assert "64 GiB of CPU memory below each pool and 1 TiB of files that all replicas" in text
    made = tuned.to_dict()
    tier = made["rows"][made["add_tier"]]["change"]["tier"]
    daily = 2 * tier["written_bytes_s"] * 86_400 / 2**40
    assert f"{daily:.2f} TiB a day are written, {tier['wear']:.2f} times" in text
    deleting = "PATH: one folder for all replicas, where you delete the files used least recently"
    filling = "PATH: one folder for all replicas; vLLM fills what space is free."
    assert (f"{deleting} above 1 TiB, as vLLM does not." in text, filling in text) == (
        evicts,
        not evicts,
    )
    full = "the shared pool of 1 TiB is full after 8 h 56 min at the earliest"
    assert (full in text, "a disk full of other files" in text) == (not evicts, not evicts)
    if not evicts:
        assert tier["full_s"] == pytest.approx(86_400 / daily)
        assert round(tier["full_s"] / 60) == 8 * 60 + 56


def test_the_file_is_replayed_with_its_pool_alone(
    agents: str, capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both figures on the last quarter are those of the recommendation; others refuse the file."""
    monkeypatch.chdir(tmp_path)
    slower = (agents, "--db", ":memory:", "--rate-scale", "0.0625")
    engine = [f"--{name.replace('_', '-')}={value}" for name, value in AGENTS.items()]
    size = ("--compare-tiers", "--offload", PLAIN, "--tier-size", "230GiB", "--gpu-hour", "3.5")
    tune = ("tune", *slower, "--slo", "30s", "--policy", "lru", *engine, *size)
    made = document(capsys, *tune)
    recommended = made["recommendation"]
    assert recommended["verdict"] == "switch"
    assert made["add_tier"] is not None
    assert "OffloadingConnector" in recommended["flags"]["vllm"]
    advice = ("--recommendation", "recommendation.toml")
    replay = ("simulate", *slower, *advice)
    replayed = document(capsys, *replay, "--warmup", "75%")
    (tiered,) = replayed["results"]
    assert replayed["tier_mode"] == "vllm@0.33"
    for run_of, figures in (
        (replayed["alone"], recommended["baseline"]),
        (tiered, recommended["expected"]),
    ):
        assert run_of["token_hit_rate"] == pytest.approx(figures["token_hit_rate"])
        p95_ms = run_of["queued_ttft_ms"]["p95"]
        assert p95_ms == pytest.approx(figures["times_ms"]["p95"], rel=1e-6)
    assert run([*replay, "--offload", PLAIN]) == ExitCode.USAGE
    assert "--offload: the recommendation settles this" in capsys.readouterr().err
    words = " ".join(streams_of(capsys, *replay, "--db", "store.duckdb").out.split())
    assert re.search(r"The recommended tier takes p95 TTFT from .* to .* \(SLO 30 s\)", words)
    assert "pool alone" in words
    assert "with the tier" in words
    assert run(["runs", "short", "--db", "store.duckdb", "--json"]) == ExitCode.DONE
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(each["tier_mode"], len(each["tiers"])) for each in runs] == [
        (None, 0),
        ("vllm@0.33", 2),
    ]
    for reader in (("validate", agents, "--model", "x"), ("watch", str(tmp_path), *advice)):
        assert run(reader) == ExitCode.USAGE
        assert f"it recommends a tier, which {reader[0]} does not " in capsys.readouterr().err
    assert run(["diff", "recommendation.toml", str(POOL_ALONE)]) == ExitCode.DONE
    assert "230 GiB dram, vllm@0.33" in capsys.readouterr().out
