"""A fleet of simulated vLLMs in plain Python: one engine's kernel for each, and a step at a time.

Slow on purpose: every load is counted anew, by looking back at all requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.trace import Prompts
from kvscope.fleet.replay import FleetReplay, PoolUse, asked
from kvscope.policies.base import Policy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.routers.base import Fetch, MemorySizes, Prompt, ReplicaLoad, Router, Truth, View
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.engine import runner
from kvscope.vllm_sim.state import Machine, idle_machine

_NEVER = 2**62


@dataclass
class Engine:
    """One engine, and the requests sent to it with the tokens that the router took as uncached.

    What is below its CPU tier is that of the engine `beside` it, if there is one.
    """

    known: Machine
    beside: Engine | None = None
    sent: list[int] = field(default_factory=list)
    uncached: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    idle: bool = True
    seen_s: float = -math.inf

    def __post_init__(self) -> None:
        self.machine = deepcopy(self.known)
        if self.beside is not None:
            pool = self.beside.machine.offload
            own = self.machine.offload._replace(
                files=pool.files, pool=pool.pool, pool_links=pool.pool_links
            )
            self.machine = self.machine._replace(offload=own)
        self._run = runner(self.machine)
        self.machine.requests.arrival_s = np.inf
        self.machine.tables.since[1:] = _NEVER

    @property
    def now_s(self) -> float:
        """The time until which it has been simulated, infinite while it has nothing to do."""
        return math.inf if self.idle else max(float(self.machine.state[0].now_s), self.seen_s)

    def send(self, request: int, now_s: float, uncached: int) -> None:
        """Queue a request."""
        place = len(self.sent)
        self.machine.requests[place] = self.known.requests[request]
        self.machine.cuts[place] = self.known.cuts[request]
        self.machine.requests[place].arrival_s = now_s
        self.sent.append(request)
        self.uncached.append(uncached)
        self.idle, self.seen_s = False, -math.inf

    def take_tables(self, slot: int) -> None:
        """Read each table of the policy that holds from arrival `slot` on from the next request."""
        for period, since in enumerate(self.known.tables.since):
            if 0 < since <= slot and self.machine.tables.since[period] == _NEVER:
                self.machine.tables.since[period] = len(self.sent)

    def step(self, until_s: float) -> None:
        """Compute one step."""
        self.idle = not self._run(1, _NEVER, until_s)
        self.seen_s = until_s if self.machine.offload.state[0].waits > 0 else -math.inf

    def new_ends(self) -> list[tuple[int, float]]:
        """Return the requests that ended since the last call, and when."""
        ends = []
        for place, request in enumerate(self.sent):
            row = self.machine.requests[place]
            end_s = row.arrival_s if row.oversized else row.finished_s
            if place not in self.ended and not math.isnan(end_s):
                self.ended.add(place)
                ends.append((request, float(end_s)))
        return ends

    def held(self, path: Sequence[int]) -> int:
        """Return how many leading blocks of a path it holds."""
        for depth, node in enumerate(path):
            if self.machine.holders[node] <= 0:
                return depth
        return len(path)

    def uses(self, node: int) -> bool:
        """Return whether a request uses a block."""
        holder = self.machine.holders[node]
        return bool(holder > 0 and self.machine.blocks[holder - 1].users > 0)


@dataclass
class Turns:
    """When requests are due (s), by request; how long users think before each, -1 in open loop."""

    due: dict[int, float]
    think_s: Sequence[float]
    parent: Sequence[int]

    def step(self, engines: Sequence[Engine], until_s: float) -> bool:
        """Let the engine step that is furthest behind; return False if all are at `until_s`."""
        engine = _step(engines, until_s)
        if engine is not None:
            self.follow(engine)
        return engine is not None

    def follow(self, engine: Engine) -> None:
        """Let the turns be due that follow what has ended."""
        for request, end_s in engine.new_ends():
            for turn, parent in enumerate(self.parent):
                if self.think_s[turn] >= 0 and parent == request:
                    self.due[turn] = end_s + self.think_s[turn]


def _step(engines: Sequence[Engine], until_s: float) -> Engine | None:
    """Let the engine step that is furthest behind, and return it; None if all are at `until_s`."""
    engine = min(engines, key=lambda each: each.now_s)
    if engine.now_s >= until_s:
        return None
    engine.step(until_s)
    return engine


def _path(parents: Any, leaf: int, length: int) -> list[int]:
    path = []
    for _ in range(length):
        path.append(leaf)
        leaf = int(parents[leaf])
    return path[::-1]


def _load(engines: Sequence[Engine], at_s: float, before_s: float) -> ReplicaLoad:
    """Count what engines had to do at `at_s`, of what arrived before; blocks in use as now."""
    load = ReplicaLoad(*(np.zeros(len(engines), dtype=np.int64) for _ in ReplicaLoad._fields))
    for number, engine in enumerate(engines):
        for place in range(len(engine.sent)):
            row = engine.machine.requests[place]
            if row.oversized or row.arrival_s >= before_s or row.finished_s <= at_s:
                continue
            load.in_flight[number] += 1
            if row.admitted_s <= at_s:
                load.running[number] += 1
            else:
                load.waiting[number] += 1
                load.waiting_tokens[number] += row.prompt
            if not row.first_token_s <= at_s:
                load.prompt_tokens[number] += row.prompt
                load.uncached_tokens[number] += engine.uncached[place]
        load.used_blocks[number] = np.count_nonzero(engine.machine.blocks.users)
    return load


def _count_sent(load: ReplicaLoad, sent: Sequence[tuple[float, int, int]], before_s: float) -> None:
    """Count the requests that were sent to each replica."""
    for sent_s, replica, tokens in sent:
        if sent_s < before_s:
            load.processed[replica] += 1
            load.sent_tokens[replica] += tokens


def _truth(
    engines: Sequence[Engine],
    held: Sequence[int],
    tokens: int,
    path: Sequence[int],
    cost: StepCost,
    size: int,
    own: ReplicaLoad,
) -> Truth:
    hit = np.minimum(np.array(held) * size, tokens)
    read_s = np.maximum(cost.floor_s, cost.prefill_token_s * (tokens - hit))
    pairs_s = cost.prefill_pair_s * (tokens - hit) * (hit + (tokens - hit) / 2)
    return Truth(
        np.array(held, dtype=np.int32),
        np.array([sum(not each.uses(node) for node in path) for each in engines]),
        cost.base_s + read_s + pairs_s,
        cost.prefill_token_s * own.uncached_tokens,
    )


def _done(
    engines: Sequence[Engine],
    order: list[int],
    replica: Int32s,
    place: Int32s,
    best: Int32s,
    before: Int64s,
) -> FleetReplay:
    rows = [engines[to].machine.requests[at] for to, at in zip(replica, place, strict=True)]
    hits, read, pool = np.array([max(row.hits, 0) for row in rows], dtype=np.int32), None, None
    stored = 0
    offload = engines[0].machine.offload
    if len(offload.members):
        members = [
            engines[to].machine.offload.members[at] for to, at in zip(replica, place, strict=True)
        ]
        size = int(engines[0].machine.state[0].block_size)
        loaded = [
            min(max(member.external, 0) // size, (row.prompt - 1) // size - hit)
            for member, row, hit in zip(members, rows, hits, strict=True)
        ]
        hits += np.array(loaded, dtype=np.int32)
        tiers = [each.machine.offload.state[0] for each in engines]
        stored = sum(int(tier.stored - tier.read_chunks) for tier in tiers)
        if offload.state[0].storage:
            read = np.array(
                [min(x.read, y) for x, y in zip(members, loaded, strict=True)], dtype=np.int32
            )
        if offload.pool[0].shared:
            there = int(np.isfinite(offload.files.written_s).sum())
            pool = PoolUse(there, int(offload.pool[0].evictions), int(offload.pool[0].full))
    return FleetReplay(
        replicas=len(engines),
        replica=replica,
        hit_blocks=hits,
        best_blocks=np.maximum(best, hits),
        order=np.array(order, dtype=np.int32),
        arrival_s=np.array([row.arrival_s for row in rows]),
        begin_s=np.array([row.admitted_s for row in rows]),
        token_s=np.array([row.first_token_s for row in rows]),
        end_s=np.array([row.finished_s for row in rows]),
        evictions=np.array([each.machine.state[0].evictions for each in engines]),
        read_blocks=read,
        pool=pool,
        stored_chunks=stored,
        before=before,
    )


def simulate(
    prompts: Prompts,
    policy: Policy,
    router: Router,
    replicas: int,
    settings: EngineSettings,
    cost: StepCost,
    think_s: Sequence[float] | None = None,
    tables: Tables = NO_TABLES,
    seed: int = 0,
) -> FleetReplay:
    """Return what `replay_engines` returns, of models whose layers are alike."""
    known = idle_machine(prompts, policy, settings, cost, tables=tables)
    count, size, parents, routed = (
        len(prompts.leaf),
        prompts.block_size,
        known.parents,
        asked(prompts),
    )
    engines, late = [Engine(known)], [Engine(known)]
    for alike in (engines, late):
        beside = alike[0] if known.offload.pool[0].shared else None
        alike += [Engine(known, beside) for _ in range(replicas - 1)]
    think = [-1.0] * count if think_s is None else think_s
    due = {r: float(known.requests[r].arrival_s) for r in range(count) if think[r] < 0}
    turns = Turns(due, think, prompts.parent.tolist())
    longest = max(int(known.requests.length.max()), int(routed.blocks.max())) + 1
    memory = router.memory(
        MemorySizes(replicas, count, len(parents), longest, size, settings.usable_blocks, parents),
        seed,
    )
    scrape_s = router.values.get("scrape_s", 0.0)
    lag_s = router.values.get("event_lag_s", 0.0)
    sent: list[tuple[float, int, int]] = []  # when requests were sent, where, their tokens
    last_s, used = -math.inf, np.zeros(replicas, dtype=np.int64)
    order: list[int] = []
    replica_of, place_of, best = np.zeros((3, count), dtype=np.int32)
    before = np.zeros((count, 2), dtype=np.int64)

    while len(order) < count:
        while turns.step(engines, min(due.values(), default=math.inf)):
            pass
        now_s, request = min((time_s, number) for number, time_s in due.items())
        del due[request]
        for engine in (*engines, *late):
            engine.take_tables(len(order))
        while _step(late, now_s - lag_s):
            pass
        own = scraped = _load(engines, now_s, math.inf)
        _count_sent(own, sent, math.inf)
        if scrape_s > 0:
            scraped_s = math.floor(now_s / scrape_s) * scrape_s
            scraped = _load(engines, scraped_s, scraped_s)
            _count_sent(scraped, sent, scraped_s)
            if scraped_s > last_s:
                last_s, used = scraped_s, scraped.used_blocks.copy()
            scraped.used_blocks[:] = used
        row, blocks = known.requests[request], int(routed.blocks[request])
        look = _path(parents, int(row.leaf), int(row.length))[: row.look]
        prompt_path = _path(parents, int(routed.leaf[request]), blocks)
        held, tokens = [engine.held(look) for engine in engines], int(row.prompt)
        truth = _truth(engines, held, tokens, prompt_path, cost, size, own)
        reported = [engine.held(look) for engine in late] if lag_s > 0 else held
        expected = np.full(1, -1, dtype=np.int32)
        view = View(
            replicas,
            settings.usable_blocks,
            size,
            own,
            scraped,
            np.array(reported, dtype=np.int32),
            expected,
            truth,
            Fetch(np.zeros(1, dtype=np.int32), np.zeros(1)),
        )
        key, full = int(routed.key[request]), int(routed.full_blocks[request])
        path = np.zeros(longest, dtype=np.int32)
        path[:blocks] = prompt_path
        ask = Prompt(len(order), now_s, tokens, key, blocks, full)
        to = int(router.choose(ask, path, view, memory, router.settings()))
        taken = int(expected[0]) if expected[0] >= 0 else held[to]
        place_of[request], replica_of[request] = len(engines[to].sent), to
        state = engines[to].machine.state[0]
        before[request] = state.steps, state.evictions
        for engine in (engines[to], late[to]):
            engine.send(request, now_s, tokens - min(taken * size, tokens))
        turns.follow(engines[to])  # it may be oversized
        sent.append((now_s, to, tokens))
        order.append(request)
        best[request] = max(held)
    while turns.step(engines, math.inf):
        pass
    return _done(engines, order, replica_of, place_of, best, before)
