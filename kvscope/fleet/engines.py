"""A fleet whose replicas are simulated vLLMs: requests share steps, and running ones pin blocks.

Routers see what happened until a request arrives. A replica computes whole steps, so what its cache
holds may be ahead by the step in progress, as KV events that an engine sends after a step are
behind by it. Where KV events are late, each engine is simulated twice: they report what the second
one holds, which is behind by the lag.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from msgspec import Struct, field

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.errors import UsageError
from kvscope.core.jit import callable_in_kernels, kernel, once
from kvscope.core.prefix import write_path
from kvscope.core.trace import Prompts
from kvscope.fleet.kernel import OPEN
from kvscope.fleet.replay import FleetReplay, asked, no_view
from kvscope.policies.base import Policy
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.routers.base import MemorySizes, Prompt, ReplicaLoad, Router, View
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.engine import engine_kernel
from kvscope.vllm_sim.replay import SLICE_STEPS
from kvscope.vllm_sim.state import NONE, Machine, idle_machine

_NEVER = 2**62


@kernel
def _look_up(
    machine: Machine, path: Int32s, look: int, prompt: Int32s, blocks: int
) -> tuple[int, int]:
    """Return how many leading blocks of a path an engine holds, and how many no request uses.

    Of a hybrid model, those of full attention count, or of its first group: the prefix that KV
    events report. Windows and states may let fewer hit.
    """
    cached, new = 0, 0
    if len(machine.groups) > 0:
        layout = machine.groups[machine.specs[0].begin]
        size, first = layout.nodes_per_block, layout.first_content
        while (cached + 1) * size <= look and (
            machine.nodes[path[(cached + 1) * size - 1] + first].first != NONE
        ):
            cached += 1
        for depth in range(size - 1, blocks, size):
            block = machine.nodes[prompt[depth] + first].first
            if block == NONE or machine.blocks[block].users == 0:
                new += size
        return cached * size, new + blocks % size
    while cached < look and machine.nodes[path[cached]].first != NONE:
        cached += 1
    for depth in range(blocks):
        block = machine.nodes[prompt[depth]].first
        if block == NONE or machine.blocks[block].users == 0:
            new += 1
    return cached, new


@kernel
def _write_path(block_parent: Int32s, leaf: int, path: Int32s, length: int) -> None:
    write_path(block_parent, leaf, path, 0, length)


@once
def _chooser(router: type[Router]) -> Callable[..., int]:
    if router.copies:
        raise UsageError(
            f"{router.name} copies prefixes between replicas, which simulated vLLMs do not",
            where="--router",
            remedy="take --time-model queue",
        )
    choose = callable_in_kernels(router.choose)

    @kernel
    def chosen(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        return choose(prompt, path, view, memory, p)

    return chosen


class _Replica(Struct):
    """One engine and the requests sent to it, by their place among them.

    `sent` are their numbers in the trace, `uncached_tokens` what the router took it to compute of
    each. `open` are the places that may be in flight, `ended` those of them whose end
    `advance_to_end` has returned.
    """

    machine: Machine
    sent: list[int] = field(default_factory=list)
    uncached_tokens: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    idle: bool = True

    @property
    def now_s(self) -> float:
        """The time until which it has been simulated, infinity while it has nothing to do."""
        return math.inf if self.idle else float(self.machine.state[0].now_s)

    def end_s(self, place: int) -> float:
        """Return when a request ended, nan while it has not; a rejected one ends at once."""
        row = self.machine.requests[place]
        return float(row.arrival_s if row.oversized else row.finished_s)


def _idle_replica(known: Machine) -> _Replica:
    """Return an engine to which nothing was sent; `known` has all requests of the trace."""
    tables, columns = known.tables, known._asdict()
    tuples = ("tables", "offload")
    own = {name: column.copy() for name, column in columns.items() if name not in tuples}
    machine = Machine(
        **own,
        tables=tables._replace(since=tables.since.copy(), in_force=tables.in_force.copy()),
        offload=known.offload.copied(),
    )
    machine.requests.arrival_s = np.inf
    machine.tables.since[1:] = _NEVER
    return _Replica(machine)


class _Engines:
    """N engines, simulated up to the latest arrival; `known` has all requests of the trace.

    Where KV events are late by `lag_s`, `reported` are the same engines so much earlier.
    """

    def __init__(self, known: Machine, replicas: int, policy: Policy, lag_s: float) -> None:
        self._requests, self._cuts = known.requests, known.cuts
        self._run = engine_kernel(policy, known)
        self._lag_s = lag_s
        self.replicas = [_idle_replica(known) for _ in range(replicas)]
        self.reported = [_idle_replica(known) for _ in range(replicas if lag_s > 0 else 0)]

    def send(self, replica: int, request: int, now_s: float, uncached_tokens: int) -> int:
        """Queue a request on a replica; return its place there."""
        for engine in self.reported[replica : replica + 1]:
            self._queue(engine, request, now_s, uncached_tokens)
        return self._queue(self.replicas[replica], request, now_s, uncached_tokens)

    def _queue(self, engine: _Replica, request: int, now_s: float, uncached_tokens: int) -> int:
        place = len(engine.sent)
        engine.machine.requests[place] = self._requests[request]
        engine.machine.cuts[place] = self._cuts[request]
        engine.machine.requests[place].arrival_s = now_s
        engine.sent.append(request)
        engine.uncached_tokens.append(uncached_tokens)
        engine.open.append(place)
        engine.idle = False
        return place

    def take_table(self, period: int) -> None:
        """Let all replicas read the policy's table of a period from their next request on."""
        for engine in (*self.replicas, *self.reported):
            engine.machine.tables.since[period] = len(engine.sent)

    def advance(self, until_s: float) -> None:
        """Simulate all replicas up to `until_s`."""
        self._advance(self.replicas, until_s)

    def _advance(self, engines: list[_Replica], until_s: float) -> None:
        for engine in engines:
            while engine.now_s < until_s:
                engine.idle = not self._run(engine.machine, SLICE_STEPS, _NEVER, until_s)

    def advance_to_end(self, until_s: float) -> list[tuple[int, float]]:
        """Simulate step by step up to `until_s`, or to a step in which requests end.

        Return those: (request, when it ended). The replica that is furthest behind goes first, so
        that none has planned a step after that end.
        """
        while True:
            engine = min(self.replicas, key=lambda each: each.now_s)
            if engine.now_s >= until_s:
                return []
            finished = int(engine.machine.state[0].finished)
            engine.idle = not self._run(engine.machine, 1, _NEVER, until_s)
            if engine.machine.state[0].finished > finished:
                ends = {
                    place: engine.end_s(place)
                    for place in engine.open
                    if place not in engine.ended and not math.isnan(engine.end_s(place))
                }
                engine.ended.update(ends)
                return [(engine.sent[place], end_s) for place, end_s in ends.items()]

    def look_up(
        self, view: View, now_s: float, path: Int32s, look: int, prompt: Int32s, blocks: int
    ) -> None:
        """Set what replicas hold of a path, and what their KV events report; as `_look_up`."""
        for number, engine in enumerate(self.replicas):
            cached, new = _look_up(engine.machine, path, look, prompt, blocks)
            view.truth.cached_blocks[number], view.truth.new_blocks[number] = cached, new
        self._advance(self.reported, now_s - self._lag_s)
        for number, engine in enumerate(self.reported):
            view.reported_blocks[number], _ = _look_up(engine.machine, path, look, prompt, 0)

    def forget(self, before_s: float) -> None:
        """Forget the requests that ended by then: no load is counted for earlier times."""
        for engine in self.replicas:
            engine.open = [place for place in engine.open if not engine.end_s(place) <= before_s]

    def count_load(self, at_s: float, before_s: float, load: ReplicaLoad) -> None:
        """Count what replicas had to do at `at_s`, of what arrived before; blocks used as now."""
        for number, engine in enumerate(self.replicas):
            places = np.array(engine.open, dtype=np.int64)
            rows: Any = engine.machine.requests[places]
            end_s = np.where(rows.oversized > 0, rows.arrival_s, rows.finished_s)
            here = (rows.arrival_s < before_s) & ~(end_s <= at_s)
            rows, places = rows[here], places[here]
            running = int((rows.admitted_s <= at_s).sum())
            no_token = ~(rows.first_token_s <= at_s)
            load.in_flight[number], load.running[number] = len(rows), running
            load.waiting[number] = len(rows) - running
            load.prompt_tokens[number] = rows.prompt[no_token].sum()
            load.uncached_tokens[number] = sum(
                engine.uncached_tokens[place] for place in places[no_token].tolist()
            )
            state = engine.machine.state[0]
            load.used_blocks[number] = state.blocks - state.free


def _parents(known: Machine) -> Int32s:
    """Return the parents of the trie's nodes, which are the first ones of a machine."""
    parents: Int32s = known.nodes.parent[: len(known.nodes) // max(1, len(known.groups))].copy()
    return parents


def replay_engines(
    prompts: Prompts,
    policy: Policy,
    router: Router,
    replicas: int,
    settings: EngineSettings,
    cost: StepCost,
    *,
    think_s: Float64s | None = None,
    after: Int32s | None = None,
    rate_scale: float = 1.0,
    tables: Tables = NO_TABLES,
    seed: int = 0,
) -> FleetReplay:
    """Replay a trace on `replicas` simulated vLLMs of these settings, behind `router`.

    Arguments as in `replay_engine` and `replay_fleet`. `begin_s` is when a request was admitted;
    one that needs more than all blocks of a replica is rejected: it has no hits, and nan for times.
    A prefix that is computed between a request's arrival and its admission counts in `best_blocks`
    where the request hit it. `Truth.wait_s` is what the tokens in front take, without decodes.
    Raises UsageError for a policy without lanes and for a router that copies prefixes.
    """
    known = idle_machine(prompts, policy, settings, cost, rate_scale=rate_scale, tables=tables)
    requests, routed, parents = known.requests, asked(prompts), _parents(known)
    count, size = len(requests), prompts.block_size
    think_s = np.full(count, OPEN) if think_s is None else think_s
    closed = bool((think_s >= 0).any())
    scrape_s = router.values.get("scrape_s", 0.0)
    event_lag_s = router.values.get("event_lag_s", 0.0)
    engines = _Engines(known, replicas, policy, event_lag_s)
    view = no_view(replicas, settings.usable_blocks, size, scrape_s > 0, event_lag_s > 0)
    longest = int(max(routed.blocks.max(initial=0), requests.length.max(initial=0))) + 1
    sizes = MemorySizes(
        replicas, count, len(parents), longest, size, settings.usable_blocks, parents
    )
    memory, p, choose = router.memory(sizes, seed), router.settings(), _chooser(type(router))
    path, prompt_path = np.zeros((2, longest), dtype=np.int32)
    due = [(float(requests.arrival_s[r]), r) for r in range(count) if think_s[r] < 0]
    heapify(due)
    turns: dict[int, list[int]] = {}
    before = prompts.parent if after is None else after
    for turn in np.flatnonzero(think_s >= 0).tolist():
        turns.setdefault(int(before[turn]), []).append(turn)
    order, replica_of, best = np.zeros((3, count), dtype=np.int32)
    place_of, period, since = np.zeros(count, dtype=np.int64), 0, known.tables.since
    for slot in range(count):
        if closed:
            while ended := engines.advance_to_end(due[0][0] if due else math.inf):
                for request, end_s in ended:
                    for turn in turns.get(request, ()):
                        heappush(due, (end_s + float(think_s[turn]), turn))
        else:
            engines.advance(due[0][0])
        now_s, request = heappop(due)
        while period + 1 < len(since) and since[period + 1] <= slot:
            period += 1
            engines.take_table(period)
        scraped_at_s = math.floor(now_s / scrape_s) * scrape_s if scrape_s > 0 else now_s
        if scrape_s > 0:
            engines.count_load(scraped_at_s, scraped_at_s, view.scraped)
        engines.count_load(now_s, math.inf, view.own)
        engines.forget(scraped_at_s)

        row, blocks = requests[request], int(routed.blocks[request])
        _write_path(parents, int(row.leaf), path, int(row.length))
        _write_path(parents, int(routed.leaf[request]), prompt_path, blocks)
        tokens = int(row.prompt)
        engines.look_up(view, now_s, path, int(row.look), prompt_path, blocks)
        _estimate(view, tokens, cost)
        prompt = Prompt(
            slot, now_s, tokens, int(routed.key[request]), blocks, int(routed.full_blocks[request])
        )
        view.expected_blocks[0] = -1
        replica = int(choose(prompt, prompt_path, view, memory, p))
        uncached = _expected_uncached(view, replica, tokens)
        place_of[request] = engines.send(replica, request, now_s, uncached)
        view.own.processed[replica] += 1
        order[slot], replica_of[request] = request, replica
        best[request] = view.truth.cached_blocks.max()
    engines.advance(math.inf)
    return _outcome(engines, order, replica_of, best, place_of)


def _estimate(view: View, tokens: int, cost: StepCost) -> None:
    """Set how long a prompt would wait and prefill; its prefill is taken to be alone in a step."""
    truth = view.truth
    hit = np.minimum(truth.cached_blocks.astype(np.int64) * view.block_size, tokens)
    uncached = tokens - hit
    read_s = np.maximum(cost.floor_s, cost.prefill_token_s * uncached)
    pairs_s = cost.prefill_pair_s * uncached * (hit + uncached / 2)
    truth.prefill_s[:] = cost.base_s + read_s + pairs_s
    truth.wait_s[:] = cost.prefill_token_s * view.own.uncached_tokens


def _expected_uncached(view: View, replica: int, tokens: int) -> int:
    """Return how many tokens of a prompt the router takes its choice to compute."""
    expected = int(view.expected_blocks[0])
    if expected < 0:
        expected = int(view.truth.cached_blocks[replica])
    return tokens - min(expected * view.block_size, tokens)


def _outcome(
    engines: _Engines, order: Int32s, replica: Int32s, best: Int32s, place: Int64s
) -> FleetReplay:
    rows = [
        engines.replicas[number].machine.requests[at]
        for number, at in zip(replica.tolist(), place.tolist(), strict=True)
    ]
    hit_blocks = np.array([max(row.hits, 0) for row in rows], dtype=np.int32)
    arrival_s, begin_s, token_s, end_s = (
        np.array([row[name] for row in rows], dtype=np.float64)
        for name in ("arrival_s", "admitted_s", "first_token_s", "finished_s")
    )
    return FleetReplay(
        replicas=len(engines.replicas),
        replica=replica,
        hit_blocks=hit_blocks,
        best_blocks=np.maximum(best, hit_blocks),
        order=order,
        arrival_s=arrival_s,
        begin_s=begin_s,
        token_s=token_s,
        end_s=end_s,
        evictions=np.array(
            [each.machine.state[0].evictions for each in engines.replicas], dtype=np.int64
        ),
    )
