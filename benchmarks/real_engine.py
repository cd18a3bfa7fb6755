"""From a trace to a verdict on a real vLLM, with the very commands that a user types.

`python -m benchmarks.real_engine` in an environment that has vLLM and kvscope. A model large enough
for prefill to be felt, on a CPU too. Callers who take turns wear LRU out: it gives up each history
just before it is asked for. The same callers one after the other need nothing but LRU.

calibrate -> tune -> recommendation.toml -> validate --policies both --sequential, and tune alone
for the second trace. Ends with 0 if T-LRU is recommended for the first and confirmed, and LRU for
the second. TTFT depends on what else the machine does: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tiny_llama import tiny_llama
from kvscope.latency.file import read_profile

BLOCK, BLOCKS = 32, 120
SLO_TOKENS = 560  # the SLO is the time that so many uncached tokens take here
CALLERS, TURNS = 6, 10
FIRST_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 480, 40, 8
LONGEST = 1_152
# bf16 is emulated on many CPUs, fifty times as slow
MODEL = tiny_llama(4096, "float32") | {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}


def main() -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each policy")
    parser.add_argument("--folder", type=Path, help="keep trace, profile and reports here")
    told = parser.parse_args()
    if told.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return _proof(Path(folder), told.requests, told.repeats)
    told.folder.mkdir(parents=True, exist_ok=True)
    return _proof(told.folder.resolve(), told.requests, told.repeats)


def _proof(folder: Path, requests: int, repeats: int) -> int:
    (folder / "mid").mkdir(exist_ok=True)
    (folder / "mid" / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    for name, at_once in (("turns", CALLERS), ("alone", 1)):
        lines = [json.dumps(line) for line in callers(requests, at_once)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(folder, f"calibrate --model mid --max-tokens {LONGEST}")
    slo_ms = float(read_profile(folder / "latency.toml").ttft_s(SLO_TOKENS, 0)) * 1e3
    sizes = f"--capacity-blocks {BLOCKS} --slo {slo_ms:.0f}ms --latency latency.toml"
    alone = run(folder, f"tune alone.jsonl {sizes} --output alone.toml --json")
    turns = run(folder, f"tune turns.jsonl {sizes} --json")
    found = run(
        folder,
        "validate turns.jsonl --model mid --policies both --sequential --latency latency.toml"
        f" --repeats {repeats} --html validation.html --json",
    )
    wanted = {
        "callers who take turns": (turns["recommendation"]["policy"], "tlru"),
        "callers one after the other": (alone["recommendation"]["policy"], "lru"),
        "on the engine": (found["verdict"], "confirmed"),
    }
    for one in found["runs"]:
        print(one["policy"], *(beside(one, figure) for figure in ("p50", "p95")), sep="\n  ")
        print(f"  hit tokens off: {one['mismatched_requests']} requests")
    for check in found["checks"]:
        print({True: "passed", False: "failed", None: "open"}[check["passed"]], check["words"])
    for name, (was, should) in wanted.items():
        print(f"{name}: {was}" + (f", should be {should}" if was != should else ""))
    return int(any(was != should for was, should in wanted.values()))


def beside(one: dict[str, Any], figure: str) -> str:
    """A figure of one run, as measured and as predicted."""
    said, was = (one[side]["ttft_ms"][figure] for side in ("predicted", "measured"))
    return f"{figure} TTFT: measured {was:.1f} ms, predicted {said:.1f} ms ({said / was - 1:+.1%})"


def run(folder: Path, command: str) -> dict[str, Any]:
    """What a command of kvscope prints as JSON; its messages are shown."""
    print(f"$ kvscope {command}", flush=True)
    words = [sys.executable, "-m", "kvscope", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if "--json" in command and done.stdout:
        return dict(json.loads(done.stdout))
    print(done.stdout)
    done.check_returncode()
    return {}


def callers(requests: int, at_once: int, seed: int = 7) -> Iterator[dict[str, Any]]:
    """A bailian trace: so many conversations at once, whose turns come round and round."""
    rng = np.random.default_rng(seed)
    # where each one is: turns taken, blocks and tokens of the history, its last request
    talks = [(place * TURNS // at_once, list[int](), 0, -1) for place in range(at_once)]
    fresh = 0
    for number in range(requests):
        turn, history, tokens, parent = talks[number % at_once]
        if turn >= TURNS:
            turn, history, tokens, parent = 0, [], 0, -1
        mean = FIRST_TOKENS if parent < 0 else TURN_TOKENS
        prompt = tokens + int(rng.integers(mean - 16, mean + 17))
        blocks, fresh = longer(history[: tokens // BLOCK], prompt, fresh)
        yield {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": float(number),
            "input_length": prompt,
            "output_length": OUTPUT_TOKENS,
            "type": "chat",
            "hash_ids": blocks,
            "block_size": BLOCK,
        }
        after, fresh = longer(blocks[: prompt // BLOCK], prompt + OUTPUT_TOKENS, fresh)
        talks[number % at_once] = (turn + 1, after, prompt + OUTPUT_TOKENS, number)


def longer(blocks: list[int], tokens: int, fresh: int) -> tuple[list[int], int]:
    """The blocks and as many new ones as `tokens` need; the next number that nobody has."""
    more = -(-tokens // BLOCK) - len(blocks)
    return [*blocks, *range(fresh, fresh + more)], fresh + more


if __name__ == "__main__":
    sys.exit(main())
