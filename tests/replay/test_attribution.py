"""Why each token missed: token by token against plain Python, and causes injected on purpose."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.hits import standard
from kvscope.core.trace import Measurements, Prompts
from kvscope.ingest.formats.base import Request
from kvscope.replay.attribution import (
    Attribution,
    CacheLookups,
    attribute,
    by_worker,
    cache_lookups,
    lru_cache_lookups,
)
from kvscope.replay.observed_hits import hit_gaps
from kvscope.replay.path_facts import TracePaths
from tests import small_traces
from tests.small_traces import blocks_to
from tests.vllm_sim import examples


def explained(
    prompts: Prompts, capacity: int | None, history: np.ndarray | None = None
) -> Attribution:
    """Return the attribution under LRU with outputs carried."""
    cached = lru_cache_lookups(prompts, standard(), capacity)
    return attribute(prompts, standard(), cached, repeated_tokens=history)


def causes_by_token(
    prompts: Prompts, hit_blocks: np.ndarray, history: np.ndarray
) -> list[Counter[str]]:
    """Return how many tokens of each request have which cause, looking at one token at a time."""
    size, written, causes = prompts.block_size, set[int](), []
    for request, hits in enumerate(hit_blocks):
        inputs, full = int(prompts.input_tokens[request]), int(prompts.full_blocks[request])
        own = blocks_to(prompts, prompts.carried_leaf[request])
        parent = int(prompts.parent[request])
        before = blocks_to(prompts, prompts.carried_leaf[parent]) if parent >= 0 else []
        common = next(
            (at for at, pair in enumerate(zip(own, before, strict=False)) if pair[0] != pair[1]),
            min(len(own), len(before)),
        )
        look = min(full, (inputs - 1) // size)
        any_written = bool(own) and look > 0 and own[0] in written
        seen = sum(1 for block in own[:look] if block in written)
        is_broken = max(seen, common) * size < history[request]
        counted: Counter[str] = Counter()
        for token in range(inputs):
            block = token // size
            if block < hits:
                cause = "hit"
            elif block >= full:
                cause = (
                    "no-hash" if int(prompts.blocks[request]) < inputs // size else "below-block"
                )
            elif (block + 1) * size >= inputs:
                cause = "last-token"
            elif own[block] in written:
                cause = "evicted"
            elif parent >= 0 and common <= block < int(prompts.cached_blocks[parent]):
                in_prompt = common < int(prompts.full_blocks[parent])
                cause = "diverged" if in_prompt else "output-changed"
                cause = "template" if is_broken else cause
            else:
                cause = "growth" if any_written else "cold"
            counted[cause] += 1
        causes.append(counted)
        written.update(own)
    return causes


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_each_token_has_the_cause_that_plain_python_finds(data: st.DataObject) -> None:
    """On random tries, with and without given conversations, at any capacity."""
    size = data.draw(small_traces.SIZES)
    chats = data.draw(st.booleans())
    prompts = small_traces.prompts(
        small_traces.built(data.draw(small_traces.requests(size, chats=chats)), size)
    )
    capacity = data.draw(st.integers(0, 12))
    tokens = st.sampled_from([0, 0, size, 2 * size, 5 * size])
    history = np.array([data.draw(tokens) for _ in prompts.leaf])
    found = explained(prompts, capacity, history)
    expected = causes_by_token(prompts, found.lookups.hit, history)
    for request, counted in enumerate(expected):
        misses = {cause: int(of[request]) for cause, of in found.tokens.items() if of[request]}
        assert misses == {cause: n for cause, n in counted.items() if cause != "hit"}
    assert (sum(found.tokens.values()) == found.missed_tokens).all()
    (analyzed,) = TracePaths(prompts).follow([standard()]).misses(standard(), [capacity])
    assert found.missed_tokens.sum() == analyzed.input_tokens - analyzed.hit_tokens
    assert found.tokens["evicted"].sum() == analyzed.evicted_tokens


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_what_was_computed_elsewhere_is_found_block_by_block(data: st.DataObject) -> None:
    """By workers, salts, adapters and models at random, at any capacity; all adds up."""
    size = data.draw(small_traces.SIZES)
    trace = data.draw(small_traces.requests(size, chats=data.draw(st.booleans())))
    few = st.sampled_from([None, "a", "b"])
    for request in trace:
        request.cache_salt, request.adapter, request.model = (data.draw(few) for _ in range(3))
    made = small_traces.built(trace, size)
    prompts, tenants = small_traces.prompts(made), small_traces.tenants(made)
    worker = np.array(
        data.draw(st.lists(st.integers(-1, 1), min_size=len(trace), max_size=len(trace)))
    )
    capacity = data.draw(st.sampled_from([None, None, 3]))

    def served(part: Prompts) -> CacheLookups:
        return lru_cache_lookups(part, standard(), capacity)

    cached = by_worker(prompts, worker.astype(np.int32), served)
    found = attribute(prompts, standard(), cached, several=True, tenants=tenants)
    assert (sum(found.tokens.values()) == found.missed_tokens).all()
    names = ("evicted", "routed", "salt", "lora", "model")
    known: list[set[object]] = [set() for _ in names]
    for request in range(len(trace)):
        model, adapter, salt = (
            int(of[request]) for of in (tenants.model, tenants.adapter, tenants.salt)
        )
        groups = (
            (worker[request], model, adapter, salt),
            (model, adapter, salt),
            (model, adapter),
            (model,),
            (),
        )
        ids = [
            int(tenants.hash_id[block])
            for block in blocks_to(prompts, prompts.carried_leaf[request])
        ]
        inputs = int(prompts.input_tokens[request])
        look = min(int(prompts.full_blocks[request]), (inputs - 1) // size)
        expected: Counter[str] = Counter()
        for block in range(int(cached.lookups.hit[request]), min(look, len(ids))):
            head = tuple(ids[: block + 1])
            for name, group, heads in zip(names, groups, known, strict=True):
                if (group, head) in heads:
                    expected[name] += size
                    break
        assert expected == {
            name: int(found.tokens[name][request]) for name in names if found.tokens[name][request]
        }
        for group, heads in zip(groups, known, strict=True):
            heads.update((group, tuple(ids[: block + 1])) for block in range(len(ids)))


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_the_needed_capacity_keeps_all_that_was_evicted(data: st.DataObject) -> None:
    """And one block less does not."""
    size = data.draw(small_traces.SIZES)
    prompts = small_traces.prompts(small_traces.built(data.draw(small_traces.requests(size)), size))
    found = explained(prompts, data.draw(st.integers(0, 6)))
    for request in np.flatnonzero(found.tokens["evicted"]):
        needed = int(found.lookups.needed_blocks[request])
        assert not explained(prompts, needed).tokens["evicted"][request]
        assert explained(prompts, needed - 1).tokens["evicted"][request]


def chat(turns: list[tuple[list[int], int]]) -> list[Request]:
    """Return turns of (hash ids, output tokens), blocks of 4 tokens, one a second."""
    return [
        Request(
            input_tokens=4 * len(ids) + 1,
            output_tokens=outputs,
            arrival_s=float(number),
            hash_ids=[*ids, 10**6 + number],
            chat_id=number,
            parent_chat_id=number - 1 if number else None,
        )
        for number, (ids, outputs) in enumerate(turns)
    ]


def of_second(turns: list[tuple[list[int], int]], capacity: int | None = None) -> dict[str, int]:
    """Return the causes of the last of these turns."""
    prompts = small_traces.prompts(small_traces.built(chat(turns), 4))
    return {
        cause: int(of[-1]) for cause, of in explained(prompts, capacity).tokens.items() if of[-1]
    }


def test_injected_causes_are_recognized() -> None:
    """A changed head, a dropped output, an evicted history, and a prompt below a block."""
    first = ([1, 2, 3], 0)
    assert of_second([first, ([1, 2, 3, 4], 0)]) == {"growth": 4, "below-block": 1}
    assert of_second([first, ([1, 9, 3, 4], 0)]) == {"diverged": 8, "growth": 4, "below-block": 1}
    assert of_second([first, ([8, 9, 3], 0)]) == {"diverged": 12, "below-block": 1}
    # 16 output tokens stood behind the prompt of 13; the next turn sends 4 tokens instead.
    assert of_second([([1, 2, 3], 16), ([1, 2, 3, 4], 0)]) == {
        "output-changed": 4,
        "below-block": 1,
    }
    assert of_second([first, ([1, 2, 3, 4], 0)], capacity=1) == {
        "evicted": 8,
        "growth": 4,
        "below-block": 1,
    }
    assert of_second([first, ([], 0)]) == {"below-block": 1}


def test_an_evicted_block_names_its_last_use_and_what_was_written_since() -> None:
    """Request 0 leaves 3 blocks, request 1 writes 4 others, request 2 asks for the first ones."""
    turns = [([1, 2, 3], 0), ([4, 5, 6, 7], 0), ([1, 2, 3], 0)]
    prompts = small_traces.prompts(small_traces.built(chat(turns), 4))
    found = explained(prompts, 4).lookups
    assert (int(found.last_use[2]), int(found.shared_with[2])) == (0, 0)
    assert (int(found.written_blocks[2]), int(found.needed_blocks[2])) == (4, 7)


def test_hits_of_another_policy_are_explained_by_the_same_history() -> None:
    """Without hits all that was written before counts as evicted."""
    turns = [([1, 2, 3], 0), ([1, 2, 3], 0)]
    prompts = small_traces.prompts(small_traces.built(chat(turns), 4))
    none = np.zeros(2, dtype=np.int32)
    found = attribute(prompts, standard(), cache_lookups(prompts, standard(), none))
    assert int(found.tokens["evicted"][1]) == 12
    rejected = attribute(
        prompts,
        standard(),
        cache_lookups(
            prompts,
            standard(),
            none,
            rejected=np.array([True, False]),
            written_blocks=none,
        ),
    )
    assert int(rejected.tokens["rejected"][0]) == 13
    # Nothing was written by a request that was rejected.
    assert int(rejected.tokens["evicted"][1]) == int(rejected.tokens["in-flight"][1]) == 0


def causes_on_engine(*requests: Request, blocks: int) -> dict[str, int]:
    """Return the causes of the last of these requests on a simulated engine."""
    prompts = examples.told(*requests)
    machine = examples.run(examples.engine(prompts, blocks)).requests
    cached = cache_lookups(
        prompts,
        standard(),
        np.maximum(machine.hits, 0).astype(np.int32),
        rejected=machine.oversized > 0,
        written_blocks=machine.written.astype(np.int32),
    )
    tokens = attribute(prompts, standard(), cached).tokens
    return {cause: int(of[-1]) for cause, of in tokens.items() if of[-1]}


def test_an_engine_evicts_only_what_it_computed() -> None:
    """A rejected prompt was never computed, and an output not before the engine generates it."""
    asks = examples.asks
    rejected = asks("abcdef", 24), asks("abcd", 17, at=9)
    assert causes_on_engine(*rejected, blocks=5) == {"cold": 16, "below-block": 1}
    # Every step takes a second: of the output of 9 tokens two blocks are missing at 3 s.
    running = asks("ab", 8, outputs=9), asks("abcd", 17, at=3)
    assert causes_on_engine(*running, blocks=20) == {"in-flight": 8, "below-block": 1}
    later = asks("ab", 8, outputs=9), asks("xyz", 12, at=30), asks("abcd", 17, at=60)
    assert causes_on_engine(*later, blocks=5) == {"evicted": 8, "below-block": 1}


def test_observed_hits_differ_from_the_prediction_for_five_reasons() -> None:
    """Hit before the trace began, predicted but missed, as predicted; one request is unknown."""
    turns = [([1, 2, 3], 0), ([1, 2, 3], 0), ([1, 2, 3], 0), ([1, 2, 3], 0)]
    prompts = small_traces.prompts(small_traces.built(chat(turns), 4))
    cached = np.array([8, 4, 12, -1])

    def gaps(capacity: int | None) -> dict[str, list[int]]:
        of = hit_gaps(prompts, standard(), explained(prompts, capacity), cached).tokens
        return {cause: tokens.tolist() for cause, tokens in of.items() if tokens.any()}

    assert gaps(None) == {"evicted": [0, 8, 0, 0], "cached-before": [8, 0, 0, 0]}
    assert gaps(1) == {"kept": [0, 0, 8, 0], "cached-before": [8, 0, 0, 0]}
    none = np.full(4, np.nan)
    slow = np.array([5.0, 0.1, 0.1, 0.1])  # the first answers after the second has arrived
    worker = np.array([0, 0, 0, 0], dtype=np.int32)
    measured = Measurements(
        worker, slow, none, none, cached.astype(np.int32), none, worker - worker - 1, ("a", "b")
    )
    prompts = replace(prompts, measurements=measured)
    assert gaps(None)["in-flight"] == [0, 8, 0, 0]
    elsewhere = np.array([0, 1, 1, 1], dtype=np.int32)
    prompts = replace(prompts, measurements=replace(measured, worker=elsewhere))
    assert gaps(None)["routed"] == [0, 8, 0, 0]
