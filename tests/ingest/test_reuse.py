"""Who reused whose blocks, and what stays the same however the lines are ordered."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from kvscope.core.hits import HitDefinition
from kvscope.ingest.build import Built
from kvscope.ingest.formats.base import Request
from kvscope.replay.curve import lru_curve
from tests import small_traces
from tests.oracles import lineage


@settings(deadline=None, max_examples=200)
@given(st.data(), small_traces.SIZES, st.booleans())
def test_equals_the_oracle_block_by_block(data: st.DataObject, size: int, chats: bool) -> None:
    """Runs, expanded, are each block's previous toucher; first, last, reuses and ideal agree."""
    trace = data.draw(small_traces.requests(size, most=20, chats=chats))
    made = small_traces.built(trace, size)
    expected = lineage.Reuse(trace, small_traces.parents(made), size)
    found = made.reuse
    runs = zip(*astuple(found.runs), strict=True)
    expanded = [
        ((int(request), int(depth) + step), int(prev))
        for request, prev, depth, blocks in runs
        for step in range(blocks)
    ]
    assert dict(expanded) == expected.previous
    assert len(expanded) == len(expected.previous)
    assert list(found.ideal_blocks) == expected.ideal
    for block in range(1, made.trie.count):
        path = tuple(small_traces.path(made, block))
        assert found.first[block] == expected.first.get(path, -1)
        assert found.last[block] == expected.last.get(path, -1)
        assert found.reuses[block] == expected.reuses[path]


@settings(deadline=None, max_examples=100)
@given(st.data(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(data: st.DataObject, chats: bool, rng: Any) -> None:
    """Shuffled lines with distinct times give the same trace, but for the blocks' numbers."""
    trace = data.draw(small_traces.requests(2, chats=chats))
    for at, request in enumerate(trace):
        request.arrival_s = at / 7
        request.type = data.draw(st.sampled_from(["text", "image"]))
    shuffled = trace.copy()
    rng.shuffle(shuffled)
    assert _analyzed(small_traces.built(shuffled, 2)) == _analyzed(small_traces.built(trace, 2))


def test_ties_keep_the_order_of_lines() -> None:
    """The sort is stable: requests of the same millisecond stay as they were written."""
    times = [2.0, 1.0, 2.0, 1.0, 1.0]
    trace = [
        Request(input_tokens=1, output_tokens=0, chat_id=at, arrival_s=time)
        for at, time in enumerate(times)
    ]
    made = small_traces.built(trace, 16)
    assert list(made.requests["chat_id"]) == [1, 3, 4, 0, 2]
    assert list(made.requests["arrival_s"]) == [0, 0, 0, 1, 1]
    assert made.out_of_order == 2


def _analyzed(made: Built) -> dict[str, Any]:
    """Everything that later rooms read, free of the blocks' numbers and of the types' codes."""
    requests = {name: list(values) for name, values in made.requests.items()}
    curve = lru_curve(small_traces.prompts(made), HitDefinition("default"))
    paths = [tuple(small_traces.path(made, block)) for block in range(1, made.trie.count)]
    blocks = zip(
        paths, made.reuse.first[1:], made.reuse.last[1:], made.reuse.reuses[1:], strict=True
    )
    return requests | {
        "leaf": [small_traces.path(made, leaf) for leaf in requests["leaf"]],
        "carried_leaf": [small_traces.path(made, leaf) for leaf in requests["carried_leaf"]],
        "type": [made.names["type"][code] for code in requests["type"]],
        "lineage": made.lineage,
        "runs": np.stack(astuple(made.reuse.runs)).tolist(),
        "blocks": sorted(blocks),
        "curve": (curve.knots.tolist(), curve.hits.tolist(), curve.total),
    }
