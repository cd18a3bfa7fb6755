"""Time LRU's exact curve of a stored trace, after a first pass.

Arguments: STORE CAPACITY. Prints accesses, CPU seconds (one thread) and the hit rate at CAPACITY as
libCacheSim defines it.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

from msgspec.structs import replace

from kvscope.core.hits import LIBCACHESIM
from kvscope.replay.curve import lru_curve
from kvscope.replay.stack_distances import lru_distances
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.traces import load_prompts

PASSES = 5


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("store")
    parser.add_argument("capacity", type=int)
    options = parser.parse_args()
    with open_store(options.store, read_only=True) as store:
        (trace,) = traces.all_traces(store)
        prompts = load_prompts(store, trace)
    prefix = replace(LIBCACHESIM, flat=False)
    seconds: dict[str, list[float]] = {"distances": [], "curve": []}
    for counted in range(PASSES + 1):
        started = time.process_time()
        distances = lru_distances(prompts, prefix)
        between = time.process_time()
        lru_curve(prompts, prefix, distances)
        ended = time.process_time()
        if counted:
            seconds["distances"].append(between - started)
            seconds["curve"].append(ended - started)
    flat = lru_curve(prompts, LIBCACHESIM).rate(options.capacity)
    document = {
        "accesses": trace.accesses,
        "distances_cpu_s": median(seconds["distances"]),
        "curve_cpu_s": median(seconds["curve"]),
        "flat_hit_rate": float(flat),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
