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

SIZE, LONGEST, ROUNDS = 2, 9, 6
DEFINITION = HitDefinition("block", weight="block", outputs="ignored")


def shrinking() -> list[Request]:
    """Nine prompts on one path, each a block shorter than the one before; and so six times.

    The longest of a round meets nine owners: 9 requests bring 17 stretches, and room is made for
    one a request and for one path.
    """
    lengths = [*range(LONGEST, 0, -1)] * ROUNDS
    return [
        Request(
            input_tokens=length * SIZE,
            output_tokens=0,
            arrival_s=float(at),
            hash_ids=list(range(length)),
        )
        for at, length in enumerate(lengths)
    ]


def test_nothing_is_lost_where_more_room_is_made() -> None:
    """Segments, previous touches and LRU's distances are those of plain calculations."""
    trace = shrinking()
    made = small_traces.built(trace, SIZE)
    prompts = small_traces.prompts(made)

    moved = last_touch_segments(traffic(prompts, standard()))
    assert len(moved.end) > len(trace) + LONGEST
    owner: dict[int, int] = {}
    for at, request in enumerate(trace):
        taken = slice(moved.starts[at], moved.starts[at + 1])
        givers = np.repeat(moved.previous[taken], moved.end[taken] - moved.start[taken])
        depths = range(len(request.hash_ids or ()))
        assert givers.tolist() == [owner[depth] for depth in depths if depth in owner]
        owner |= dict.fromkeys(depths, at)

    found = made.reuse
    assert len(found.request) > len(trace) + LONGEST
    runs = zip(found.request, found.prev, found.depth, found.blocks, strict=True)
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
