"""A fleet in plain Python: every load is counted anew, by looking back at all requests.

Slow on purpose and written without a look at the kernel. Caches are LRU dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvscope.fleet.kernel import Asked, Costs
from kvscope.replay.traffic import Traffic
from kvscope.routers.base import Fetch, MemorySizes, Prompt, ReplicaLoad, Router, Truth, View
from tests.oracles.replay import left_behind, paths


@dataclass
class Sent:
    """One request that was sent to a replica."""

    request: int
    replica: int
    arrival_s: float
    hit: int
    best: int
    begin_s: float
    token_s: float
    end_s: float
    tokens: int
    uncached: int
    prompt: tuple[int, ...]


@dataclass
class Lru:
    """A cache; of the blocks that were used longest ago the deepest leaves first.

    `events` has what was cached after each request, and when that was.
    """

    capacity: int
    last: dict[object, tuple[int, int]] = field(default_factory=dict)
    events: list[tuple[float, set[object]]] = field(default_factory=list)

    def put(self, blocks: Sequence[object], now: int, now_s: float) -> None:
        """Use the blocks of one request."""
        for depth, block in enumerate(blocks):
            self.last[block] = (now, -depth)
        while len(self.last) > self.capacity:
            del self.last[min(self.last, key=lambda block: self.last[block])]
        self.events.append((now_s, set(self.last)))

    def reported(self, now_s: float, lag_s: float) -> set[object]:
        """Return what was cached by the events that have arrived."""
        arrived = [blocks for time_s, blocks in self.events if time_s + lag_s <= now_s]
        return arrived[-1] if arrived else set()


def leading(cached: Container[object], path: Sequence[int]) -> int:
    """Return how many leading blocks of a path are cached."""
    for depth, block in enumerate(path):
        if block not in cached:
            return depth
    return len(path)


def _load(sent: Sequence[Sent], replicas: int, at_s: float) -> ReplicaLoad:
    """Count what replicas have to do once everything that is due by `at_s` has happened."""
    load = ReplicaLoad(*(np.zeros(replicas, dtype=np.int64) for _ in ReplicaLoad._fields))
    used: list[set[int]] = [set() for _ in range(replicas)]
    for one in sent:
        load.processed[one.replica] += 1
        load.sent_tokens[one.replica] += one.tokens
        if one.end_s > at_s:
            load.in_flight[one.replica] += 1
            kind = load.waiting if one.begin_s > at_s else load.running
            kind[one.replica] += 1
            used[one.replica].update(one.prompt)
        if one.token_s > at_s:
            load.prompt_tokens[one.replica] += one.tokens
            load.uncached_tokens[one.replica] += one.uncached
    load.used_blocks[:] = [len(blocks) for blocks in used]
    return load


def simulate(
    traffic: Traffic,
    asked: Asked,
    costs: Costs,
    router: Router,
    replicas: int,
    capacity: int,
    think_s: Sequence[float] | None = None,
    seed: int = 0,
) -> list[Sent]:
    """Return what happens to the requests, in the order in which they arrive."""
    think = [-1.0] * len(traffic.leaf) if think_s is None else think_s
    caches = [Lru(capacity) for _ in range(replicas)]
    free_s = [0.0] * replicas
    named, whole = paths(traffic), left_behind(traffic)
    prompts = paths(traffic._replace(leaf=asked.leaf, length=asked.blocks))
    due = {r: float(traffic.arrival_s[r]) for r in range(len(think)) if think[r] < 0}
    longest = int(asked.blocks.max(initial=0)) + 1
    sizes = MemorySizes(
        replicas,
        len(think),
        len(traffic.block_parent),
        longest,
        traffic.block_size,
        capacity,
        traffic.block_parent,
    )
    memory, scrape_s = router.memory(sizes, seed), router.values.get("scrape_s", 0.0)
    lag_s = router.values.get("event_lag_s", 0.0)
    sent: list[Sent] = []

    def prefill_s(uncached: int, cached: int) -> float:
        read = max(costs.floor_s, costs.prefill_token_s * uncached)
        return costs.base_s + read + costs.prefill_pair_s * uncached * (cached + uncached / 2)

    while due:
        now_s, request = min((time, number) for number, time in due.items())
        del due[request]
        own = _load(sent, replicas, now_s)
        scraped = own
        if scrape_s > 0:
            at_s = math.floor(now_s / scrape_s) * scrape_s
            scraped = _load([one for one in sent if one.arrival_s < at_s], replicas, at_s)
        tokens, size = int(traffic.input_tokens[request]), traffic.block_size
        path, prompt = named[request], prompts[request]
        look = path[: traffic.look[request]]
        cached = [leading(cache.last, look) for cache in caches]
        reported = [leading(cache.reported(now_s, lag_s), look) for cache in caches]
        hit_tokens = [min(blocks * size, tokens) for blocks in cached]
        in_flight = [
            {b for one in sent if one.replica == w and one.end_s > now_s for b in one.prompt}
            for w in range(replicas)
        ]
        truth = Truth(
            np.array(cached, dtype=np.int32),
            np.array([len(set(prompt) - blocks) for blocks in in_flight]),
            np.array([prefill_s(tokens - hit, hit) for hit in hit_tokens]),
            np.array([max(free - now_s, 0.0) for free in free_s]),
        )
        fetch = Fetch(np.zeros(1, dtype=np.int32), np.zeros(1))
        events = np.array(reported, dtype=np.int32)
        expected = np.full(1, -1, dtype=np.int32)
        view = View(replicas, capacity, size, own, scraped, events, expected, truth, fetch)
        ask = Prompt(
            len(sent),
            now_s,
            tokens,
            int(asked.key[request]),
            len(prompt),
            int(asked.full_blocks[request]),
        )
        room = np.zeros(longest, dtype=np.int32)
        room[: len(prompt)] = prompt
        to = int(router.choose(ask, room, view, memory, router.settings()))
        caches[to].put(whole[request], len(sent), now_s)
        begin_s = max(now_s, free_s[to])
        hit, fetch_s = cached[to], 0.0
        copied = min(int(fetch.blocks[0]), max(cached))
        if copied > hit:
            hit, fetch_s = copied, float(fetch.seconds[0])
        hit_tokens[to] = min(hit * size, tokens)
        free_s[to] = token_s = (
            begin_s + fetch_s + prefill_s(tokens - hit_tokens[to], hit_tokens[to])
        )
        taken = int(expected[0]) if expected[0] >= 0 else hit
        outputs = int(traffic.history_tokens[request]) - tokens
        token_cost_s = (
            costs.decode_base_s
            + costs.decode_token_s * (int(own.running[to]) + 1)
            + costs.decode_context_token_s * tokens
        )
        sent.append(
            Sent(
                request,
                to,
                now_s,
                hit,
                max(cached),
                begin_s,
                token_s,
                token_s + max(outputs - 1, 0) * token_cost_s,
                tokens,
                tokens - min(taken * size, tokens),
                tuple(prompt),
            )
        )
        for turn in range(len(think)):
            if think[turn] >= 0 and traffic.parent[turn] == request:
                due[turn] = sent[-1].end_s + think[turn]
    return sent
