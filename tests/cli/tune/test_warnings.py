"""What the reader has to know stands before the verdict; a file that is in use stays."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import contenders
from kvscope.tuning.flags import flags
from tests.cli.shell import Streams
from tests.cli.tune.asked import HERE, document, told, write_trace
from tests.tuning.examples import in_turn


def test_latencies_of_another_model_and_of_shorter_prompts(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """A preset of a 7B model that was measured to 2,048 tokens says so for 70B and 3,200 tokens."""
    path = str(write_trace(tmp_path / "long.jsonl", in_turn(blocks=200)))
    alike = (path, *options[:2], "--policy", "tlru", "--slo", "10s", "--capacity-blocks", "3500")
    words = told(capsys, *alike, "--model", "llama3-70b")
    other = words.index("TTFT is that of llama2-7b (llama2-7b-a100), not of llama3-70b")
    longer = words.index("100% of the prompts are longer than the 2,048 tokens that llama2-7b-a100")
    assert max(other, longer) < words.index("Keep LRU")
    assert "not of llama2-7b" not in told(capsys, *alike)
    measured = told(capsys, path, *options, "--slo", "10s", "--model", "llama3-70b", *HERE)
    assert "TTFT is that of" not in measured
    assert "are longer than" not in measured


def test_sessions_without_a_common_clock(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """That it is not known when they begin, and what that moves, stands before the verdict."""
    path = tmp_path / "sessions.jsonl.gz"
    sessions = [
        {
            "id": f"s{number}",
            "models": ["m"],
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [
                {
                    "t": 10.0 * turn,
                    "type": "s",
                    "model": "m",
                    "in": 64 * 5,
                    "out": 9,
                    "hash_ids": list(range(1, 6)),
                }
                for turn in range(25)
            ],
        }
        for number in range(24)
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, sessions)).encode()))
    asked = (str(path), *options, "--slo", "200ms", "--capacity-blocks", "20")
    words = told(capsys, *asked)
    said = "The sessions have no common clock: as placed, 1.08 are open at a time"
    spread = "LRU on held-out requests: p95 TTFT 74 ms to 330 ms, hit rate 13.3% to 77.3%"
    assert -1 < words.index(said) < words.index(spread) < words.index("Keep LRU")
    assert "--session-arrivals" in words
    found = document(capsys, *asked)
    layouts = [end for end in found["ends"] if end["sessions"]]
    assert len(layouts) == len(found["ends"]) == 5
    counts = [end["sessions"]["open_sessions"] for end in layouts]
    assert f"With {min(counts):.3g} to {max(counts):.3g} open" in words
    assert {end["verdict"] for end in layouts} >= {"keep-lru", "add-capacity"}
    assert not found["recommendation"]["certain"]
    assert document(capsys, *asked)["ends"] == found["ends"]
    placed = (*asked, "--session-arrivals", "poisson:0.1/s", "--name", "poisson")
    assert "no common clock" not in told(capsys, *placed)
    assert not any(end["sessions"] for end in document(capsys, *placed)["ends"])


def test_no_policy_but_those_that_an_engine_runs() -> None:
    """By default only policies that the plugin runs, or SGLang by flags."""
    vllm, sglang = contenders("vllm").split(","), contenders("sglang").split(",")
    assert "gittins" in vllm
    assert all(flags(by_name(name)()).vllm for name in vllm)
    finite = {"tlru": {"xi_tokens": 100.0, "next_prompt_tokens": 10.0}}
    assert all(flags(by_name(name)(finite.get(name, {}))).sglang for name in sglang)


def test_doubts_about_a_deployment_are_listed(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """What its pool and latency leave open stands among the assumptions."""
    hybrid = ("--engine", "sglang", "--model", "gpt-oss-20b", "--num-gpu-blocks", "360")
    words = told(capsys, trace, *options, *hybrid, "--slo", "10s", "--full")
    assert "12 of 24 layers look only 128 tokens back" in words


def test_a_preset_of_another_model_keeps_its_band(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The line stands before the verdict, and the verdict is repeated at both ends."""
    preset = ("--latency", "llama2-7b-a100", "--model", "llama3-70b", "--num-gpu-blocks", "360")
    asked = (trace, *options[:2], "--policy", "tlru", *preset, "--slo", "10s", "--output", "-")
    words = told(capsys, *asked)
    assert "not of llama3-70b: leave out --latency, or measure it with kvscope calibrate" in words
    assert "prefill 0.65x as long" in words
    assert "prefill 1.65x as long" in words
