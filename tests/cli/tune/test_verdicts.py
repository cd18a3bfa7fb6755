"""`kvscope tune` as its user sees it: verdicts and the JSON contract."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.tune.asked import HERE, document, told, write_trace, write_untold
from tests.tuning.examples import BLOCK, chats, disturbed, in_turn

Streams = pytest.CaptureFixture[str]


def test_switch(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What to switch to, from what to what, how sure, the price, and the flags to paste."""
    words = told(capsys, trace, *options, "--slo", "200ms", *HERE)
    assert "Recommendation: switch" in words
    found = re.search(
        r"Switch to tlru xi_tokens=(\d+): p95 TTFT 330 ms -> (\d+) ms \(-[\d.]+%, 95% CI"
        r" same in all\), within the SLO of 200 ms in (?:9\d|100)% of the bootstrap"
        r" resamples, at 350 blocks\.",
        words,
    )
    assert found is not None
    assert int(found[2]) <= 200
    assert re.search(r"Also: p50 330 ms -> \d+ ms .*hit rate 0.0% -> .*prefills/s 3.03 -> ", words)
    assert (
        "SGLang: --radix-eviction-policy tlru --radix-eviction-policy-config"
        f""" '{{"threshold":{found[1]},"next_prompt_estimate":0}}' --max-total-tokens 5600"""
    ) in words
    assert "--scheduler-cls kvscope.vllm_plugin.KvscopeScheduler --block-size 16" in words


def test_keep_lru(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """LRU is good enough, and less of it would be, too; vLLM's flags are for what there is."""
    words = told(capsys, trace, *options, "--slo", "200ms", "--capacity-blocks", "1000")
    assert "Keep LRU: LRU has a p95 TTFT of 26 ms at 1,000 blocks" in words
    assert re.search(r"You could shrink: LRU meets it down to 3(89|9\d) blocks", words)
    assert "vLLM: --block-size 16 --num-gpu-blocks-override 1001" in words
    assert "SGLang: --radix-eviction-policy lru --max-total-tokens 16000" in words


def test_an_slo_that_no_cache_is_needed_for(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Every prompt computed whole is within the SLO: the least capacity is none."""
    words = told(capsys, trace, *options, "--slo", "1s", *HERE)
    assert "You could shrink: the SLO is met without any cache." in words


def test_unreachable(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What even an infinite cache leaves, and what a policy is worth all the same."""
    words = told(capsys, trace, *options, "--slo", "20ms", *HERE)
    assert "Recommendation: unreachable" in words
    assert "No cache can meet the SLO of 20 ms: even an infinite one" in words
    assert "has a p95 TTFT of 26 ms. LRU has a p95 TTFT of 330 ms" in words
    assert "What remains is faster prefill or shorter prompts." in words
    assert "none; an infinite cache does not meet it" in words


def test_add_capacity(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """LRU fails here, no policy is enough, more blocks are."""
    words = told(capsys, trace, *options, "--slo", "100ms", "--capacity-blocks", "100")
    assert "Recommendation: add-capacity" in words
    assert re.search(
        r"Add capacity: LRU has .* no policy significantly meets the SLO of 100 ms", words
    )
    assert re.search(r"meets it at [\d,]+ blocks.*: p95 TTFT ", words)


def test_a_range_that_ends_too_soon(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Nothing is claimed of a capacity that nobody looked at."""
    model = ("--model", "vicuna-7b")  # 8 MiB a block
    words = told(
        capsys,
        *(trace, *options, *model, "--slo", "30ms", "--capacity-blocks", "100"),
        *("--capacity-range", "80MiB..1.5GiB"),
    )
    assert "Add capacity" in words
    assert "No capacity within the search range meets it." in words


def test_the_document_keeps_its_contract(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Scripts depend on these keys; they may only grow."""
    model = ("--model", "vicuna-7b", "--hbm", "80GiB")
    found = document(capsys, trace, *options, "--slo", "200ms", *HERE, *model)
    assert (found["command"], found["schema"]) == ("tune", 1)
    assert found["trace"]["name"] == "turns"
    best = found["recommendation"]
    assert set(best) >= {
        *("verdict", "policy", "params", "capacity_blocks", "capacity_gib", "baseline"),
        *("expected", "gain", "flags"),
    }
    assert (best["verdict"], best["policy"], best["leaves"]) == ("switch", "tlru", "leaf")
    assert set(best["params"]) >= {"xi_tokens", "xi_ms", "next_prompt_tokens"}
    assert best["params"]["xi_ms"] == pytest.approx(10 + best["params"]["xi_tokens"])
    assert best["params"]["ttl_s"] is None  # infinite
    assert best["capacity_blocks"] == 350
    assert best["capacity_gib"] == pytest.approx(350 * BLOCK * 524_288 / 2**30)
    for name in ("p50", "p90", "p95", "p99", "violations", "tel"):
        assert set(best["gain"][name]) == {"value", "low", "high"}
    assert best["baseline"]["ttft_ms"]["p95"] == 330
    assert best["expected"]["violations"] == 0
    assert best["expected"]["meets_slo"] is True
    assert set(best["flags"]) == {"sglang", "vllm"}
    assert "KvscopeScheduler" in best["flags"]["vllm"]
    assert found["split"] == {
        "warmup_requests": 80,
        "chosen_on_requests": 160,
        "judged_requests": 160,
        "judged_from_s": 240,
    }
    assert len(found["explored"]) > 20
    assert {one["requests"] for one in found["explored"]} == {160}
    assert not any(one["hindsight"] for one in found["explored"])
    assert [one["hindsight"] for one in found["ceilings"]] == [True, True]
    assert set(found["least_capacity"]) == {"lru", "best"}


@pytest.mark.parametrize("told_by_the_trace", [True, False], ids=["given", "inferred"])
def test_what_is_explored_is_the_same_whatever_judges(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams, told_by_the_trace: bool
) -> None:
    """From file to JSON: other judged requests, the same trials, values, capacities, flags' xi."""
    trace = chats(7, told=told_by_the_trace)
    found = []
    for name, each in (("one", trace), ("other", disturbed(trace, 192, 7))):
        write = write_trace if told_by_the_trace else write_untold
        path = str(write(tmp_path / f"{name}.jsonl", each))
        wanted = ("--policies", "tlru,etlru,wa", "--slo", "200ms", "--block-size", "16")
        found.append(document(capsys, path, *options[:4], *wanted))
    one, other = found
    assert one["trace"]["lineage"] == ("given" if told_by_the_trace else "inferred")
    assert json.dumps(one["explored"]) == json.dumps(other["explored"])
    for key in ("capacity_blocks", "capacity_origin"):
        assert one[key] == other[key]
    chosen = [[(each["policy"], each["params"]) for each in doc["contenders"]] for doc in found]
    assert chosen[0] == chosen[1]
    for key in ("lru", "best"):
        least = [
            doc["least_capacity"][key] and doc["least_capacity"][key]["chosen"] for doc in found
        ]
        assert least[0] == least[1]
    assert one["infinite"] != other["infinite"]


def test_gains_are_there_for_lru_too(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What is kept gains nothing: zeros, where a script looks for figures."""
    found = document(capsys, trace, *options, "--slo", "200ms", "--capacity-blocks", "1000")
    best = found["recommendation"]
    assert (best["verdict"], best["policy"]) == ("keep-lru", "lru")
    assert best["gain"]["p95"] == {"value": 0, "low": 0, "high": 0}
    assert best["gain"]["violations"] == {"value": 0, "low": 0, "high": 0}


def test_unknown_intervals_are_null(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """Eight conversations are too few to tell: no number is made up."""
    few = str(write_trace(tmp_path / "few.jsonl", in_turn(8, 50)))
    found = document(capsys, few, *options, "--slo", "200ms", "--capacity-blocks", "140")
    (contender,) = found["contenders"]
    assert contender["gain"]["p95"]["value"] > 0.3
    assert contender["gain"]["p95"]["low"] is None
    assert found["recommendation"]["verdict"] == "add-capacity"
    words = told(capsys, few, *options, "--slo", "200ms", "--capacity-blocks", "140")
    assert "unknown: fewer than 10 conversations" in words


def test_lru_alone_can_be_asked_for(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """How much capacity LRU needs, with nothing beside it."""
    asked = (*options[:4], "--policies", "lru", "--slo", "100ms", "--capacity-blocks", "100")
    found = document(capsys, trace, *asked)
    assert found["recommendation"]["verdict"] == "add-capacity"
    assert found["recommendation"]["policy"] == "lru"
    assert found["contenders"] == []
