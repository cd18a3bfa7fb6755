"""Time replays of kvcache-simulator's C++ core at one capacity.

Arguments: TRACE BLOCK_TOKENS CAPACITY. Prints by policy, named as in kvscope, the CPU seconds of a
replay and the hit tokens of the last half of the requests.
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
MORE_CAPACITIES = {"lru": 4, "fifo": 64, "optimal": 16}
"""Enough for their time to stand out from the variation of reading the trace."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("block_tokens", type=int)
    parser.add_argument("capacity", type=int)
    options = parser.parse_args()
    unpacked = gzip.open if options.trace.suffix == ".gz" else open
    with unpacked(options.trace, "rt", encoding="utf-8") as lines:
        trace = parse_trace_lines(lines, block_size=options.block_tokens)
    print(json.dumps({own: timed(trace, name, options.capacity) for own, name in POLICIES.items()}))


def timed(trace: TraceData, policy: str, capacity: int) -> dict[str, float | None]:
    """Return the cost of each further capacity, which excludes reading the trace."""
    first_s, tokens = run(trace, policy, [capacity])
    more = MORE_CAPACITIES[policy]
    more_s, _ = run(trace, policy, [capacity + further for further in range(more + 1)])
    return {"cpu_s": (more_s - first_s) / more, "hit_tokens": tokens}


def run(trace: TraceData, policy: str, capacities: list[int]) -> tuple[float, float | None]:
    """Return CPU seconds and the hit tokens at the first capacity; None if it never evicted."""
    before = _children_cpu_s()
    result = run_cpp_sweep(
        trace,
        capacities=capacities,
        policies=[policy],
        warmup_requests=trace.request_count // 2,
    ).results[policy, capacities[0]]
    counted = result.measurementMode != "underfilled_at_window"
    return _children_cpu_s() - before, result.hitTokens if counted else None


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
