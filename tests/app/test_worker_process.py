"""Work in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import operator
from kvscope.app.monitor import Monitor
from kvscope.app.worker_process import in_process
print(in_process(operator.is_, 1, monitor=Monitor()))
"""


def test_an_idle_process_does_not_keep_this_one_alive() -> None:
    """It waits for the next work, and ends with the interpreter that it waits for."""
    words = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n")
