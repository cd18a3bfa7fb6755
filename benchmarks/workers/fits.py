"""Time the fit of a policy's tables to a stored trace, and an LRU replay of it, on one core.

Arguments: STORE POLICY. Prints the CPU seconds of both, and the fit's peak of resident memory in
bytes above the process's peak before it.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from benchmarks.processes import PEAK_UNIT_BYTES
from benchmarks.workers.replays import timed
from kvscope.core.hits import standard
from kvscope.learning.offline.learners import served_traffic, tables_for
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.replay import replay, touch_history
from kvscope.replay.traffic import traffic
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.traces import load_prompts

SHARE = 0.1  # capacity as a share of the blocks
FIRST_REQUESTS = 200  # of a first fit, which loads the kernels


def peak_bytes() -> int:
    """Return the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT_BYTES


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("store")
    parser.add_argument("policy")
    options = parser.parse_args()
    with open_store(options.store, read_only=True) as store:
        (trace,) = traces.all_traces(store)
        of = traffic(load_prompts(store, trace), standard())
    policy, past = by_name(options.policy), touch_history(of)
    capacity = int((len(of.block_parent) - 1) * SHARE)
    lru_s, _ = timed(lambda: replay(of, Lru(), capacity, history=past))
    tables_for(served_traffic(of, of.arrival_s < of.arrival_s[FIRST_REQUESTS]), policy)
    before, started = peak_bytes(), time.process_time()
    tables = tables_for(of, policy)
    figures = {
        "requests": len(of.leaf),
        "span_s": float(of.arrival_s[-1]),
        "tables": len(tables.since),
        "lru_cpu_s": lru_s,
        "cpu_s": time.process_time() - started,
        "peak_bytes": peak_bytes() - before,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
