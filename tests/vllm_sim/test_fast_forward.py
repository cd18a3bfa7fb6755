"""Decode steps taken in one go equal the same steps one by one, to the last bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.deployment.speculative import Drafter
from kvscope.ingest.formats.base import Request
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.vllm_sim import fast_forward, scheduler
from kvscope.vllm_sim.settings import StepCost
from kvscope.vllm_sim.state import Machine
from tests.small_traces import SIZES, built, prompts, requests
from tests.vllm_sim.examples import FOREVER, SIZE, asks, engine, told
from tests.vllm_sim.test_random import POLICIES, SETTINGS

COST = StepCost(
    base_s=0.3,
    prefill_token_s=0.07,
    prefill_pair_s=0.003,
    decode_token_s=0.1,
    decode_context_token_s=0.013,
    floor_s=0.2,
    decode_base_s=0.11,
)
SLICES = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 3), st.sampled_from([0.5, 4.0, math.inf])),
    min_size=1,
    max_size=3,
)
DRAFTERS = st.sampled_from(
    [{}, *({"drafter": Drafter("mtp", 2, 1.0, SIZE), "drops_blocks": x} for x in (False, True))]
)
FULL = KvGroup("full", SIZE)
HYBRIDS = (
    KvGroups((FULL, KvGroup("sliding", SIZE, 6))),
    KvGroups((FULL, KvGroup("sliding", 2 * SIZE, 6)), retention_tokens=None),
    KvGroups((KvGroup("chunked", SIZE, 2 * SIZE), FULL)),
    KvGroups((KvGroup("linear", SIZE), FULL)),
    KvGroups((KvGroup("linear", SIZE), FULL), retention_tokens=None),
    KvGroups((KvGroup("linear", 2 * SIZE), KvGroup("full", 2 * SIZE)), match_tokens=SIZE),
)


@pytest.fixture(autouse=True, scope="module")
def _at_every_chance() -> Iterator[None]:
    """Take also few steps in one go, and try after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_forward, "WORTHWHILE", 1)
        patch.setattr(scheduler, "WORTHWHILE", 0)
        yield


def one_by_one(machine: Machine, steps: int, finished: int, until_s: float) -> bool:
    """Run an engine uncompiled, no two steps in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "fast_forward", lambda *_: 0)
        return scheduler.run_steps(machine, steps, finished, until_s)


@st.composite
def decoding(draw: st.DrawFn, size: int) -> list[Request]:
    """Return a trace with long outputs, of blocks of `size` tokens."""
    trace = draw(requests(size, most=8, chats=draw(st.booleans())))
    longer, later = draw(st.integers(1, 8)), draw(st.sampled_from([0.25, 1.0, 20.0]))
    for request in trace:
        request.output_tokens = (request.output_tokens or 0) * longer
        request.arrival_s = (request.arrival_s or 0.0) * later
    return trace


def check_equal(left: Machine, right: Machine) -> None:
    """Compare all tables of two engines, nan with nan."""
    for name, table in zip(Machine._fields, left, strict=True):
        if isinstance(table, np.ndarray):
            assert table.tobytes() == getattr(right, name).tobytes(), name


def check_slices(machine: Machine, slices: list[tuple[int, int, float]]) -> None:
    """Run an engine both ways to its end, a slice at a time, and compare after each."""
    other = copy.deepcopy(machine)
    for steps, requests_more, more_s in cycle(slices):
        state = machine.state[0]
        limits = steps, int(state.finished) + requests_more, float(state.now_s) + more_s
        more, other_more = scheduler.run_steps(machine, *limits), one_by_one(other, *limits)
        assert more == other_more
        check_equal(machine, other)
        if not more:
            break


@given(
    st.sampled_from([*POLICIES, Lru({"ttl_s": 3.0})]),
    st.data(),
    SIZES,
    st.integers(1, 20),
    SETTINGS,
    DRAFTERS,
    SLICES,
)
@settings(deadline=None, max_examples=100)
def test_steps_in_one_go_are_steps_one_by_one(
    policy: LanePolicy,
    data: st.DataObject,
    size: int,
    blocks: int,
    options: dict[str, Any],
    drafter: dict[str, Any],
    slices: list[tuple[int, int, float]],
) -> None:
    """However few blocks there are, and wherever a caller stops."""
    known = prompts(built(data.draw(decoding(size)), size))
    check_slices(engine(known, blocks, policy, COST, **options, **drafter), slices)


@given(
    st.sampled_from(HYBRIDS), decoding(SIZE), st.integers(6, 40), SETTINGS, st.booleans(), SLICES
)
@settings(deadline=None, max_examples=60)
def test_steps_of_a_hybrid_model_in_one_go_are_steps_one_by_one(
    groups: KvGroups,
    trace: list[Request],
    blocks: int,
    options: dict[str, Any],
    rehashes: bool,
    slices: list[tuple[int, int, float]],
) -> None:
    """With windows that move on, and states that are kept, hashed again or copied."""
    options = {**options, "groups": groups, "rehashes_states": rehashes}
    machine = engine(prompts(built(trace, SIZE)), blocks, Lru(), COST, **options)
    check_slices(machine, slices)


@pytest.mark.parametrize("waiting", [0, 4])
@pytest.mark.parametrize("overlapped", [False, True])
def test_few_steps_of_long_outputs_are_planned(
    monkeypatch: pytest.MonkeyPatch, overlapped: bool, waiting: int
) -> None:
    """Those in which requests begin or end, also where others wait for a place."""
    planned, schedule = 0, scheduler.schedule

    def count(machine: Machine) -> bool:
        nonlocal planned
        planned += 1
        return schedule(machine)

    monkeypatch.setattr(scheduler, "schedule", count)
    trace = told(*[asks("ab", 8, 100, at=float(at)) for at in range(2 + waiting)])
    machine = engine(trace, 100, Lru(), COST, max_num_seqs=2, async_scheduling=overlapped)
    scheduler.run_steps(machine, FOREVER, FOREVER, math.inf)
    assert machine.state[0].steps > 50 * (2 + waiting)
    assert planned < 10 * (2 + waiting)
