"""Replicas: each a replay of its own, over conversations that stay together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.runs import RunSetting
from kvscope.core.trace import Lineage, Prompts
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.metrics import ServedRequests
from kvscope.replay.sweep import serve_replay
from kvscope.replay.workload import ReplayRequest
from kvscope.tuning.replicas import conversation_draws, split_over, thinned
from kvscope.tuning.split import first_requests
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator
from tests import small_traces
from tests.tuning.examples import ENGINE, SETTING, chats, prompts_of, workload

QUICK = settings(deadline=None, max_examples=60)
TARGET, CAPACITY = Target(0.3), 150
POLICIES: tuple[Policy, ...] = (Lru(), TLru({"xi_tokens": 160}))
COLUMNS = tuple(
    name
    for name in ServedRequests.__struct_fields__
    if name not in {"prompts", "first", "stored_blocks"}
)


def _equal(
    one: ServedRequests, other: ServedRequests, requests: Sequence[int] | slice, rtol: float = 0.0
) -> None:
    """Check that `other` is how `one` serves these requests, times up to `rtol`."""
    for name in COLUMNS:
        whole, part = getattr(one, name), getattr(other, name)
        if whole is None or part is None:
            assert whole is part, name
        else:
            assert whole.dtype == part.dtype, name
            share = rtol if whole.dtype == np.float64 else 0.0
            np.testing.assert_allclose(whole[requests], part, share, err_msg=name)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("setting", [SETTING, ENGINE], ids=["cache", "engine"])
def test_one_replica_is_the_replay_itself(policy: Policy, setting: RunSetting) -> None:
    """The very same result of each request."""
    some = workload(chats(4, 240), 0.4, setting)
    done = serve_replay(some, ReplayRequest(policy, CAPACITY)).served
    evaluator = Evaluator(some, TARGET, replicas=1)
    alone = evaluator.served(policy, CAPACITY)
    assert alone.prompts is some.prompts
    assert alone.first == done.first == 96
    assert (alone.tpot_s is not None) == (setting is ENGINE)
    _equal(alone, done, slice(None))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("replicas", [2, 3, 7])
@pytest.mark.parametrize("told", [True, False], ids=["given", "inferred"])
@pytest.mark.parametrize("setting", [SETTING, ENGINE], ids=["cache", "engine"])
def test_replicas_are_replays_of_their_own(
    policy: Policy, replicas: int, told: bool, setting: RunSetting
) -> None:
    """Each result is that of a replay of the replica's requests alone, ingested as a trace.

    It lies where the request lies in the whole trace.
    """
    trace = chats(4, 240, told)
    some = workload(trace, 0.4, setting)
    evaluator = Evaluator(some, TARGET, replicas=replicas)
    whole = evaluator.served(policy, CAPACITY)
    assert whole.prompts is some.prompts
    assert whole.first == 96
    assert len(whole.ttft_s) == 240
    split = split_over(some, replicas)
    assert sorted(int(at) for each in split for at in each.requests) == list(range(240))
    for replica in split:
        alone = workload([trace[at] for at in replica.requests], setting=setting)
        done = serve_replay(alone, ReplayRequest(policy, CAPACITY)).served
        # a trace of its own begins at 0 s, which changes the last digits of an engine's clock
        _equal(whole, done, replica.requests.tolist(), rtol=1e-9)
        counted = serve_replay(replica.workload, ReplayRequest(policy, CAPACITY)).served
        assert counted.first == np.count_nonzero(replica.requests < 96)


def _alike(prompts: Prompts, values: Sequence[object]) -> bool:
    """Return whether each conversation has one value."""
    pairs = set(zip(prompts.conversation.tolist(), values, strict=True))
    return len(pairs) == len(set(prompts.conversation.tolist()))


@QUICK
@given(data=st.data(), size=small_traces.SIZES, told=st.booleans())
def test_conversations_stay_together_and_where_they_are(
    data: st.DataObject, size: int, told: bool
) -> None:
    """All requests of one have one number, the same for a longer trace.

    Except where later requests change an inferred lineage, and with it what its requests continue.
    """
    trace = data.draw(small_traces.requests(size, most=20, chats=told))
    built = small_traces.built(trace, size)
    whole = small_traces.prompts(built)
    lineage: Lineage = "given" if built.lineage == "given" else "inferred"
    draws = conversation_draws(whole)
    assert ((draws >= 0) & (draws < 1)).all()
    assert _alike(whole, draws.tolist())
    count = data.draw(st.integers(1, len(trace)))
    shorter = first_requests(whole, count, lineage)
    same = shorter.conversation == whole.conversation[:count]
    assert same.all() or lineage == "inferred"
    assert conversation_draws(shorter)[same].tolist() == draws[:count][same].tolist()


def test_conversations_spread_over_replicas() -> None:
    """About as many on each, and another seed is another draw."""
    prompts = prompts_of(chats(1, 2_000))
    first = np.unique(prompts.conversation)
    draws = conversation_draws(prompts)[first]
    counts = np.bincount((draws * 4).astype(int), minlength=4)
    assert counts.sum() == len(first)
    deviation = np.sqrt(len(first) * 0.25 * 0.75)
    assert (abs(counts - len(first) / 4) < 4 * deviation).all()
    again = conversation_draws(prompts, seed=1)[first]
    assert abs(np.corrcoef(draws, again)[0, 1]) < 4 / np.sqrt(len(first))


@pytest.mark.parametrize("kind", ["given", "inferred"])
def test_a_smaller_share_is_part_of_a_larger_one(kind: Literal["given", "inferred"]) -> None:
    """Whole conversations, nested, about that share of them; never none at all."""
    some = workload(chats(5, 480, kind == "given"), 0.5)
    conversations = len(np.unique(some.prompts.conversation))
    arrivals: set[float] = set()
    for share in (0.0, 0.01, 0.1, 0.3, 0.5, 0.8, 1.0):
        part = thinned(some, share)
        chosen = set(part.prompts.arrival_s.tolist())  # no two requests come at one time
        assert chosen
        assert arrivals <= chosen
        arrivals = chosen
        inside = np.isin(some.prompts.arrival_s, list(chosen))
        assert _alike(some.prompts, inside.tolist())
        count = len(np.unique(part.prompts.conversation))
        deviation = np.sqrt(conversations * share * (1 - share))
        assert abs(count - max(share * conversations, 1)) <= 4 * deviation + 1
        counted = np.count_nonzero(inside[240:])
        assert (
            len(inside[inside]) - int(len(inside[inside]) * part.setting.definition.warmup)
            == counted
        )
    assert arrivals == set(some.prompts.arrival_s.tolist())
