"""Run kvscope's commands from a trace to a verdict on a real vLLM.

Run it in an environment that has vLLM and kvscope, on a quiet machine: TTFT depends on its load.
The model is large enough for its prefill to matter on a CPU. Interleaved conversations defeat LRU,
which evicts each history just before its next turn; the same conversations one after the other
need nothing but LRU.

calibrate -> kvscope.toml -> tune for that deployment -> validate, one request after the other and
with several in flight; only tune for the second trace. `--record` writes the table into
docs/evidence/real-vllm.md. Exits with 0 if T-LRU is recommended and confirmed one after the other
for the first trace, and LRU is kept for the second.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import Table, record
from benchmarks.tiny_llama import tiny_llama
from kvscope.latency.file import read_profile

# One thread: several wait for each other and for other processes of the machine
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
BLOCK, BLOCKS = 32, 120
SLO_TOKENS = 560  # the SLO is the prefill time of this many uncached tokens
CONVERSATIONS, TURNS = 6, 10
FIRST_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 480, 40, 8
GAP = 3.0  # between requests, in times of the SLO: the machine of any speed keeps up
LONGEST = 1_152
IN_FLIGHT = 3  # more would not fit: each takes up to a quarter of the blocks
PAGE = Path(__file__).parent.parent / "docs" / "evidence" / "real-vllm.md"
# block 0 of vLLM's own count is never handed to a request
DEPLOYMENT = f"""schema = 1
num_gpu_blocks = {BLOCKS + 1}
block_size = {BLOCK}
max_num_seqs = 128
max_num_batched_tokens = 2048
latency = "latency.toml"
"""
# bf16 is emulated on many CPUs, fifty times as slow
MODEL = tiny_llama(4096, "float32") | {
    "hidden_size": 384,
    "intermediate_size": 1152,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=480, help="of each trace, to tune for")
    parser.add_argument("--sent", type=int, default=240, help="requests of each run on the engine")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each policy")
    parser.add_argument("--folder", type=Path, help="keep trace, profile and reports here")
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.folder is None else options.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return _run_all(folder, options)


def _run_all(folder: Path, options: argparse.Namespace) -> int:
    (folder / "mid").mkdir(exist_ok=True)
    (folder / "mid" / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    run(folder, f"calibrate --model mid --max-tokens {LONGEST} --repeats 15")
    slo_s = float(read_profile(folder / "latency.toml").ttft_s(SLO_TOKENS, 0))
    (folder / "kvscope.toml").write_text(DEPLOYMENT, encoding="utf-8")
    for name, at_once in (("interleaved", CONVERSATIONS), ("one-by-one", 1)):
        trace = conversations(options.requests, at_once, gap_s=GAP * slo_s)
        text = "\n".join(map(json.dumps, trace)) + "\n"
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    target = f"--policy tlru --slo {slo_s * 1e3:.0f}ms"
    one_by_one = run(folder, f"tune one-by-one.jsonl {target} --output one-by-one.toml --json")
    interleaved = run(folder, f"tune interleaved.jsonl {target} --json")
    validations = {}
    for pace in ("--sequential", f"--in-flight {IN_FLIGHT}"):
        validations[pace] = run(
            folder,
            f"validate interleaved.jsonl --model mid --replay both {pace}"
            f" --max-requests {options.sent} --repeats {options.repeats} --json",
        )
        show(validations[pace])
    table = _table(validations)
    print(table.markdown())
    if options.record:
        record(PAGE, table.markdown(), "live-vllm")
    results = {
        "interleaved conversations": (interleaved["recommendation"]["policy"], "tlru"),
        "one conversation at a time": (one_by_one["recommendation"]["policy"], "lru"),
        "on the engine": (validations["--sequential"]["verdict"], "confirmed"),
    }
    for name, (result, expected) in results.items():
        print(f"{name}: {result}" + (f", expected {expected}" if result != expected else ""))
    return int(any(result != expected for result, expected in results.values()))


def _table(validations: dict[str, dict[str, Any]]) -> Table:
    """Return prediction and measurement of every run, and the gain at each pace."""
    rows = []
    for pace, validation in validations.items():
        for policy_run in validation["runs"]:
            for figure in ("p50", "p95"):
                predicted, measured = (
                    policy_run[side]["ttft_ms"][figure] for side in ("predicted", "measured")
                )
                hits = policy_run["predicted"]["hit_tokens"]
                rows.append(
                    [
                        pace,
                        policy_run["policy"],
                        figure,
                        f"{measured:.0f} ms",
                        f"{predicted:.0f} ms",
                        f"{predicted / measured - 1:+.1%}",
                        f"{policy_run['mismatched_tokens'] / max(hits, 1):.2%}",
                    ]
                )
    gains = "; ".join(
        f"{pace}: {check['words']}"
        for pace, validation in validations.items()
        for check in validation["checks"]
        if check["name"] == "gain"
    )
    verdicts = ", ".join(f"{pace} {each['verdict']}" for pace, each in validations.items())
    first = next(iter(validations.values()))
    engine, requests = first["engine"], first["requests"]
    return Table(
        "Prediction and measurement",
        f"{datetime.now(UTC):%Y-%m-%d}, vLLM {engine['version']} on {engine['device']},"
        f" {requests['sent']} requests a run, the first {requests['warmup']} as warm-up."
        f" Gains: {gains}. Verdicts: {verdicts}.",
        ("sent", "policy", "TTFT", "measured", "predicted", "error", "hit tokens off"),
        rows,
    )


def show(validation: dict[str, Any]) -> None:
    """Print measured and predicted figures, the checks and the verdict of a validation."""
    for policy_run in validation["runs"]:
        print(policy_run["policy"])
        for figure in ("p50", "p95"):
            predicted, measured = (
                policy_run[side]["ttft_ms"][figure] for side in ("predicted", "measured")
            )
            times = f"measured {measured:.1f} ms, predicted {predicted:.1f} ms"
            print(f"  {figure} TTFT: {times} ({predicted / measured - 1:+.1%})")
        print(f"  token hit rate {policy_run['measured']['token_hit_rate']:.1%}")
        print(f"  hit tokens off: {policy_run['mismatched_requests']} requests")
    for check in validation["checks"]:
        print({True: "passed", False: "failed", None: "open"}[check["passed"]], check["words"])
    print(f"verdict: {validation['verdict']}")


def run(folder: Path, command: str) -> dict[str, Any]:
    """Run a command of kvscope and return its JSON document; print other output."""
    print(f"$ kvscope {command}", flush=True)
    words = [sys.executable, "-m", "kvscope", *shlex.split(command)]
    result = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if "--json" in command and result.stdout:
        return dict(json.loads(result.stdout))
    print(result.stdout)
    result.check_returncode()
    return {}


def conversations(
    requests: int, at_once: int, gap_s: float = 1.0, seed: int = 7
) -> Iterator[dict[str, Any]]:
    """Yield a bailian trace of `at_once` conversations whose turns alternate, `gap_s` apart."""
    rng = np.random.default_rng(seed)
    # of each conversation: turns taken, blocks and tokens of the history, its last request
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
            "timestamp": number * gap_s,
            "input_length": prompt,
            "output_length": OUTPUT_TOKENS,
            "type": "chat",
            "hash_ids": blocks,
            "block_size": BLOCK,
        }
        after, fresh = longer(blocks[: prompt // BLOCK], prompt + OUTPUT_TOKENS, fresh)
        talks[number % at_once] = (turn + 1, after, prompt + OUTPUT_TOKENS, number)


def longer(blocks: list[int], tokens: int, fresh: int, block: int = BLOCK) -> tuple[list[int], int]:
    """Return the blocks with the new ones that `tokens` need, and the next unused number."""
    more = -(-tokens // block) - len(blocks)
    return [*blocks, *range(fresh, fresh + more)], fresh + more


if __name__ == "__main__":
    sys.exit(main())
