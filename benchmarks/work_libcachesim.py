"""Work for a fresh process: libCacheSim's replays at one capacity, timed after a first pass.

`python -m benchmarks.work_libcachesim ACCESSES CAPACITY OBJECTS POLICY...` prints JSON: CPU seconds
and the hit rate of each policy.
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
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("accesses")
    parser.add_argument("capacity", type=int)
    parser.add_argument("objects", type=int)
    parser.add_argument("policies", nargs="+", choices=CACHES)
    told = parser.parse_args()
    # Room for every object in its hash table; at the default, 24, it is slower at these sizes.
    power = max(min(told.capacity, told.objects).bit_length(), 16)
    print(
        json.dumps(
            {name: _timed(name, told.accesses, told.capacity, power) for name in told.policies}
        )
    )


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
