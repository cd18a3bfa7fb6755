"""kvscope's routers in lockstep with the real programs, which choose among scripted workers.

Requests finish when the script says so, thus loads are exact. Where the order among equals is the
real router's own, the first requests show it, or one order has to explain all choices.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from kvscope.core.arrays import Float64s, Int32s
from kvscope.routers.balancers import PowerOfTwo
from kvscope.routers.base import Prompt, Router, View, mix32
from kvscope.routers.hash_ring import HashRing, PrefixHash, prefix_key
from kvscope.routers.sglang import OwnedTree, Sglang
from tests.conformance.real_router import RealRouter
from tests.routers.scripted import BLOCK_SIZE, CHARACTERS_PER_TOKEN, Script, decide, scripted

pytestmark = pytest.mark.router

WORKERS = 4
REQUESTS = pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.long)])
BUSY = {"balance_abs_threshold": 3, "balance_rel_threshold": 1.3}


def sglang(kind: type[Sglang] = Sglang, **values: float) -> Sglang:
    """Return a router of SGLang's kind for the scripted texts."""
    return kind({"characters_per_token": CHARACTERS_PER_TOKEN} | values)


def options(router: Router, log_level: str = "warn") -> list[str]:
    """Return the options that set the real program as the router is."""
    return [*" ".join(router.flags()).split(), "--log-level", log_level]


def real_choices(script: Script, real: RealRouter) -> list[int]:
    """Return the worker that the real router chooses for each request."""
    choices = []
    for number in range(len(script.requests)):
        real.finish(script.finished_before(number))
        choices.append(real.send(number, script.text(number)))
    return choices


def agreement(choices: Sequence[int], real: Sequence[int]) -> int:
    """Return how many choices are the real ones, replicas renamed as the first requests show.

    The first requests match nothing and stay in flight, so they go to one replica after the other.
    """
    names = dict(zip(choices[:WORKERS], real[:WORKERS], strict=True))
    return sum(names.get(ours) == theirs for ours, theirs in zip(choices, real, strict=True))


class LastOwner(Sglang):
    """Wrong: the replica that got a text last owns it."""

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: OwnedTree, p: Float64s) -> int:
        """Return the choice, and give it the whole path."""
        choice = Sglang.choose(prompt, path, view, memory, p)
        for block in path:
            memory.owner[memory.tree.node_of[block]] = choice
        return choice


class FewestProcessed(Sglang):
    """Wrong: of equally busy replicas the one that got the fewest requests so far."""

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: OwnedTree, p: Float64s) -> int:
        """Return the choice by loads that have the requests so far as decimals."""
        load = view.own.in_flight * 100_000 + view.own.processed
        scaled = p * np.array([1, 100_000, 1, 1, 1, 1])
        exact = view._replace(own=view.own._replace(in_flight=load))
        return Sglang.choose(prompt, path, exact, memory, scaled)


class NothingLearned(Sglang):
    """Wrong: while load is imbalanced the tree learns nothing."""

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: OwnedTree, p: Float64s) -> int:
        """Return the least busy replica while imbalanced, and leave the tree alone."""
        load = view.own.in_flight
        if load.max() - load.min() > p[1] and load.max() > load.min() * p[2]:
            return int(load.argmin())
        return Sglang.choose(prompt, path, view, memory, p)


WRONG: list[tuple[type[Sglang], dict[str, float]]] = [
    (Sglang, {"cache_threshold": 0.5}),
    (LastOwner, {}),
    (FewestProcessed, {}),
]


@REQUESTS
@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({}, WRONG),
        (
            BUSY,
            [
                *WRONG,
                (Sglang, {"balance_abs_threshold": 4}),
                (Sglang, {"balance_rel_threshold": 1.7}),
                (NothingLearned, {}),
            ],
        ),
    ],
    ids=["defaults", "busy"],
)
def test_sglang(
    count: int, values: dict[str, float], wrong: list[tuple[type[Sglang], dict[str, float]]]
) -> None:
    """Every choice is the real one, and wrong variants are found out."""
    script = scripted(count, 1, in_flight=40)
    with RealRouter("sglang_router", WORKERS, options(sglang(**values))) as program:
        real = real_choices(script, program)
    assert agreement(list(decide(sglang(**values), script, WORKERS)), real) == count
    assert len(set(real)) == WORKERS
    for kind, change in wrong:
        variant = sglang(kind, **(values | change))
        assert agreement(list(decide(variant, script, WORKERS)), real) < 0.99 * count


class NeverFresh(Sglang):
    """Wrong: a text that was sent again keeps its place among those to evict."""

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: OwnedTree, p: Float64s) -> int:
        """Return the choice, and put the stamps of old nodes back."""
        before = memory.tree.stamps.copy()
        choice = Sglang.choose(prompt, path, view, memory, p)
        had_and_has = (before > 1) & (memory.tree.stamps > 1)
        memory.tree.stamps[had_and_has] = before[had_and_has]
        return choice


@pytest.mark.parametrize("batches", [6, pytest.param(20, marks=pytest.mark.long)])
def test_timed_eviction_of_sglang(batches: int) -> None:
    """The tree has the real sizes before each eviction, and choices are the real ones after it.

    With two workers a text whose owner was evicted has one other at most. The router starts with an
    epoch that depends on how its workers registered: one of 8 phases has to explain all.
    """
    batch, interval_s, workers = 60, 2, 2
    script = scripted(batches * batch, 3, in_flight=15, apart=workers)
    values = {"eviction_interval_s": interval_s, "max_tree_chars": 1200} | BUSY
    router = sglang(**values)
    real: list[int] = []
    with RealRouter("sglang_router", workers, options(router, "debug")) as program:
        for begin in range(0, len(script.requests), batch):
            evictions = _wait_for_eviction(program)
            for number in range(begin, begin + batch):
                program.finish(script.finished_before(number))
                real.append(program.send(number, script.text(number)))
            assert _evictions(program) == evictions, "this machine is too slow for the interval"
        _wait_for_eviction(program)
        sizes = _sizes_before_evictions(program)[-batches:]
    assert max(map(max, sizes)) > 1200

    def explained(kind: type[Sglang], phase: int) -> bool:
        """Return True if all choices and sizes are those of a kind that starts in a phase."""
        ours = sglang(kind, **values)
        memory = ours.memory(script.sizes(workers), seed=1)
        memory.tree.counters[0] = phase
        times = [interval_s * (1 + number // batch) for number in range(len(script.requests))]
        names: dict[int, int] = {}
        for number, choice in enumerate(decide(ours, script, workers, memory, times)):
            if names.setdefault(choice, real[number]) != real[number]:
                return False
            if number % batch == batch - 1:
                tokens = {names[replica]: memory.tree.replica_tokens[replica] for replica in names}
                in_tree = [CHARACTERS_PER_TOKEN * tokens[worker] for worker in range(workers)]
                if in_tree != sizes[number // batch]:
                    return False
        return True

    assert any(explained(Sglang, phase) for phase in range(8))
    assert not any(explained(NeverFresh, phase) for phase in range(8))
    values["max_tree_chars"] = 1300
    assert not any(explained(Sglang, phase) for phase in range(8))


def _evictions(program: RealRouter) -> int:
    return sum("Cache eviction completed" in line for line in program.log)


def _wait_for_eviction(program: RealRouter) -> int:
    """Wait for the next eviction, and return how many there were."""
    evictions = _evictions(program)
    until = time.monotonic() + 30
    while _evictions(program) == evictions:
        assert time.monotonic() < until
        time.sleep(0.01)
    return _evictions(program)


def _sizes_before_evictions(program: RealRouter) -> list[list[int]]:
    """Return the characters of each worker in the tree before each eviction, from the log."""
    sizes: list[list[int]] = []
    is_before = False
    for line in program.log:
        if "eviction - Used size" in line:
            is_before = "Before" in line
            sizes += [[0] * len(program.worker_of_url)] * is_before
        size = re.search(r"Tenant: (\S+), Size: (\d+)", line)
        if size and is_before:
            sizes[-1][program.worker_of_url[size[1]]] = int(size[2])
    return sizes


@REQUESTS
def test_power_of_two(count: int) -> None:
    """Of two workers the less busy one gets each request; of equals either."""
    script = scripted(count, 2, in_flight=20, apart=0)
    with RealRouter("smg", 2, options(PowerOfTwo())) as program:
        real = real_choices(script, program)
    load, equals = [0, 0], [0, 0]
    for number, choice in enumerate(real):
        for earlier in script.finished_before(number):
            load[real[earlier]] -= 1
        assert load[choice] <= load[1 - choice]
        equals[choice] += load[0] == load[1]
        load[choice] += 1
    assert min(equals) > 0.35 * sum(equals) > 20


class InOrder(PrefixHash):
    """Takes the first of equals in another order than that of their numbers."""

    order: Sequence[int] = ()

    def choose(self, *arguments: Any) -> int:  # type: ignore[override]
        """Return the choice among replicas that are renamed to their places in the order."""
        prompt, path, view, memory, p = arguments
        order = np.array(self.order)
        own = view.own._replace(in_flight=view.own.in_flight[order])
        renamed = HashRing(memory.places, np.argsort(order)[memory.replicas])
        choice = PrefixHash.choose(prompt, path, view._replace(own=own), renamed, p)
        return int(order[choice])


@REQUESTS
def test_prefix_hash(count: int) -> None:
    """Every choice is the real one, on a ring that probes of the idle router show."""
    script = scripted(count, 1, in_flight=40)
    values = {"prefix_tokens": 1.5 * BLOCK_SIZE, "load_factor": 1.25, "balance_abs_threshold": 2}
    # Texts that are not tokenized are hashed at 4 characters a token.
    wide = [script.text(number, 4) for number in range(count)]
    keys = [
        prefix_key(_prompt(number, script), request.path, BLOCK_SIZE, 6)
        for number, request in enumerate(script.requests)
    ]

    def routed() -> tuple[dict[int, int], list[int]]:
        """Return the worker of each key on the idle router, and of each request."""
        homes: dict[int, int] = {}
        real: list[int] = []
        with RealRouter("smg", WORKERS, options(PrefixHash(values))) as program:
            for number, key in enumerate(keys):
                if key not in homes:
                    homes[key] = program.send(count + number, wide[number])
                    program.finish([count + number])
            for number in range(count):
                program.finish(script.finished_before(number))
                real.append(program.send(number, wide[number]))
        return homes, real

    for _ in range(6):  # the ring hangs on the workers' ports; some share the load too evenly
        homes, real = routed()
        away = sum(homes[key] != worker for key, worker in zip(keys, real, strict=True))
        if away > 0.06 * count:
            break
    assert away > 0.06 * count
    places = sorted((mix32(key), home) for key, home in homes.items())
    ring = HashRing(*(np.array(column) for column in zip(*places, strict=True)))

    def agreeing(order: Sequence[int], **change: float) -> Iterator[bool]:
        """Yield whether each choice is the real one, with this order among equals."""
        router = InOrder(values | change)
        router.order = order
        choices = decide(router, script, WORKERS, ring)
        return (ours == theirs for ours, theirs in zip(choices, real, strict=True))

    order = next(order for order in permutations(range(WORKERS)) if all(agreeing(order)))
    for change in (
        {"load_factor": 1.5},
        {"balance_abs_threshold": 3.0},
        {"balance_abs_threshold": 1.0},
        {"prefix_tokens": BLOCK_SIZE},
    ):
        assert sum(agreeing(order, **change)) < 0.99 * count


def _prompt(number: int, script: Script) -> Prompt:
    """Return what a router sees of a request."""
    request = script.requests[number]
    return Prompt(
        number, 0.0, request.input_tokens, request.key, len(request.path), request.full_blocks
    )
