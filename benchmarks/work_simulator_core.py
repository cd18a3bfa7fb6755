"""Work for a fresh process: replays of kvcache-simulator's C++ core at one capacity.

`python -m benchmarks.work_simulator_core TRACE BLOCK_TOKENS CAPACITY` prints JSON: by policy, named
as in kvscope, the CPU seconds of a replay and the tokens that the last half of the requests hit.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
from pathlib import Path

from kvcache_sim.cpp_backend import run_cpp_sweep
from kvcache_sim.trace import TraceData, parse_trace_lines

POLICIES = {"lru": "lru", "fifo": "fifo", "belady": "optimal"}
MORE = {"lru": 4, "fifo": 64, "optimal": 16}
"""So many further capacities, that they take long beside how reading the trace varies."""


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("block_tokens", type=int)
    parser.add_argument("capacity", type=int)
    told = parser.parse_args()
    unpacked = gzip.open if told.trace.suffix == ".gz" else open
    with unpacked(told.trace, "rt", encoding="utf-8") as lines:
        trace = parse_trace_lines(lines, block_size=told.block_tokens)
    print(json.dumps({own: timed(trace, name, told.capacity) for own, name in POLICIES.items()}))


def timed(trace: TraceData, policy: str, capacity: int) -> dict[str, float | None]:
    """What each further capacity costs: reading the trace and building its trie is left out."""
    one_s, tokens = run(trace, policy, [capacity])
    more = MORE[policy]
    more_s, _ = run(trace, policy, [capacity + further for further in range(more + 1)])
    return {"cpu_s": (more_s - one_s) / more, "hit_tokens": tokens}


def run(trace: TraceData, policy: str, capacities: list[int]) -> tuple[float, float | None]:
    """CPU seconds of its process and the hit tokens at the first; None where it never evicted."""
    before = _children_cpu_s()
    found = run_cpp_sweep(
        trace,
        capacities=capacities,
        policies=[policy],
        warmup_requests=trace.request_count // 2,
    ).results[policy, capacities[0]]
    counted = found.measurementMode != "underfilled_at_window"
    return _children_cpu_s() - before, found.hitTokens if counted else None


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
