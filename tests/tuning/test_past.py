"""No parameter and no choice sees a later window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from kvscope.core.trace import Lineage, Prompts
from kvscope.ingest.formats.base import Request
from kvscope.policies.base import Policy
from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import Variant
from kvscope.tuning.split import first_requests
from kvscope.tuning.target import Target, View
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import TuningResult
from tests import small_traces
from tests.tuning.examples import chats, disturbed, in_turn, prompts_of, tuned

ALL = tuple(Variant(by_name(one)) for one in ("tlru", "etlru", "threshold-lru", "wa", "ttl"))
MOST = tuple(Variant(by_name(one)) for one in ("tlru", "threshold-lru", "gittins"))
REQUESTS, TRAINED, CHOSEN = 480, 240, 360  # 20 % and 30 %, then 25 % each
SEEDS_AND_LINEAGE = [(1, True), (2, False), (3, True)]


def _as_text(prompts: Prompts) -> dict[str, Any]:
    values = asdict(prompts)
    return {
        name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in values.items()
    }


@settings(deadline=None, max_examples=100)
@given(data=st.data(), size=small_traces.SIZES, told=st.booleans())
def test_the_first_requests_are_what_ingest_would_have_made_of_them(
    data: st.DataObject, size: int, told: bool
) -> None:
    """Cut from the whole or ingested alone: the same lineage, carried outputs and categories."""
    trace = data.draw(small_traces.requests(size, most=20, chats=told))
    seen = data.draw(st.integers(1, len(trace)))
    whole, alone = small_traces.built(trace, size), small_traces.built(trace[:seen], size)
    lineage: Lineage = "given" if whole.lineage == "given" else "inferred"
    cut = first_requests(small_traces.prompts(whole), seen, lineage)
    if told and (alone.lineage, whole.lineage) != ("given", "given"):
        return  # no turn, or no hashed request, yet: the alone one is not told what it is
    assert _as_text(cut) == _as_text(small_traces.prompts(alone))


def _trial(one: Trial | None) -> object:
    policy = one and one.policy
    return (
        one
        and policy
        and (
            *(policy.name, policy.evicts, sorted(policy.values.items()), one.capacity_blocks),
            *(one.outcome, one.target_s, one.violation_share, one.tel_s, one.served_per_s),
        )
    )


def _policy(policy: Policy) -> object:
    return policy.name, policy.evicts, sorted(policy.values.items())


def _trained(tuning: TuningResult) -> str:
    """Return everything that training found, and every figure it was found by."""
    least = [one and _trial(one.training) for one in (tuning.least_lru, tuning.least_any)]
    explored = [_trial(one) for one in tuning.explored]
    capacity = (tuning.capacity_blocks, tuning.capacity_origin)
    estimates = sorted((name, one.value, one.origin) for name, one in tuning.estimates.items())
    return repr((least, explored, capacity, estimates))


def _chosen(tuning: TuningResult) -> str:
    """Return all contenders with their figures and intervals on the validation window."""
    judged = [tuning.lru, *tuning.contenders]
    trials = [tuning.infinite, *(each.validation for each in judged)]
    told = [
        (
            *(_trial(each), each.gains, each.attainment_gain, each.harms, each.meeting_share),
            *(each.keeps_up, each.likely, each.ttft_s.tolist(), each.categories),
        )
        for each in trials
    ]
    policies = [_policy(each.held_out.policy) for each in judged]
    load = tuning.load
    return repr((told, policies, replace(load, carried=None), _trial(load.carried)))


@pytest.mark.parametrize(("seed", "told"), SEEDS_AND_LINEAGE)
def test_training_sees_neither_validation_nor_held_out_window(seed: int, told: bool) -> None:
    """Other times, lengths and hashes of these requests leave all that is searched as it is."""
    trace = chats(seed, REQUESTS, told)
    other = disturbed(trace, TRAINED, seed)
    lineage: Lineage = "given" if told else "inferred"
    one, two = (tuned(each, 0.1, ALL, lineage=lineage) for each in (trace, other))
    assert one.split.warmup_requests + one.split.training_requests == TRAINED
    assert _trained(one) == _trained(two)
    assert one.lru.validation.outcome != two.lru.validation.outcome
    assert one.baseline.outcome != two.baseline.outcome


@pytest.mark.parametrize("view", ["unloaded", "queued"])
@pytest.mark.parametrize(("seed", "told"), SEEDS_AND_LINEAGE)
def test_no_choice_sees_what_it_is_judged_on(seed: int, told: bool, view: View) -> None:
    """Other times, lengths and hashes of held-out requests leave the contenders as they are."""
    trace = chats(seed, REQUESTS, told)
    other = disturbed(trace, CHOSEN, seed)
    lineage: Lineage = "given" if told else "inferred"
    one, two = (
        tuned(each, 0.1, MOST, lineage=lineage, target=Target(0.1, view=view))
        for each in (trace, other)
    )
    assert one.split.training_requests + one.split.warmup_requests == TRAINED
    assert one.split.validation_requests == CHOSEN - TRAINED
    assert _trained(one) == _trained(two)
    assert _chosen(one) == _chosen(two)
    assert one.baseline.outcome != two.baseline.outcome


def test_held_out_requests_only_reject() -> None:
    """With a choice to speak of: other held-out requests leave its setting as it is."""
    trace = in_turn()
    one, two = (
        tuned(each, 0.2, capacity_blocks=350) for each in (trace, disturbed(trace, CHOSEN, 1))
    )
    assert one.verdict == "switch"
    assert one.choice is not None
    assert _chosen(one) == _chosen(two)
    assert one.choice.held_out.outcome != two.contenders[0].held_out.outcome


def test_without_linking_anew_later_requests_would_show() -> None:
    """The disturbance does change who continues whom, and what is found, if ingest may look."""
    found = []
    trace = chats(1, REQUESTS, told=False)
    for each in (trace, disturbed(trace, TRAINED, 1)):
        whole = prompts_of(each)
        found.append((whole.parent[:TRAINED].tolist(), whole.carried_blocks[:TRAINED].tolist()))
    assert found[0] != found[1]


def test_what_is_searched_and_chosen_does_see_its_own_window() -> None:
    """The comparisons above can fail: another training or validation window, other figures."""
    trace: Sequence[Request] = chats(1, REQUESTS)
    whole = tuned(trace, 0.1)
    assert _trained(whole) != _trained(tuned(disturbed(trace, TRAINED - 60, 1), 0.1))
    assert _chosen(whole) != _chosen(tuned(disturbed(trace, CHOSEN - 60, 1), 0.1))
