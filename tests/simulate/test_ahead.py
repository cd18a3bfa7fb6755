"""What a second process compiles ahead, the first one need not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_BESIDE = """
import time
from kvscope.jit import nothing_compiled
from kvscope.policies.lru import Lru
from kvscope.simulate.ahead import compiled_beside
from kvscope.simulate.lanes import lanes_kernel
print(nothing_compiled())
kernel = lanes_kernel(Lru, Lru().evicts == "leaf")
with compiled_beside([Lru]):
    for _ in range(1000):
        if kernel._cache._cache_file._load_index():
            break
        time.sleep(0.1)
print(nothing_compiled())
"""
_AFTER = """
from kvscope.policies.lru import Lru
from kvscope.simulate.ahead import compile_for, compiled_beside
from kvscope.simulate.lanes import lanes_kernel
import subprocess
subprocess.Popen = None  # nothing more is started
with compiled_beside([Lru]):
    compile_for([Lru])
stats = lanes_kernel(Lru, Lru().evicts == "leaf").stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_kernels_come_from_the_second_process(tmp_path: Path) -> None:
    """With two cores and an empty folder it begins by itself; later nothing is compiled again."""
    environment = os.environ | {"KVSCOPE_CACHE_DIR": str(tmp_path)}
    cores = "import kvscope.simulate.ahead as ahead\nahead.cores = lambda: 2\n"

    def told(script: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", cores + script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert told(_BESIDE) == ["True", "False"]
    assert told(_AFTER) == ["1", "0"]
