"""Processes that run steps end with the process that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_SCRIPT = """
import os, time
from kvscope.core.executor import LocalProcesses

def step(task):
    return os.getpid()

with LocalProcesses(2) as processes:
    workers = {worker for _, worker in processes.results(step, range(8))}
    print(*workers, flush=True)
    time.sleep(600)
"""
_WAIT_S = 30.0


def is_running(process: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def test_workers_end_where_the_command_is_killed() -> None:
    """None is left that would keep its memory for ever."""
    command = subprocess.Popen([sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    workers = [int(word) for word in command.stdout.readline().split()]
    assert workers
    assert all(is_running(worker) for worker in workers)
    assert os.getpid() not in workers
    command.send_signal(signal.SIGKILL)
    command.wait()
    command.stdout.close()
    deadline = time.monotonic() + _WAIT_S
    while any(is_running(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(is_running(worker) for worker in workers)
