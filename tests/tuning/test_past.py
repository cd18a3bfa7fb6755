"""No parameter sees what it is judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.trace import Lineage, Prompts
from kvscope.ingest.formats.base import Request
from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import Variant
from kvscope.tuning.split import first_requests
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import TuningResult
from tests import small_traces
from tests.tuning.examples import chats, disturbed, prompts_of, tuned

ALL = tuple(Variant(by_name(one)) for one in ("tlru", "etlru", "threshold-lru", "wa", "ttl"))
REQUESTS, SEEN = 320, 192  # the default 40 % judge


def _as_text(prompts: Prompts) -> dict[str, Any]:
    values = {one.name: getattr(prompts, one.name) for one in fields(Prompts)}
    return {
        name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in values.items()
    }


@settings(deadline=None, max_examples=150)
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


def _chosen(tuning: TuningResult) -> str:
    """Everything that was chosen, and every figure it was chosen by."""
    settings_of = [
        (one.policy.name, one.policy.evicts, sorted(one.policy.values.items()))
        for one in tuning.contenders
    ]
    least = [one and _trial(one.training) for one in (tuning.least_lru, tuning.least_any)]
    explored = [_trial(one) for one in tuning.explored]
    capacity = (tuning.capacity_blocks, tuning.capacity_origin)
    found = sorted((name, one.value, one.origin) for name, one in tuning.estimates.items())
    infinite = _trial(tuning.infinite_training)
    return repr((settings_of, least, explored, capacity, found, infinite))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("told", [True, False], ids=["given", "inferred"])
def test_no_parameter_sees_what_it_is_judged_on(seed: int, told: bool) -> None:
    """Other times, lengths and hashes of the judged requests leave all that is chosen as it is."""
    trace = chats(seed, REQUESTS, told)
    other = disturbed(trace, SEEN, seed)
    lineage: Lineage = "given" if told else "inferred"
    one, two = (tuned(each, 0.1, ALL, lineage=lineage) for each in (trace, other))
    assert one.split.chosen_on_requests == SEEN - one.split.warmup_requests
    assert _chosen(one) == _chosen(two)
    assert one.baseline.outcome != two.baseline.outcome


def test_without_linking_anew_the_judged_requests_would_show() -> None:
    """The disturbance does change who continues whom, and what is found, if ingest may look."""
    found = []
    for trace in (chats(1, REQUESTS, told=False), disturbed(chats(1, REQUESTS, False), SEEN, 1)):
        whole = prompts_of(trace)
        found.append((whole.parent[:SEEN].tolist(), whole.carried_blocks[:SEEN].tolist()))
    assert found[0] != found[1]


def test_what_is_chosen_does_see_the_part_to_choose_on() -> None:
    """The comparison above can fail: another part to choose on gives other figures."""
    trace: Sequence[Request] = chats(1, REQUESTS)
    other = disturbed(trace, SEEN - 60, 1)
    assert _chosen(tuned(trace, 0.1)) != _chosen(tuned(other, 0.1))
