"""What a second process compiles ahead, the first one need not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_HEAD = """
import subprocess, time
from kvscope.policies.lru import Lru
from kvscope.policies.wa import Wa
from kvscope.replay import precompile
precompile.cores = lambda: 2

def lacking():
    return [one.name for one in precompile.uncompiled([Lru, Wa])]

print(lacking())
"""
_BESIDE = """
with precompile.compiling_in_background([Lru, Wa]):
    for _ in range(2000):
        if not lacking():
            break
        time.sleep(0.1)
print(lacking())
"""
_AFTER = """
subprocess.Popen = None  # nothing is started
with precompile.compiling_in_background([Lru, Wa]):
    precompile.compile_for([Lru, Wa])
for policy in (Lru, Wa):
    stats = precompile.kernel_of(policy).stats
    print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_kernels_come_from_the_second_process(tmp_path: Path) -> None:
    """With two cores it begins by itself where kernels lack, and later none is compiled again."""

    def told(script: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", _HEAD + script],
            env=os.environ | {"KVSCOPE_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert told(_BESIDE) == ["['lru', 'wa']", "[]"]
    assert told(_AFTER) == ["[]", "1 0", "1 0"]
