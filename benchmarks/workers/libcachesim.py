"""Time libCacheSim's replays at one capacity, after a first pass.

Arguments: ACCESSES CAPACITY OBJECTS POLICY... Prints CPU seconds and hit rate of each policy.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import libcachesim

PASSES = 3
CACHES = {
    "lru": libcachesim.LRU,
    "fifo": libcachesim.FIFO,
    "lfu": libcachesim.LFU,
    "s3fifo": libcachesim.S3FIFO,
    "sieve": libcachesim.Sieve,
    "arc": libcachesim.ARC,
    "belady": libcachesim.Belady,
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("accesses")
    parser.add_argument("capacity", type=int)
    parser.add_argument("objects", type=int)
    parser.add_argument("policies", nargs="+", choices=CACHES)
    options = parser.parse_args()
    # Room for every object in its hash table; at the default, 24, it is slower at these sizes.
    power = max(min(options.capacity, options.objects).bit_length(), 16)
    results = {
        name: _timed(name, options.accesses, options.capacity, power) for name in options.policies
    }
    print(json.dumps(results))


def _timed(name: str, accesses: str, capacity: int, hashpower: int) -> dict[str, float]:
    seconds = []
    for counted in range(PASSES + 1):
        reader = libcachesim.TraceReader(accesses, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = CACHES[name](capacity, hashpower=hashpower)
        started = time.process_time()
        miss_ratio, _ = cache.process_trace(reader)
        if counted:
            seconds.append(time.process_time() - started)
    return {"cpu_s": median(seconds), "hit_rate": 1.0 - miss_ratio}


if __name__ == "__main__":
    main()
