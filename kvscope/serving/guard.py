"""Run a command so that none of its processes outlives the caller, however the caller dies.

    python guard.py COMMAND ...

The command gets a process group of its own. When the guard's standard input closes, since the
caller closed it or died, the whole group gets SIGTERM, and SIGKILL PATIENCE_S later; so do
processes that the command leaves behind when it ends. This file imports only the standard library,
so that it starts at once in any interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

PATIENCE_S = 10.0
_STEP_S = 0.05


def main(command: list[str]) -> int:
    """Run `command` until it or standard input ends; return its status, 128 + N for signal N."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: end_group(child.pid))
    threading.Thread(target=_watch, args=(child.pid,), daemon=True).start()
    code = child.wait()
    end_group(child.pid)
    return code if code >= 0 else 128 - code


def end_group(group: int, patience_s: float = PATIENCE_S) -> None:
    """End every process of a group: SIGTERM, then SIGKILL after `patience_s`."""
    if not _signalled(group, signal.SIGTERM):
        return
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        time.sleep(_STEP_S)
        if not _signalled(group, 0):
            return
    _signalled(group, signal.SIGKILL)


def _watch(group: int) -> None:
    while os.read(0, 1024):
        pass
    end_group(group)


def _signalled(group: int, number: int) -> bool:
    """Send signal `number` to a process group; return False if no process could receive it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
