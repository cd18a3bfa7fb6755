"""Compile the kernels of all commands, once: `python -m kvscope.cli.warm_up`.

A command compiles and caches the kernels that are not in the cache yet. This module runs the usual
commands on a small synthetic trace, two at a time, so that later commands find compiled kernels.
Words as arguments limit it to the commands that contain one of them. With `--wheel`, kernels are
compiled for all CPUs that can run a wheel's kernels, instead of this CPU alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kvscope.core.executor import cores

_ENGINE = ("--gpu", "h100", "--model", "llama3-8b")
_SLO = ("--slo", "350ms")
COMMANDS = (
    ("simulate", "--model", "qwen2-7b", "--tiers", "hbm=20MiB,dram=40MiB"),
    ("fleet", *_SLO, *_ENGINE, "--replicas", "2"),
    ("tune", *_SLO, *_ENGINE, "--output", "tuned.toml"),
    ("fleet", *_SLO, *_ENGINE, "--replicas", "2", "--time-model", "queue"),
    ("simulate", "--capacity-blocks", "50", "--policy", "all"),
    ("explain", "--capacity-blocks", "50"),
    ("simulate", *_ENGINE, "--engine", "sglang"),
    ("analyze",),
    ("fit",),
)
_REQUESTS = 900  # so many blocks that ingesting enlarges its table of them


def main(limit: Sequence[str] = ()) -> int:
    """Run the commands and print progress and failures; return 1 if a command failed, else 0."""
    commands = [words for words in COMMANDS if not limit or not {*limit}.isdisjoint(words)]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "warm-up.jsonl"
        trace.write_text("".join(map(_line, range(_REQUESTS))))
        with ThreadPoolExecutor(min(cores(), 2)) as pool:
            runs = pool.map(partial(_run, folder), commands)
            for number, (words, done) in enumerate(zip(commands, runs, strict=True), start=1):
                sys.stderr.write(f"compiling, once: {number} of {len(commands)}\n")
                if done.returncode != 0:
                    last = done.stderr.strip().splitlines()[-1:]
                    failed.append(f"kvscope {' '.join(words)}: {' '.join(last)}")
    sys.stderr.writelines(f"{line}\n" for line in failed)
    return 1 if failed else 0


def _run(folder: str, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command on the trace in `folder`, with a store in memory."""
    command, *options = words
    return subprocess.run(
        [sys.executable, "-m", "kvscope", command, "warm-up.jsonl", "--db", ":memory:", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def _line(number: int) -> str:
    """Return request `number` of the trace as JSON; conversations have up to four turns.

    All prompts begin with the same three blocks; the fourth changes now and then, like a date.
    """
    turn = number % 12 // 3 + 1
    chat, blocks = number - 3 * (turn - 1), 20 * turn
    record = {
        "chat_id": number,
        "parent_chat_id": number - 3 if turn > 1 else -1,
        "timestamp": float(number),
        "input_length": 16 * blocks - 5,
        "output_length": 60,
        "type": "text" if number % 2 else "search",
        "turn": turn,
        "hash_ids": [0, 1, 2, 10**9 + chat // 40, *(100 * chat + at for at in range(4, blocks))],
    }
    return json.dumps(record) + "\n"


if __name__ == "__main__":
    if "--wheel" in sys.argv:
        from kvscope.core.machine_code import wheels_environment  # numba

        os.environ |= wheels_environment()
    sys.exit(main([word for word in sys.argv[1:] if not word.startswith("--")]))
