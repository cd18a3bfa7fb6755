"""Compare gittins with LRU and T-LRU on a real vLLM, where the simulator predicts a gain.

Run it in an environment that has vLLM and kvscope, on a quiet machine: TTFT depends on its load.
Concurrent conversations with pauses between turns share the cache with calls that have no follow-up
turn. LRU evicts histories for the calls' prompts just before their next turns. `tune` learns from a
trace of one seed, and a trace of another seed is served.

calibrate -> tune --policy gittins -> validate --replay both --sequential, the same with tlru.
Exits with 0 if both are confirmed and the order of the policies is measured as predicted.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live_vllm import BLOCK, MODEL, OUTPUT_TOKENS, longer, run, show
from kvscope.latency.file import read_profile

BLOCKS = 270
SLO_TOKENS = 350  # the SLO is the prefill time of this many uncached tokens
TALKS, FIRST_TOKENS, TURN_TOKENS, TURNS = 12, 520, 16, 30
THINK_S = (63.0, 117.0)
CALL_EVERY_S, CALL_TOKENS = 45.0, 1_100
LONGEST, TRAINING_REQUESTS = 1_152, 1_200
FIGURE = "p50"  # most requests are turns; the slowest are calls, which no policy helps
POLICIES = ("gittins", "tlru")
SMALLER = MODEL | {"num_hidden_layers": 3}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=300, help="of the served trace")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each policy")
    parser.add_argument("--folder", type=Path, help="keep traces, profile and reports here")
    parser.add_argument("--only", choices=POLICIES, help="the other one's report is in --folder")
    options = parser.parse_args()
    if options.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return _run_all(Path(folder), options.requests, options.repeats, None)
    options.folder.mkdir(parents=True, exist_ok=True)
    return _run_all(options.folder.resolve(), options.requests, options.repeats, options.only)


def _run_all(folder: Path, requests: int, repeats: int, only: str | None) -> int:
    (folder / "mid").mkdir(exist_ok=True)
    (folder / "mid" / "config.json").write_text(json.dumps(SMALLER), encoding="utf-8")
    write_traces(folder, requests)
    if not (folder / "latency.toml").exists():
        run(folder, f"calibrate --model mid --max-tokens {LONGEST}")
    slo_ms = float(read_profile(folder / "latency.toml").ttft_s(SLO_TOKENS, 0)) * 1e3
    for policy in (only,) if only else POLICIES:
        tuned = run(
            folder,
            f"tune training.jsonl --policy {policy} --capacity-blocks {BLOCKS}"
            f" --slo {slo_ms:.0f}ms --percentile {FIGURE} --latency latency.toml"
            f" --output {policy}.toml --json",
        )
        print(f"recommended: {tuned['recommendation']['policy']}")
        validation = run(
            folder,
            "validate served.jsonl --model mid --replay both --sequential --latency latency.toml"
            f" --recommendation {policy}.toml --repeats {repeats} --html {policy}.html --json",
        )
        (folder / f"{policy}.json").write_text(json.dumps(validation), encoding="utf-8")
        show(validation)
    reports = [folder / f"{policy}.json" for policy in POLICIES]
    if not all(path.exists() for path in reports):
        return 0
    return int(not _agree([json.loads(path.read_text(encoding="utf-8")) for path in reports]))


def write_traces(folder: Path, requests: int, *, times: int = 1, block: int = BLOCK) -> None:
    """Write training.jsonl, and served.jsonl of `requests`, which no choice sees."""
    for name, count, seed in (("training", TRAINING_REQUESTS, 1), ("served", requests, 2)):
        trace = calls_and_conversations(count, seed, times=times, block=block)
        text = "\n".join(map(json.dumps, trace)) + "\n"
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def _agree(validations: list[dict[str, Any]]) -> bool:
    """Return True if all are confirmed and gittins is faster or slower as predicted."""
    ttft_ms: dict[str, dict[str, list[float]]] = {}
    for validation in validations:
        for policy_run in validation["runs"]:
            sides = ttft_ms.setdefault(policy_run["policy"], {"predicted": [], "measured": []})
            for side, figures in sides.items():
                figures.append(policy_run[side]["ttft_ms"][FIGURE])
    mean = {
        policy: {side: float(np.mean(values)) for side, values in sides.items()}
        for policy, sides in ttft_ms.items()
    }
    alike = True
    for policy in ("lru", "tlru"):
        predicted, measured = (
            mean["gittins"][side] / mean[policy][side] - 1 for side in ("predicted", "measured")
        )
        gains = f"measured {measured:+.1%}, predicted {predicted:+.1%}"
        print(f"{FIGURE} TTFT, gittins vs {policy}: {gains}")
        alike = alike and (predicted < 0) == (measured < 0)
    return alike and all(x["verdict"] == "confirmed" for x in validations)


def calls_and_conversations(
    requests: int, seed: int, *, times: int = 1, block: int = BLOCK
) -> Iterator[dict[str, Any]]:
    """Yield a bailian trace of `TALKS` concurrent conversations of random length, and calls.

    All lengths but those of outputs are taken `times` times.
    """
    rng = np.random.default_rng(seed)
    due: list[tuple[float, int, dict[str, Any]]] = []  # time, order, state of the conversation
    fresh = made = 0

    def schedule(at_s: float, state: dict[str, Any]) -> None:
        nonlocal made
        heapq.heappush(due, (at_s, made, state))
        made += 1

    for _ in range(TALKS):
        schedule(float(rng.uniform(0.0, THINK_S[1])), {"kind": "chat"})
    schedule(float(rng.exponential(CALL_EVERY_S)), {"kind": "api"})
    for number in range(requests):
        at_s, _, state = heapq.heappop(due)
        kind, history = state["kind"], state.get("history", [])
        mean = CALL_TOKENS if kind == "api" else TURN_TOKENS if history else FIRST_TOKENS
        before = state.get("tokens", 0)
        prompt = before + times * int(rng.integers(mean - 16, mean + 17))
        blocks, fresh = longer(history[: before // block], prompt, fresh, block)
        yield {
            "chat_id": number,
            "parent_chat_id": state.get("parent", -1),
            "timestamp": round(at_s, 3),
            "input_length": prompt,
            "output_length": OUTPUT_TOKENS,
            "type": kind,
            "hash_ids": blocks,
            "block_size": block,
        }
        if kind == "api":
            schedule(at_s + float(rng.exponential(CALL_EVERY_S)), {"kind": kind})
            continue
        tokens = prompt + OUTPUT_TOKENS
        more: dict[str, Any] = {"kind": kind}  # the next conversation
        if rng.random() < 1 - 1 / TURNS and tokens + 200 * times < LONGEST * times:
            after, fresh = longer(blocks[: prompt // block], tokens, fresh, block)
            more |= {"history": after, "tokens": tokens, "parent": number}
        schedule(at_s + float(rng.uniform(*THINK_S)), more)


if __name__ == "__main__":
    sys.exit(main())
