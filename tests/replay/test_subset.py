"""Some requests as a trace of their own: the same as if only they had been there."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.trace import Prompts
from kvscope.replay.derived_traces import select
from tests import small_traces


def path(prompts: Prompts, leaf: int) -> list[int]:
    """Return the blocks from the head to `leaf`."""
    found = []
    while leaf:
        found.append(int(leaf))
        leaf = prompts.block_parent[leaf]
    return found[::-1]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_paths_conversations_and_columns_stay(data: st.DataObject) -> None:
    """One new block for each old one that is needed, parents where they were selected too."""
    trace = data.draw(small_traces.requests(2, chats=True))
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(trace) - 1), min_size=1)))
    some = select(prompts, np.array(chosen))
    new_of: dict[int, int] = {}
    for new, old in enumerate(chosen):
        for leaf in ("leaf", "carried_leaf"):
            before, after = (
                path(prompts, getattr(prompts, leaf)[old]),
                path(some, getattr(some, leaf)[new]),
            )
            assert len(before) == len(after)
            for block, renamed in zip(before, after, strict=True):
                assert new_of.setdefault(block, renamed) == renamed
        for name in ("arrival_s", "input_tokens", "category", "blocks", "cached_blocks"):
            assert getattr(some, name)[new] == getattr(prompts, name)[old]
        parent = int(prompts.parent[old])
        assert some.parent[new] == (chosen.index(parent) if parent in chosen else -1)
        together = [one for one in chosen if prompts.conversation[one] == prompts.conversation[old]]
        assert some.conversation[new] == chosen.index(together[0])
    assert sorted(new_of.values()) == list(range(1, len(some.block_parent)))
    assert (some.block_parent[1:] < np.arange(1, len(some.block_parent))).all()
