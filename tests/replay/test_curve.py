"""LRU's curve: equal to a plain replay at every capacity, and to kvcache-simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvcache_sim.plan import build_execution_plan
from kvcache_sim.policies import simulate_policy
from kvcache_sim.trace import TraceData, block_tokens
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition, standard
from kvscope.ingest.formats.base import Request
from kvscope.replay.curve import HitCurve, lru_curve
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.stack_distances import flat_distances, lru_distances
from kvscope.replay.traffic import traffic
from tests import small_traces
from tests.oracles import lineage, lru

DEFINITIONS = st.builds(
    HitDefinition,
    name=st.just("drawn"),
    weight=st.sampled_from(["token", "block", "request"]),
    warmup=st.sampled_from([0.0, 0.3, 0.5]),
    partial=st.booleans(),
    last_token_rule=st.booleans(),
    outputs=st.sampled_from(["carried", "ignored"]),
    flat=st.booleans(),
).filter(lambda one: not (one.partial and one.outputs == "carried"))

KVCACHE_SIMULATOR = HitDefinition(
    "kvcache-simulator", warmup=0.5, partial=True, last_token_rule=False, outputs="ignored"
)


def hits_at(curve: HitCurve, capacity: int) -> int:
    """Return the curve's hits at one capacity, which are a whole number."""
    exact = float(np.interp(capacity, curve.knots, curve.hits))
    assert exact == pytest.approx(round(exact), abs=1e-9)
    return round(exact)


@settings(deadline=None, max_examples=150)
@given(st.data(), small_traces.SIZES, st.booleans(), DEFINITIONS)
def test_equals_a_replay_at_every_capacity(
    data: st.DataObject, size: int, chats: bool, definition: HitDefinition
) -> None:
    """From no capacity to more than all blocks, the curve is what a replay of each one counts."""
    trace = data.draw(small_traces.requests(size, chats=chats))
    made = small_traces.built(trace, size)
    parents = small_traces.parents(made)
    curve = lru_curve(small_traces.prompts(made), definition)
    assert curve.total == lru.total(trace, size, definition)
    previous = 0
    for capacity in range(lru.ever_kept(trace, parents, size, definition) + 2):
        hits = lru.hits(trace, parents, size, capacity, definition)
        assert hits_at(curve, capacity) == hits
        assert hits >= previous
        previous = hits
    assert curve.ideal == (previous / curve.total if curve.total else 0.0)
    assert small_traces.ideal_rate(small_traces.prompts(made), definition) == curve.ideal


@settings(deadline=None, max_examples=50)
@given(st.data(), DEFINITIONS)
def test_live_is_the_capacity_that_never_evicts(
    data: st.DataObject, definition: HitDefinition
) -> None:
    """`live` counts the distinct blocks that were ever cached, anonymous outputs included."""
    trace = data.draw(small_traces.requests(2))
    made = small_traces.built(trace, 2)
    distances = flat_distances if definition.flat else lru_distances
    found = distances(small_traces.prompts(made), definition)
    assert found.live == lru.ever_kept(trace, small_traces.parents(made), 2, definition)


@settings(deadline=None, max_examples=50)
@given(st.data(), DEFINITIONS, st.integers(0, 120))
def test_capacity_for_is_the_least(
    data: st.DataObject, definition: HitDefinition, percent: int
) -> None:
    """No smaller cache reaches the rate; beyond the ideal rate, the ideal one is reached."""
    trace = data.draw(small_traces.requests(2))
    curve = lru_curve(small_traces.prompts(small_traces.built(trace, 2)), definition)
    least = curve.capacity_for(percent / 100)
    reached = min(percent * curve.total / 100, float(curve.hits[-1])) - 1e-6
    assert hits_at(curve, least) >= reached
    assert least == 0 or hits_at(curve, least - 1) < reached
    for capacity in range(int(curve.knots[-1]) + 1):
        rate = float(curve.rate(capacity))
        assert float(curve.rate(curve.capacity_for(rate))) == pytest.approx(rate)
        assert curve.capacity_for(rate) <= capacity


@settings(deadline=None, max_examples=30)
@given(st.data(), DEFINITIONS)
def test_one_set_of_distances_serves_every_weight_and_window(
    data: st.DataObject, definition: HitDefinition
) -> None:
    """Distances made once give the same curve as distances made for the definition."""
    prompts = small_traces.prompts(small_traces.built(data.draw(small_traces.requests(2)), 2))
    other = replace(definition, weight="block", warmup=0.0)
    shared = (flat_distances if definition.flat else lru_distances)(prompts, other)
    alone, served = lru_curve(prompts, definition), lru_curve(prompts, definition, shared)
    assert np.array_equal(alone.knots, served.knots)
    assert np.array_equal(alone.hits, served.hits)


@settings(deadline=None, max_examples=100)
@given(st.data(), small_traces.SIZES)
def test_equals_kvcache_simulator(data: st.DataObject, size: int) -> None:
    """Under its definition, kvcache-simulator's LRU hits the same tokens of the same total.

    From the capacity on that holds the longest prompt: in a smaller cache the peer drops the head
    of the prompt that it is just inserting.
    """
    trace = data.draw(small_traces.requests(size, most=20, whole=True))
    curve = lru_curve(small_traces.prompts(small_traces.built(trace, size)), KVCACHE_SIMULATOR)
    plan = build_execution_plan(_peer_trace(trace, size), KVCACHE_SIMULATOR.warmup)
    assert curve.total == plan.total_measured_tokens
    longest = max(len(request.hash_ids or ()) for request in trace)
    for capacity in range(longest, plan.unique_blocks + 1):
        peer = simulate_policy(plan, "lru", capacity)
        if peer.measurementMode != "underfilled_at_window":
            assert hits_at(curve, capacity) == peer.hitTokens


def test_a_trace_without_hashes_has_no_hits() -> None:
    """Lengths alone give an empty curve, not an error."""
    trace = [Request(input_tokens=40, output_tokens=3) for _ in range(3)]
    curve = lru_curve(small_traces.prompts(small_traces.built(trace, 16)), HitDefinition("default"))
    assert curve.ideal == 0.0
    assert curve.total == 120
    assert curve.capacity_for(0.5) == 0


def test_partial_blocks_cannot_be_kept_beside_outputs() -> None:
    """The contradiction is refused with its remedy."""
    prompts = small_traces.prompts(
        small_traces.built([Request(input_tokens=1, output_tokens=1)], 1)
    )
    with pytest.raises(UsageError, match="outputs 'ignored'"):
        lru_curve(prompts, HitDefinition("mixed", partial=True, outputs="carried"))


def _peer_trace(trace: list[Request], size: int) -> TraceData:
    ids: list[int] = []
    tokens: list[int] = []
    starts = [0]
    for request in trace:
        path = [int(one) for one in request.hash_ids or ()]
        ids += path
        tokens += [
            block_tokens(request.input_tokens, size, depth, len(path)) for depth in range(len(path))
        ]
        starts.append(len(ids))
    return TraceData(
        ids=ids,
        tokens=tokens,
        request_starts=starts,
        block_size=size,
        request_count=len(trace),
        unique_raw_blocks=len(set(ids)),
        total_input_tokens=sum(tokens),
        average_input_tokens=sum(tokens) / len(trace),
        parse_errors=0,
        skipped_records=0,
    )


SIZE, LONGEST, ROUNDS = 2, 6, 3
DEFINITION = HitDefinition("block", weight="block", outputs="ignored")


def far_apart() -> list[Request]:
    """Return the paths of a binary tree, each far from the one before; and so three times.

    In the order of their reversed bits, almost every path meets an owner at each depth: room is
    made for two stretches a request and for one path.
    """
    paths = range(1 << LONGEST)
    in_order = sorted(paths, key=lambda path: f"{path:0{LONGEST}b}"[::-1]) * ROUNDS
    return [
        Request(
            input_tokens=LONGEST * SIZE,
            output_tokens=0,
            arrival_s=float(at),
            hash_ids=[path >> LONGEST - 1 - depth for depth in range(LONGEST)],
        )
        for at, path in enumerate(in_order)
    ]


def test_nothing_is_lost_where_more_room_is_made() -> None:
    """Segments, previous touches and LRU's distances are those of plain calculations."""
    trace = far_apart()
    made = small_traces.built(trace, SIZE)
    prompts = small_traces.prompts(made)

    moved = last_touch_segments(traffic(prompts, standard()))
    assert len(moved.end) > len(trace) + LONGEST
    owner: dict[tuple[int, int], int] = {}
    for at, request in enumerate(trace):
        taken = slice(moved.starts[at], moved.starts[at + 1])
        givers = np.repeat(moved.previous[taken], moved.end[taken] - moved.start[taken])
        blocks = list(enumerate(request.hash_ids or ()))  # an id has one place in the tree
        assert givers.tolist() == [owner[block] for block in blocks if block in owner]
        owner |= dict.fromkeys(blocks, at)

    found = made.reuse.runs
    assert len(found.request) > 2 * len(trace) + LONGEST
    runs = zip(found.request, found.previous, found.depth, found.blocks, strict=True)
    expanded = {
        (int(request), int(depth) + step): int(prev)
        for request, prev, depth, blocks in runs
        for step in range(blocks)
    }
    assert expanded == lineage.Reuse(trace, small_traces.parents(made), SIZE).previous

    curve = lru_curve(prompts, DEFINITION)
    for capacity in range(LONGEST + 2):
        hits = lru.hits(trace, small_traces.parents(made), SIZE, capacity, DEFINITION)
        assert float(np.interp(capacity, curve.knots, curve.hits)) == hits
