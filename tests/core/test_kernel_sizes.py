"""What kernels cost to compile, by the instructions that LLVM gets: about 0.1 s for a thousand.

A function that is inlined in many places, or an array expression in a loop, shows here first: the
kernel of SGLang's cache once had nine times as many as now, took 20 s, and its results were right.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvscope.core import machine_code
from kvscope.core.hits import standard
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.replay import asked, replay_fleet
from kvscope.latency.profile import PRESETS
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.routers.balancers import RoundRobin
from kvscope.sglang_sim.replay import serve_tree
from kvscope.vllm_sim.engine import engine_function
from kvscope.vllm_sim.settings import (
    EngineSettings,
    OffloadSettings,
    StepCost,
    StorageSettings,
)
from kvscope.vllm_sim.state import Machine, idle_machine
from tests.vllm_sim.examples import SIZE, asks, told

LARGE = 2000
"""Instructions: no more is compiled of kernels that have more, which takes the longest."""
NOW = {
    "engine": 17_574,
    "engine with a CPU tier": 35_764,
    "hybrid models": 21_375,
    "storage": 11_060,
    "fleet of engines": 6_316,
    "fleet of queues": 21_831,
    "replay, LRU": 8_123,
    "replay, policies by address": 9_226,
    "replay, Belady": 6_429,
    "SGLang": 12_701,
}
"""Instructions of each, or of all of its functions; what may grow by a quarter."""
_GROUPS = KvGroups((KvGroup("full", SIZE), KvGroup("sliding", SIZE, 6)))
_TIER = OffloadSettings(4, storage=StorageSettings(4))


_counts: list[int] = []  # of the kernels that a call compiles


class _CountedError(Exception):
    """Ends a compilation."""


def test_no_kernel_got_a_quarter_larger(tmp_path: Path) -> None:
    """In a process of its own, with an empty cache."""
    words = [sys.executable, "-m", "tests.core.test_kernel_sizes"]
    environment = os.environ | {"KVSCOPE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    counts = json.loads(done.stdout)
    assert counts.keys() == NOW.keys()
    grown = {name: size for name, size in counts.items() if size > 1.25 * NOW[name]}
    assert not grown, f"grown beyond {NOW}: leave out what a kernel repeats (called_by_kernels)"


def _count(library: Any) -> None:
    _counts.append(len(re.findall(r"^  \S", str(library._final_module), re.MULTILINE)))
    if _counts[-1] > LARGE:
        raise _CountedError


def _size(compiles: Callable[[], object]) -> int:
    """Return the instructions of the largest kernel that a call compiles."""
    _counts.clear()
    with suppress(_CountedError):
        compiles()
    return max(_counts)


def _sizes() -> Iterator[tuple[str, int]]:
    """Yield the name and size of each kernel."""
    prompts, profile, cost = told(asks("abc", 12)), PRESETS["llama2-7b-a100"], StepCost(base_s=1.0)
    steps = traffic(prompts, standard())

    def machine(**settings: Any) -> Machine:
        return idle_machine(prompts, Lru(), EngineSettings(9, **settings), cost)

    def compile_all(functions: tuple[Any, ...]) -> int:
        return sum(_size(lambda: function.address) for function in functions)  # noqa: B023

    yield "engine", _size(lambda: engine_function(machine()).address)
    yield (
        "engine with a CPU tier",
        _size(lambda: engine_function(machine(offload=_TIER)).address),
    )
    yield "hybrid models", compile_all(machine(groups=_GROUPS).grouped)
    yield "storage", compile_all(machine(offload=_TIER).storage)
    engines = (prompts, Lru(), RoundRobin(), 2, EngineSettings(9), cost)
    yield "fleet of engines", _size(lambda: replay_engines(*engines))
    queues = (steps, asked(prompts), profile, Lru(), RoundRobin(), 2, 9)
    yield "fleet of queues", _size(lambda: replay_fleet(*queues))
    yield "replay, LRU", _size(lambda: replay(steps, Lru(), 9))
    yield "replay, policies by address", _size(lambda: replay(steps, TLru(), 9))
    yield "replay, Belady", _size(lambda: replay(steps, Belady(), 9))
    yield "SGLang", _size(lambda: serve_tree(steps, Lru(), 9, profile))


if __name__ == "__main__":
    machine_code._Library._optimize_final_module = _count  # type: ignore[method-assign,assignment]
    sys.stdout.write(json.dumps(dict(_sizes())))
