"""Work for a fresh process: a sweep of replays, and what a second core gives it and a spin loop.

`python -m benchmarks.work_sweep STORE POINTS POLICY...` prints JSON: seconds of the whole sweep on
two cores; of every fourth capacity on one core and on two; of a spin loop on one, twice on two.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvscope.characterize.windows import equal_windows
from kvscope.core.hits import standard
from kvscope.core.jit import kernel
from kvscope.latency.file import load_profile
from kvscope.policies.registry import by_name
from kvscope.replay.run_cache import spread
from kvscope.replay.setting import setting_of
from kvscope.replay.workload import WINDOWS, Asked, Workload, sweep
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.traces import load_prompts

CORES = 2
SPINS = 400_000_000
EVERY = 4


@kernel
def spin(count: int, word: int) -> int:
    """Work that needs nothing but a core."""
    for _ in range(count):
        word ^= word << 13
        word ^= word >> 7
        word ^= word << 17
    return word


def seconds(work: Callable[[], Any]) -> float:
    """Wall time."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def spun(workers: int) -> None:
    """The spin loop, once on each of some threads."""
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(spin, [SPINS] * workers, range(1, workers + 1)))


def swept(work: Workload, asked: Sequence[Asked], workers: int) -> None:
    """All runs, thrown away."""
    for _ in sweep(work, asked, workers=workers):
        pass


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("store")
    parser.add_argument("points", type=int)
    parser.add_argument("policies", nargs="+")
    told = parser.parse_args()
    with open_store(told.store, read_only=True) as store:
        (trace,) = traces.all_traces(store)
        prompts = load_prompts(store, trace)
    setting = setting_of(standard(), load_profile("llama2-7b-a100"))
    work = Workload(prompts, setting, equal_windows(trace, WINDOWS))
    rooms = spread(work.curve, told.points)
    policies = [by_name(name)() for name in told.policies]
    asked = [Asked(policy, room) for room in rooms for policy in policies]
    some = [one for one in asked if one.capacity_blocks in set(rooms[::EVERY])]
    work.prepare(policies)
    spin(1, 1)
    answer = {
        "runs": len(asked),
        "whole_s": seconds(lambda: swept(work, asked, CORES)),
        "one_core_s": seconds(lambda: swept(work, some, 1)),
        "two_cores_s": seconds(lambda: swept(work, some, CORES)),
        "spin_s": seconds(lambda: spun(1)),
        "two_spins_s": seconds(lambda: spun(CORES)),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
