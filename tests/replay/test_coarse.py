"""Larger blocks: the very trace that a reader would have made of larger blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.ingest.formats.base import Request
from kvscope.replay.curve import lru_curve
from kvscope.replay.derived_traces import coarsened
from tests import small_traces

NO_OUTPUTS = standard(outputs="ignored")


@settings(deadline=None, max_examples=80)
@given(st.data(), st.integers(1, 4))
def test_is_the_trace_of_larger_blocks(data: st.DataObject, factor: int) -> None:
    """Hash ids of k blocks taken as one id each, read anew: the same curve to the last knot."""
    trace = data.draw(small_traces.requests(2))
    large: dict[object, int] = {}
    renamed = [
        Request(
            arrival_s=request.arrival_s,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            hash_ids=[
                large.setdefault(tuple((request.hash_ids or [])[: end + 1]), len(large))
                for end in range(factor - 1, _full(request), factor)
            ],
        )
        for request in trace
    ]
    found = coarsened(small_traces.prompts(small_traces.built(trace, 2)), factor)
    expected = small_traces.prompts(small_traces.built(renamed, 2 * factor))
    for name in ("block_size", "blocks", "full_blocks", "cached_blocks"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    one, other = lru_curve(found, NO_OUTPUTS), lru_curve(expected, NO_OUTPUTS)
    assert np.array_equal(one.knots, other.knots)
    assert np.array_equal(one.hits, other.hits)


@settings(deadline=None, max_examples=50)
@given(st.data(), st.integers(1, 4))
def test_paths_end_where_they_should(data: st.DataObject, factor: int) -> None:
    """A leaf is as deep as its count of blocks says, a carried one as well; all blocks used."""
    trace = data.draw(small_traces.requests(1, chats=True, whole=True))
    prompts = small_traces.prompts(small_traces.built(trace, 1))
    found = coarsened(prompts, factor)
    for leaf, length in (("leaf", "blocks"), ("carried_leaf", "carried_blocks")):
        for block, blocks in zip(getattr(found, leaf), getattr(found, length), strict=True):
            depth, at = 0, int(block)
            while at:
                depth, at = depth + 1, int(found.block_parent[at])
            assert depth == blocks
    assert (found.block_parent[1:] < np.arange(1, len(found.block_parent))).all()


def test_a_factor_below_one_is_refused() -> None:
    """Blocks cannot be cut up: nobody knows what was in them."""
    trace = [Request(input_tokens=4, output_tokens=0, hash_ids=[1, 2])]
    with pytest.raises(UsageError, match="0 blocks as one"):
        coarsened(small_traces.prompts(small_traces.built(trace, 2)), 0)


def _full(request: Request) -> int:
    return min(len(request.hash_ids or []), request.input_tokens // 2)
