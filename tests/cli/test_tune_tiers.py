"""`kvscope tune --tiers`: the answer on one screen, a document, and conditions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.files import data_folder
from kvscope.tuning.file import read_recommendation
from kvscope.usecases.schemas import schema
from tests.cli.replayed import write_short
from tests.cli.shell import Streams

ENGINE = ("--gpu", "l4", "--model", "llama3-8b", "--num-gpu-blocks", "1000")
COMMON = ("--db", ":memory:", "--tiers", "--slo", "20s", *ENGINE, "--output", "-")
SIZES = ("--tier-sizes", "4GiB,16GiB")
PLAIN = "vllm@0.33:eviction_policy=lru"
"""An option stated: none is searched."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of 500 requests."""
    return write_short(tmp_path_factory.mktemp("trace"))


def document(capsys: Streams, *arguments: str, command: str = "tune-tiers") -> dict[str, Any]:
    """Return the document that a command prints."""
    assert run([*arguments, "--json"]) == ExitCode.DONE
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema(command)).validate(made)
    return made


def test_the_answer(capsys: Streams, trace: str) -> None:
    """Every way with every size is explored; flags are there with a recommendation alone."""
    made = document(
        capsys, "tune", trace, *COMMON, *SIZES, "--offload", f"{PLAIN},lmcache:chunk_size=256"
    )
    assert made["currency"] == "US$"
    assert made["verdict"] in {"pays", "helps", "keep-none"}
    assert {each["interval_tokens"] for each in made["explored"]} == {0}
    assert made["words"][0].startswith("Does offloading pay? ")
    assert (made["recommended"] is None) == (made["verdict"] == "keep-none")
    assert (made["launch"] is None) == (made["recommended"] is None)
    explored = {(each["offload"], each["size_bytes"]) for each in made["explored"]}
    assert explored == {(way, 2**30 * size) for way in ("vllm@0.33", "lmcache") for size in (4, 16)}
    largest = max(made["front"], key=lambda each: each["cost_hour"])
    assert largest["cost_hour"] == pytest.approx(0.004237 * largest["size_bytes"] / 2**30)


def test_prices_are_stated(capsys: Streams, trace: str) -> None:
    """A price of memory and one of GPUs; what is saved has one then."""
    prices = ("--dram-price", "0.5", "--gpu-hour", "2")
    made = document(
        capsys, "tune", trace, *COMMON, "--tier-sizes", "4GiB", "--offload", PLAIN, *prices
    )
    assert made["gpu_hour"] == 2
    assert made["currency"] is None
    row = made["explored"][0]
    assert row["cost_hour"] == 2.0
    alone = made["baseline"][0]["prefill_share"]
    tier = next((each for each in made["front"] if each["kind"]), None)
    assert tier is None or tier["saved_hour"] == pytest.approx(2 * (alone - tier["prefill_share"]))


def test_one_screen_and_conditions(capsys: Streams, trace: str) -> None:
    """The answer is the first sentence; a condition on the verdict holds or not."""
    one = ("tune", trace, *COMMON, *SIZES, "--offload", f"{PLAIN},vllm@0.33:store_threshold=2")
    code = run([*one, "--fail-on", "verdict!=pays,p95>1ms"])
    assert code == ExitCode.CHECK_FAILED
    printed = capsys.readouterr().out
    screen = printed.splitlines()
    assert "US$/hour" in printed
    assert "Prices an hour in US$: 0.004237 a GiB of CPU memory (list of " in printed
    assert len(screen) <= 45
    assert max(map(len, screen)) <= 100
    at = next(at for at, line in enumerate(screen) if line.startswith("Answer"))
    assert re.match(r"Does offloading pay\? (Yes|No|In part): ", screen[at + 1])
    assert run([*one, "--section", "tried"]) == ExitCode.DONE
    assert "store_threshold=2" in capsys.readouterr().out


def test_memory_that_is_there(capsys: Streams, trace: str) -> None:
    """A price of 0 is one that is stated, so that no amount is of the list."""
    one = (trace, *COMMON, "--tier-sizes", "4GiB", "--offload", PLAIN)
    assert run(["tune", *one, "--dram-price", "0", "--section", "assumed"]) == ExitCode.DONE
    stated = capsys.readouterr().out
    assert "Prices an hour, in the currency of yours: 0 a GiB of CPU memory (yours)" in stated


def test_writes_of_a_drive(capsys: Streams, trace: str) -> None:
    """Twice the rating wears it out half as much, and is charged so."""
    one = (trace, *COMMON, "--tier-sizes", "ssd:4GiB", "--offload", "lmcache:chunk_size=256")
    wear = {}
    for rated in ("0.5", "1"):
        made = document(capsys, "tune", *one, "--ssd-writes-per-day", rated)
        row = made["explored"][0]
        wear[rated] = row["wear"]
        rate = row["written_bytes_s"] * 86_400 / row["size_bytes"]
        assert row["wear"] == pytest.approx(rate / float(rated))
        assert row["cost_hour"] == pytest.approx(0.00011 * 4 * max(1.0, row["wear"]))
    assert wear["0.5"] == pytest.approx(2 * wear["1"])
    assert wear["0.5"] > 1


def test_files_below_cpu_memory(capsys: Streams, trace: str) -> None:
    """An SSD below is compared with its CPU memory alone, and priced with its writes."""
    made = document(
        capsys, "tune", trace, *COMMON, "--tier-sizes", "dram:4GiB+ssd:64GiB", "--offload", PLAIN
    )
    both, alone = sorted(made["explored"], key=lambda each: -each["files_bytes"])
    assert (both["kind"], both["size_bytes"], both["files_bytes"]) == ("dram", 2**32, 2**36)
    assert (alone["kind"], alone["size_bytes"], alone["files_bytes"]) == ("dram", 2**32, 0)
    assert alone["full_s"] is None
    assert both["full_s"] == pytest.approx(2**36 / both["written_bytes_s"])
    assert both["wear"] == pytest.approx(86_400 / both["full_s"] / 1.3)
    cost = 4 * 0.004237 + 64 * 0.00011 * max(1.0, both["wear"])
    assert both["cost_hour"] == pytest.approx(cost)
    assert both["tier_hit_rate"] > alone["tier_hit_rate"]


def test_files_below_hicache(capsys: Streams, trace: str) -> None:
    """Its options of files are those of CPU memory with an SSD below alone."""
    way = "sglang-hicache:write_policy=write_back"
    files = ("--tier-sizes", "dram:4GiB+ssd:64GiB")
    prefetches = f"{way}:hicache_storage_prefetch_policy=wait_complete"
    made = document(capsys, "tune", trace, *COMMON, *files, "--offload", prefetches)
    tried = {each["offload"]: each["files_bytes"] for each in made["explored"]}
    assert tried == {way: 0, prefetches: 2**36}


def test_the_file_is_replayed_with_its_pool_alone(
    capsys: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the last quarter, both figures are those of the recommendation; other readers refuse it.

    A file that recommends a tier stays where the next answer is to keep none.
    """
    monkeypatch.chdir(tmp_path)
    agents = str(data_folder("sample_traces") / "agent.jsonl.gz")
    slower = (agents, "--db", ":memory:", "--rate-scale", "0.125")
    engine = ("--gpu", "h200", "--model", "llama3-70b", "--weight-dtype", "fp8")
    size = ("--tiers", "--offload", PLAIN, "--tier-sizes", "230GiB", "--gpu-hour", "3.5")
    tune = ("tune", *slower, "--slo", "30s", *engine, *size)
    made = document(capsys, *tune)
    assert made["verdict"] == "pays"
    advice = ("--recommendation", "recommendation.toml")
    replay = ("simulate", *slower, *advice)
    replayed = document(capsys, *replay, "--warmup", "75%", command="simulate")
    (tiered,) = replayed["results"]
    assert replayed["tier_mode"] == "vllm@0.33"
    for run_of, figures in (
        (replayed["alone"], made["baseline"][1]),
        (tiered, made["recommended"]),
    ):
        assert run_of["token_hit_rate"] == pytest.approx(figures["token_hit_rate"])
        p95_ms = run_of["queued_ttft_ms"]["p95"]
        assert p95_ms == pytest.approx(figures["ttft_at_percentile_ms"], rel=1e-6)
    assert run([*replay, "--offload", "lmcache"]) == ExitCode.USAGE
    assert "--offload: the recommendation settles this" in capsys.readouterr().err
    assert run([*replay, "--db", "store.duckdb"]) == ExitCode.DONE
    words = " ".join(capsys.readouterr().out.split())
    assert re.search(r"The recommended tier takes p95 TTFT from .* to .* \(SLO 30 s\)", words)
    assert "pool alone" in words
    assert "with the tier" in words
    assert run(["runs", "agent", "--db", "store.duckdb", "--json"]) == ExitCode.DONE
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(each["tier_mode"], len(each["tiers"])) for each in runs] == [
        (None, 0),
        ("vllm@0.33", 2),
    ]
    for reader in (("validate", agents, "--model", "x"), ("watch", str(tmp_path), *advice)):
        assert run(reader) == ExitCode.USAGE
        assert f"it recommends a tier, which {reader[0]} does not " in capsys.readouterr().err
    dear = (*tune, "--dram-price", "99")
    assert run(dear) == ExitCode.DONE
    assert "recommends a tier and was left as it is" in capsys.readouterr().err
    assert run([*dear, "--output", "x.toml"]) == ExitCode.DONE
    assert run(["diff", "recommendation.toml", "x.toml"]) == ExitCode.DONE
    assert "230 GiB dram, vllm@0.33" in capsys.readouterr().out
    assert run([*dear, "--force"]) == ExitCode.DONE
    for name in ("x.toml", "recommendation.toml"):
        assert read_recommendation(Path(name)).verdict == "keep-none"
