"""Work for a fresh process: libCacheSim's LRU at one capacity, timed after a first pass.

`python -m benchmarks.work_libcachesim ACCESSES CAPACITY` prints JSON: CPU seconds and the
hit rate.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import libcachesim

PASSES = 3
HASH_POWER = 18
"""Room for more objects than fit the cache; the default, 24, is slower at these sizes."""


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("accesses")
    parser.add_argument("capacity", type=int)
    told = parser.parse_args()
    seconds = []
    for counted in range(PASSES + 1):
        reader = libcachesim.TraceReader(told.accesses, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = libcachesim.LRU(told.capacity, hashpower=HASH_POWER)
        started = time.process_time()
        miss_ratio, _ = cache.process_trace(reader)
        if counted:
            seconds.append(time.process_time() - started)
    print(json.dumps({"replay_cpu_s": median(seconds), "hit_rate": 1.0 - miss_ratio}))


if __name__ == "__main__":
    main()
