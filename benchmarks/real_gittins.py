"""gittins on a real vLLM beside LRU and T-LRU, where the simulator says that it gains.

`python -m benchmarks.real_gittins` in an environment that has vLLM and kvscope. Some people talk to
an engine at once, each after a while of thinking, and other calls come by chance that nobody goes
on from. LRU gives up histories for the calls' prompts just before they are asked for. What returns,
and when, is learned from one trace (`tune` writes it into the recommendation), and served is
another, of another seed.

calibrate -> tune --policies gittins -> validate --policies both --sequential, the same with tlru.
Ends with 0 if both are confirmed, and gittins' gain over T-LRU is predicted and measured alike.
TTFT depends on what else the machine does: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_engine import BLOCK, MODEL, OUTPUT_TOKENS, beside, longer, run
from kvscope.latency.file import read_profile

# One thread: several wait for each other, and for whatever else runs on this machine
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
BLOCKS = 270
SLO_TOKENS = 350  # the SLO is the time that so many uncached tokens take here
TALKS, FIRST_TOKENS, TURN_TOKENS, TURNS = 12, 520, 16, 30
THINK_S = (63.0, 117.0)
CALL_EVERY_S, CALL_TOKENS = 45.0, 1_100
LONGEST, LEARNED = 1_152, 1_200
FIGURE = "p50"  # most requests are turns; the slowest are calls, which nothing makes quicker
POLICIES = ("gittins", "tlru")
SMALLER = MODEL | {"num_hidden_layers": 3}


def main() -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=300, help="of the trace that is served")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each policy")
    parser.add_argument("--folder", type=Path, help="keep traces, profile and reports here")
    parser.add_argument("--only", choices=POLICIES, help="the other one's report is in --folder")
    told = parser.parse_args()
    if told.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return _proof(Path(folder), told.requests, told.repeats, None)
    told.folder.mkdir(parents=True, exist_ok=True)
    return _proof(told.folder.resolve(), told.requests, told.repeats, told.only)


def _proof(folder: Path, requests: int, repeats: int, only: str | None) -> int:
    (folder / "mid").mkdir(exist_ok=True)
    (folder / "mid" / "config.json").write_text(json.dumps(SMALLER), encoding="utf-8")
    for name, count, seed in (("learned", LEARNED, 1), ("served", requests, 2)):
        lines = [json.dumps(line) for line in calls_and_conversations(count, seed)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not (folder / "latency.toml").exists():
        run(folder, f"calibrate --model mid --max-tokens {LONGEST}")
    slo_ms = float(read_profile(folder / "latency.toml").ttft_s(SLO_TOKENS, 0)) * 1e3
    for policy in (only,) if only else POLICIES:
        tuned = run(
            folder,
            f"tune learned.jsonl --policies {policy} --capacity-blocks {BLOCKS}"
            f" --slo {slo_ms:.0f}ms --percentile {FIGURE} --latency latency.toml"
            f" --output {policy}.toml --json",
        )
        print(f"recommended: {tuned['recommendation']['policy']}")
        found = run(
            folder,
            "validate served.jsonl --model mid --policies both --sequential --latency latency.toml"
            f" --recommendation {policy}.toml --repeats {repeats} --html {policy}.html --json",
        )
        (folder / f"{policy}.json").write_text(json.dumps(found), encoding="utf-8")
        _show(found)
    reports = [folder / f"{policy}.json" for policy in POLICIES]
    if not all(path.exists() for path in reports):
        return 0
    return int(not _agree([json.loads(path.read_text(encoding="utf-8")) for path in reports]))


def _show(validation: dict[str, Any]) -> None:
    for one in validation["runs"]:
        print(one["policy"], *(beside(one, figure) for figure in ("p50", "p95")), sep="\n  ")
        rate, off = one["measured"]["token_hit_rate"], one["mismatched_requests"]
        print(f"  token hit rate {rate:.1%}, hit tokens off: {off} requests")
    for check in validation["checks"]:
        print({True: "passed", False: "failed", None: "open"}[check["passed"]], check["words"])
    print(f"verdict: {validation['verdict']}")


def _agree(found: list[dict[str, Any]]) -> bool:
    """Whether all are confirmed, and each order of two policies is measured as predicted."""
    ttft_ms: dict[str, dict[str, list[float]]] = {}
    for validation in found:
        for one in validation["runs"]:
            of = ttft_ms.setdefault(one["policy"], {"predicted": [], "measured": []})
            for side, figures in of.items():
                figures.append(one[side]["ttft_ms"][FIGURE])
    mean = {
        policy: {side: float(np.mean(values)) for side, values in of.items()}
        for policy, of in ttft_ms.items()
    }
    alike = True
    for policy in ("lru", "tlru"):
        said, was = (
            mean["gittins"][side] / mean[policy][side] - 1 for side in ("predicted", "measured")
        )
        print(
            f"{FIGURE} TTFT, gittins against {policy}: measured {was:+.1%}, predicted {said:+.1%}"
        )
        alike = alike and (said < 0) == (was < 0)
    return alike and all(one["verdict"] == "confirmed" for one in found)


def calls_and_conversations(requests: int, seed: int) -> Iterator[dict[str, Any]]:
    """A bailian trace: `TALKS` conversations at once, of geometrically many turns, and calls."""
    rng = np.random.default_rng(seed)
    due: list[tuple[float, int, dict[str, Any]]] = []  # when, in order of coming, what is asked
    fresh = made = 0

    def come(at_s: float, what: dict[str, Any]) -> None:
        nonlocal made
        heapq.heappush(due, (at_s, made, what))
        made += 1

    for _ in range(TALKS):
        come(float(rng.uniform(0.0, THINK_S[1])), {"kind": "chat"})
    come(float(rng.exponential(CALL_EVERY_S)), {"kind": "api"})
    for number in range(requests):
        at_s, _, asked = heapq.heappop(due)
        kind, history = asked["kind"], asked.get("history", [])
        mean = CALL_TOKENS if kind == "api" else TURN_TOKENS if history else FIRST_TOKENS
        before = asked.get("tokens", 0)
        prompt = before + int(rng.integers(mean - 16, mean + 17))
        blocks, fresh = longer(history[: before // BLOCK], prompt, fresh)
        yield {
            "chat_id": number,
            "parent_chat_id": asked.get("parent", -1),
            "timestamp": round(at_s, 3),
            "input_length": prompt,
            "output_length": OUTPUT_TOKENS,
            "type": kind,
            "hash_ids": blocks,
            "block_size": BLOCK,
        }
        if kind == "api":
            come(at_s + float(rng.exponential(CALL_EVERY_S)), {"kind": kind})
            continue
        tokens = prompt + OUTPUT_TOKENS
        more: dict[str, Any] = {"kind": kind}  # the next conversation
        if rng.random() < 1 - 1 / TURNS and tokens + 200 < LONGEST:
            after, fresh = longer(blocks[: prompt // BLOCK], tokens, fresh)
            more |= {"history": after, "tokens": tokens, "parent": number}
        come(at_s + float(rng.uniform(*THINK_S)), more)


if __name__ == "__main__":
    sys.exit(main())
