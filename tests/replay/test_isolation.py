"""Traces derived from a trace: tenants kept apart, and selected requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError
from kvscope.core.hits import standard
from kvscope.ingest.formats.base import Request
from kvscope.replay import derived_traces as isolation
from kvscope.replay.derived_traces import isolate, select
from tests import small_traces


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(["user", "conversation"]), st.sampled_from([1, 3, 1 << 14]))
def test_blocks_are_paths_of_one_tenant(
    data: st.DataObject, by: isolation.Tenant, at_a_time: int
) -> None:
    """One block for each (tenant, path) and no other; every path as long as before."""
    trace = data.draw(small_traces.requests(2, chats=True))
    for request in trace:
        request.user_id = data.draw(st.sampled_from(["ann", "bob", None]))
    trace[0].user_id = "ann"
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "_AT_A_TIME", at_a_time)
        apart = isolate(prompts, by)
    tenant = prompts.user if by == "user" else prompts.conversation
    identity: dict[object, int] = {}
    for leaf in ("leaf", "carried_leaf"):
        for at in range(len(trace)):
            old = small_traces.blocks_to(prompts, getattr(prompts, leaf)[at])
            new = small_traces.blocks_to(apart, getattr(apart, leaf)[at])
            assert len(new) == len(old)
            for depth, block in enumerate(new):
                name = (tenant[at], *old[: depth + 1])
                assert identity.setdefault(name, block) == block
    assert len(set(identity.values())) == len(identity) == len(apart.block_parent) - 1


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_nobody_hits_what_another_wrote(data: st.DataObject) -> None:
    """An infinite cache hits as much as one infinite cache for each user."""
    trace = data.draw(small_traces.requests(2))
    for request in trace:
        request.user_id = data.draw(st.sampled_from(["ann", "bob"]))
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    definition = standard(outputs="ignored")
    hits = 0.0
    for user in ("ann", "bob"):
        own = [request for request in trace if request.user_id == user]
        if own:
            tokens = sum(request.input_tokens for request in own)
            alone = small_traces.prompts(small_traces.built(own, 2))
            hits += tokens * small_traces.ideal_rate(alone, definition)
    isolated_rate = small_traces.ideal_rate(isolate(prompts, "user"), definition)
    total = sum(request.input_tokens for request in trace)
    assert isolated_rate * total == pytest.approx(hits)
    assert isolated_rate <= small_traces.ideal_rate(prompts, definition)


def test_a_shared_prompt_costs_its_sharing() -> None:
    """Three users with one prompt of two blocks: two of them hit it, unless they are apart."""
    trace = [
        Request(arrival_s=at, input_tokens=5, output_tokens=0, hash_ids=[1, 2], user_id=user)
        for at, user in enumerate(["ann", "bob", "cat"])
    ]
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    assert small_traces.ideal_rate(isolate(prompts, "user"), standard()) == 0.0
    assert small_traces.ideal_rate(prompts, standard()) == pytest.approx(8 / 15)


def test_unknown_users_are_an_error() -> None:
    """Without users there is nobody to keep apart; conversations are there always."""
    trace = [Request(input_tokens=4, output_tokens=0, hash_ids=[1, 2])]
    prompts = small_traces.prompts(small_traces.built(trace, 2))
    with pytest.raises(InputError, match=r"--isolate user: .*no users; .*--isolate conversation"):
        isolate(prompts, "user")
    assert np.array_equal(isolate(prompts, "conversation").blocks, prompts.blocks)


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
                small_traces.blocks_to(prompts, getattr(prompts, leaf)[old]),
                small_traces.blocks_to(some, getattr(some, leaf)[new]),
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
