"""Time the replay of every policy over a stored trace on one core, after a first pass.

Arguments: STORE SHARE. Prints by policy the CPU seconds of a replay of prefixes; of the same
accesses block by block (`flat`) where libCacheSim has the policy; and with the definition and hit
tokens of kvcache-simulator (`simulator`) where it has the policy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from kvscope.core.hits import KVCACHE_SIMULATOR, LIBCACHESIM, standard
from kvscope.core.trace import Prompts
from kvscope.learning.offline.learners import tables_for
from kvscope.policies.base import Policy
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.replay import NO_TABLES, replay, touch_history
from kvscope.replay.traffic import Traffic, traffic
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.store.traces import load_prompts

PASSES = 3
FLAT = ("lru", "fifo", "lfu", "s3fifo", "sieve", "arc", "belady")
SIMULATOR = ("lru", "fifo", "belady")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the median CPU seconds of the passes after the first one, and the result."""
    seconds, result = [], work()
    for _ in range(PASSES):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return median(seconds), result


def replays(
    work: Traffic, policies: tuple[type[Policy], ...], capacity: int, *, mandatory: bool
) -> dict[str, dict[str, float]]:
    """Return CPU seconds and block hit rate by policy."""
    past = touch_history(work)
    looked = int(work.look.sum(dtype=np.int64))
    results = {}
    for policy in policies:
        # A flat trace has no turns, so there is nothing to fit.
        tables = NO_TABLES if mandatory or policy.learner is None else tables_for(work, policy)
        once = partial(
            replay, work, policy(), capacity, history=past, tables=tables, mandatory=mandatory
        )
        seconds, done = timed(once)
        results[policy.name] = {"cpu_s": seconds, "hit_rate": int(done.hit_blocks.sum()) / looked}
    return results


def by_simulator(prompts: Prompts, capacity: int) -> dict[str, dict[str, float]]:
    """Return CPU seconds and the hit tokens of the last half of the requests by policy."""
    work = traffic(prompts, KVCACHE_SIMULATOR)
    past = touch_history(work)
    half = slice(len(prompts.leaf) // 2, None)
    results = {}
    for name in SIMULATOR:
        policy = by_name(name)()
        once = partial(replay, work, policy, capacity, history=past, mandatory=name == "fifo")
        seconds, done = timed(once)
        hit = done.hit_blocks.astype(np.int64) * prompts.block_size
        tokens = int(np.minimum(hit, prompts.input_tokens)[half].sum())
        results[name] = {"cpu_s": seconds, "hit_tokens": tokens}
    return results


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("store")
    parser.add_argument("share", type=float, help="capacity as a share of the blocks")
    parser.add_argument("--describe", action="store_true", help="only print what would be replayed")
    options = parser.parse_args()
    with open_store(options.store, read_only=True) as store:
        (trace,) = traces.all_traces(store)
        prompts = load_prompts(store, trace)
    blocks = len(prompts.block_parent) - 1
    capacity = int(blocks * options.share)
    if options.describe:
        print(json.dumps({"blocks": blocks, "capacity_blocks": capacity, "flat": FLAT}))
        return
    prefix, flat = traffic(prompts, standard()), traffic(prompts, LIBCACHESIM)
    history_s, _ = timed(lambda: touch_history(prefix))
    peers = tuple(policy for policy in POLICIES if policy.name in FLAT)
    print(
        json.dumps(
            {
                "blocks": blocks,
                "capacity_blocks": capacity,
                "accesses": int((prefix.length + prefix.anonymous).sum(dtype=np.int64)),
                "flat_accesses": len(flat.leaf),
                "history_cpu_s": history_s,
                "prefix": replays(prefix, POLICIES, capacity, mandatory=False),
                "flat": replays(flat, peers, capacity, mandatory=True),
                "simulator": by_simulator(prompts, capacity),
            }
        )
    )


if __name__ == "__main__":
    main()
