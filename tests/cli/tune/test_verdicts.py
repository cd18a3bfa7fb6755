"""`kvscope tune` as its user sees it: verdicts and the JSON contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.report.words import money
from tests.cli.shell import Streams
from tests.cli.tune.asked import DEPLOYED, HERE, document, told, write_trace
from tests.tuning.examples import in_turn

pytestmark = pytest.mark.usefixtures("tuned_once")


def test_switch(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What to switch to, from what to what, how sure, the price; a cache study has no flags."""
    words = told(capsys, trace, *options, "--slo", "200ms", *HERE)
    assert "Recommendation: do now" in words
    found = re.search(
        r"Do now, free: tlru, ξ \d+: p95 TTFT 330 ms -> (\d+) ms \(-[\d.]+%, 95% CI"
        r" no spread: all resamples agree\) on the later requests\.",
        words,
    )
    assert found is not None
    assert int(found[1]) <= 200
    assert re.search(
        r"Also: .*p50 330 ms -> \d+ ms .*hit rate 0.0% -> .*prefills/s 3.03 -> ", words
    )
    assert re.search(
        r"SLO of 200 ms for p95 TTFT on the later requests: tlru meets it \(\d+ ms, 95% CI \d+ ms"
        r" to \d+ ms\), lru misses it \(330 ms, 95% CI 330 ms to 330 ms\)\.",
        words,
    )
    assert "A cache study: name the deployment (--gpu, --model) for an engine's flags." in words
    assert "--scheduler-cls" not in words
    assert "--radix-eviction-policy" not in words


def test_switch_of_a_deployment(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """The flags to paste, with the pool and the limits that the figures are of; and a canary."""
    words = told(capsys, trace, *options, "--slo", "200ms", *DEPLOYED)
    assert "Recommendation: do now" in words
    assert "For: 1 x h100, llama3-8b in bf16, vllm@0.33." in words
    assert (
        "--scheduler-cls kvscope.vllm_plugin.KvscopeScheduler --num-gpu-blocks-override 360"
        in words
    )
    assert "--num-gpu-blocks-override 360 --max-num-seqs 1024 --max-num-batched-tokens" in words
    assert "Canary: one engine, alternating with LRU for " in words


def test_switch_of_sglang(
    trace: str, options: tuple[str, ...], capsys: Streams, tmp_path: Path
) -> None:
    """Its tlru can evict a conversation's latest turns, but no part of a prompt that came whole."""
    tokens = (*DEPLOYED[:-1], "5760", "--engine", "sglang")  # it caches single tokens
    whole = told(capsys, trace, *options, "--slo", "200ms", *tokens)
    assert "No change: no policy is likely better than LRU" in whole
    requests = in_turn()
    turns = [replace(one, input_tokens=160, hash_ids=one.hash_ids[:10]) for one in requests[:20]]
    grown = write_trace(tmp_path / "grown.jsonl", [*turns, *requests[20:]])
    words = told(capsys, str(grown), *options, "--slo", "200ms", *tokens)
    assert "SGLang: --radix-eviction-policy tlru --radix-eviction-policy-config" in words
    assert "requests (simulated SGLangs). 95% CI of that number: " in words
    assert "Simulated by SGLang's scheduler and prefix tree" in words
    assert "vllm serve" not in words


def test_what_a_switch_saves(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """The replicas that LRU needs for the same SLO, simulated, at the price of their GPUs."""
    priced = ("--slo", "200ms", *DEPLOYED, "--gpu-hour", "2.5")
    found = document(capsys, trace, *options, *priced)
    best = found["recommendation"]
    assert best["verdict"] == "switch"
    replicas, (lru, choice) = best["replicas_at_least"], best["fewest"]
    assert lru["replicas"] == replicas > choice["replicas"] == 1
    assert best["replicas_price_hour"] == 2.5 * replicas
    assert best["extra_price_hour"] == 2.5 * (replicas - 1)
    assert found["least_capacity"] == {"lru": None, "best": None}
    words = told(capsys, trace, *options, *priced)
    saved = money(best["extra_price_hour"])
    assert f"{money(2.5 * replicas)} an hour, {saved} more than now) meet the SLO" in words
    assert f"The change saves {saved} an hour." in words
    words = told(capsys, trace, *options, *priced[:-2])
    meets = f"With LRU, {replicas} replicas behind session meet the SLO of 200 ms on the later"
    assert f"{meets} requests. 95% CI of that number: " in words
    assert "With tlru, 1 does." in words
    assert "an hour" not in words


def test_a_switch_that_carries_the_load(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """LRU takes 330 ms a request and gets one every 250 ms; what hits takes less and keeps up."""
    fast = ("--slo", "200ms", *DEPLOYED, "--rate-scale", "4")
    found = document(capsys, trace, *options, *fast)
    assert found["load"]["overloaded"]
    assert found["load"]["replicas_at_least"] > 1
    best = found["recommendation"]
    assert best["verdict"] == "switch"
    assert not best["lru"]["held_out"]["keeps_up"]
    assert best["choice"]["held_out"]["keeps_up"]
    assert "(stated). Arrivals 4 times as fast." in told(capsys, trace, *options, *fast)


def test_overloaded(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Requests faster than any cache serves them: replicas first, and what the present carry."""
    fast = ("--slo", "200ms", *DEPLOYED, "--rate-scale", "100")
    words = told(capsys, trace, *options, *fast)
    assert "Recommendation: overloaded" in words
    assert "Overloaded: 1 replica cannot serve these arrivals." in words
    assert re.search(r"At least \d+ replicas keep up", words)
    assert re.search(r"With \d+% of the conversations the queue of 1 replica stops growing", words)
    assert "No flags: no engine setting fixes this." in words
    found = document(capsys, trace, *options, *fast)
    assert found["changes"] == []
    assert found["recommendation"]["flags"] == {"sglang": None, "vllm": None}


def test_what_is_longer_than_the_pool_is_named_first(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Requests of 21 blocks never fit 17: the engine rejects all of them, each a violation."""
    small = (*DEPLOYED[:-1], "18")
    words = told(capsys, trace, *options, "--slo", "200ms", *small)
    assert "240 of 240 requests are longer than the pool of" in words
    found = document(capsys, trace, *options, "--slo", "200ms", *small)
    assert found["recommendation"]["baseline"]["rejected"] == 120
    assert found["recommendation"]["baseline"]["attainment"] == 0


def test_keep_lru(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """LRU is good enough, and less of it would be, too; vLLM's flags are for what there is."""
    words = told(capsys, trace, *options, "--slo", "200ms", "--capacity-blocks", "1000")
    assert "Keep LRU: LRU has a p95 TTFT of 26 ms on held-out requests at 1,000 blocks" in words
    assert re.search(r"You could shrink: LRU meets it down to 3(89|9\d) blocks", words)
    assert "vLLM: " not in words
    words = told(capsys, trace, *options, "--slo", "200ms", *DEPLOYED[:-1], "1001")
    assert "vLLM: --num-gpu-blocks-override 1001" in words
    assert "--scheduler-cls" not in words


def test_an_slo_that_no_cache_is_needed_for(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Every prompt computed whole is within the SLO: the least capacity is none."""
    words = told(capsys, trace, *options, "--slo", "1s", *HERE)
    assert "You could shrink: the SLO is met without any cache." in words


def test_unreachable(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """What even an infinite cache leaves, and what a policy is worth all the same."""
    words = told(capsys, trace, *options, "--slo", "20ms", *HERE)
    assert "Recommendation: do now" in words
    assert "No cache meets the SLO of 20 ms: on the validation window even an infinite one" in words
    assert "has a p95 TTFT of 26 ms." in words
    assert re.search(r"Do now, free: tlru, ξ \d+: p95 TTFT 330 ms -> ", words)
    assert re.search(r"tlru misses it \(\d+ ms, .*lru misses it \(330 ms", words)
    words = told(capsys, trace, *options[:4], "--policy", "lru", "--slo", "20ms", *HERE)
    assert "Recommendation: unreachable" in words
    assert "LRU has a p95 TTFT of 330 ms on the validation window" in words
    assert "Faster prefill or shorter prompts remain." in words
    capacity = ("--slo", "20ms", *HERE, "--section", "capacity")
    words = told(capsys, trace, *options[:4], "--policy", "lru", *capacity)
    assert "none; an infinite cache does not meet it" in words


def test_add_capacity(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """LRU fails here, no policy is enough, more blocks are."""
    here = ("--slo", "100ms", "--capacity-blocks", "100")
    words = told(capsys, trace, *options, *here)
    assert "Recommendation: do now" in words
    assert re.search(r"meets it at [\d,]+ blocks.*: p95 TTFT ", words)
    words = told(capsys, trace, *options[:4], "--policy", "lru", *here)
    assert "Recommendation: add-capacity" in words
    assert re.search(r"Add capacity: LRU has .* at 100 blocks, beyond the SLO of 100 ms\.", words)
    assert re.search(r"meets it at [\d,]+ blocks.*: p95 TTFT ", words)


def test_a_range_that_ends_too_soon(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Nothing is claimed of a capacity that nobody looked at."""
    model = ("--model", "vicuna-7b")  # 8 MiB a block
    words = told(
        capsys,
        *(trace, *options, *model, "--slo", "30ms", "--capacity-blocks", "100"),
        *("--capacity-range", "80MiB..1.5GiB"),
    )
    assert "No capacity within the search range meets it." in words
