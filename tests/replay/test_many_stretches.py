"""Paths that pass from request to request in many pieces: more than there is room for at first."""

from __future__ import annotations

import numpy as np

from kvscope.core.hits import HitDefinition, standard
from kvscope.ingest.formats.base import Request
from kvscope.replay.curve import lru_curve
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import traffic
from tests import small_traces
from tests.oracles import lineage, lru

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
