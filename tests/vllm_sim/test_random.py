"""The engine model on random traces: compiled and not, its books at every step, and its limits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.arrays import Float64s
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.policies.base import LanePolicy, Leaves, Turn
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.vllm_sim import (
    EngineReplay,
    EngineSettings,
    replay_engine,
    replay_in_flight,
)
from kvscope.vllm_sim.engine import runner
from kvscope.vllm_sim.pool import take
from kvscope.vllm_sim.scheduler import run_steps
from kvscope.vllm_sim.state import NONE
from tests.small_traces import SIZES, built, prompts, requests
from tests.vllm_sim.examples import FOREVER, SECONDS, check_books, engine, run

RECORDS = ("blocks", "requests", "state")
ARRAYS = ("holders", "children", "written")
POLICIES: tuple[LanePolicy, ...] = (
    Lru(),
    TLru({"xi_tokens": 5, "next_prompt_tokens": 1}, leaves="any"),
    TLru({"xi_tokens": 5, "next_prompt_tokens": 1}, leaves="leaf"),
)
SETTINGS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.integers(1, 20),
        "async_scheduling": st.booleans(),
        "reserve_full_prompt": st.booleans(),
    }
)


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[Request], int]:
    """Return a trace and its block size."""
    size = draw(SIZES)
    return draw(requests(size, most=10, chats=draw(st.booleans()))), size


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: f"{one.name}-{one.evicts}")
@given(traces(), st.integers(1, 12), SETTINGS)
@settings(deadline=None, max_examples=50)  # compiles
def test_compiled_and_uncompiled_do_the_same(
    policy: LanePolicy,
    trace: tuple[list[Request], int],
    blocks: int,
    options: dict[str, float],
) -> None:
    """To the last link of every queue."""
    known = prompts(built(*trace))
    plain, compiled = (engine(known, blocks, policy, **options) for _ in range(2))
    run(plain)
    runner(compiled)(FOREVER, FOREVER, np.inf)
    for name in RECORDS:
        left, right = getattr(plain, name), getattr(compiled, name)
        for field in left.dtype.names:
            np.testing.assert_array_equal(left[field], right[field], err_msg=f"{name}.{field}")
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(plain, name), getattr(compiled, name), err_msg=name)


class _ManyLanes(LanePolicy):
    """Its blocks are in many lanes; which of these are worth least changes with time."""

    name = "many-lanes"
    leaves = "any"
    offers = ("leaf", "any")
    lanes = 70

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return one of five lanes for every two blocks."""
        begin = max(0, end - 2)
        return begin, 16 * ((turn.request + begin) % 5)

    @staticmethod
    def score(lane: int, idle_s: float, p: Float64s, table: Float64s) -> float:
        """Return one of three numbers."""
        return float((lane // 16 + int(idle_s)) % 3)


@pytest.mark.parametrize("leaves", ["leaf", "any"])
@given(traces(), st.integers(4, 40), SETTINGS, st.integers(1, 30))
@settings(deadline=None, max_examples=100)
def test_blocks_taken_one_after_another_are_those_taken_one_by_one(
    leaves: Leaves,
    trace: tuple[list[Request], int],
    blocks: int,
    options: dict[str, float],
    steps: int,
) -> None:
    """Comparing the lane of the last one with the best of the others, or all lanes anew."""
    policy, leaf = _ManyLanes(leaves=leaves), leaves == "leaf"
    machine = engine(prompts(built(*trace)), blocks, policy, **options)
    run_steps(machine, steps, FOREVER, np.inf)
    check_books(machine, leaf)
    other = copy.deepcopy(machine)
    for number in range(machine.state[0].free):
        other.state.taken_lane = NONE
        assert take(machine, number > 0) == take(other, number > 0)
    for name in ("blocks", "holders", "busy"):
        assert getattr(machine, name).tobytes() == getattr(other, name).tobytes(), name


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: f"{one.name}-{one.evicts}")
@given(traces(), st.integers(1, 12), SETTINGS)
@settings(deadline=None, max_examples=30)
def test_the_books_are_right_after_every_step(
    policy: LanePolicy,
    trace: tuple[list[Request], int],
    blocks: int,
    options: dict[str, float],
) -> None:
    """In use and free make the pool, nothing counts twice, and a leaf policy leaves no orphan."""
    leaf = policy.evicts == "leaf"
    machine = engine(prompts(built(*trace)), blocks, policy, **options)
    more, steps = True, 0
    while more:
        more = run_steps(machine, 1, FOREVER, np.inf)
        check_books(machine, leaf)
        steps += 1
        assert steps < FOREVER
    done = machine.requests
    assert (np.isfinite(done.finished_s) == (done.oversized == 0)).all()
    assert (machine.blocks.users == 0).all()
    assert (done.generated[done.oversized == 0] == done.outputs[done.oversized == 0]).all()


@given(traces())
@settings(deadline=None)  # compiles
def test_a_pool_without_end_finds_all_there_is(trace: tuple[list[Request], int]) -> None:
    """One at a time and never evicting, the engine hits what any cache could: the ideal."""
    known = prompts(built(*trace))
    seen = replay_engine(known, Lru(), EngineSettings.one_at_a_time(10_000), SECONDS)
    ideal = replay(traffic(known, standard()), Lru(), 10_000)
    assert seen.hit_blocks.tolist() == ideal.hit_blocks.tolist()
    assert seen.evictions == 0
    assert not seen.oversized.any()


@given(traces(), st.integers(1, 8), SETTINGS)
@settings(deadline=None, max_examples=50)
def test_oversized_requests_change_nothing_for_others(
    trace: tuple[list[Request], int], blocks: int, options: dict[str, float]
) -> None:
    """Without them, everybody else is served at the same times."""
    known = prompts(built(*trace))
    whole = run(engine(known, blocks, **options))
    fits = whole.requests.oversized == 0
    if not fits.any():
        return
    without = engine(known, blocks, **options)
    kept = without._replace(requests=without.requests[fits].copy())
    run(kept)
    for name in ("hits", "preemptions", "admitted_s", "first_token_s", "finished_s"):
        np.testing.assert_array_equal(kept.requests[name], whole.requests[name][fits])


@given(traces(), st.integers(1, 12), st.integers(1, 4), SETTINGS)
@settings(deadline=None, max_examples=50)  # compiles
def test_in_flight_equals_a_replay_at_the_times_of_sending(
    trace: tuple[list[Request], int], blocks: int, in_flight: int, options: dict[str, float]
) -> None:
    """The times of sending follow from those at which answers end, and the other way round."""
    known, limits = prompts(built(*trace)), EngineSettings(blocks, **options)
    closed = replay_in_flight(known, Lru(), limits, SECONDS, in_flight)
    timed = replace(known, arrival_s=np.array(_sent_s(known, closed, in_flight)))
    recorded = replay_engine(timed, Lru(), limits, SECONDS)
    for name in ("hit_blocks", "queue_s", "ttft_s", "finish_s", "preemptions", "oversized"):
        assert np.array_equal(getattr(closed, name), getattr(recorded, name), equal_nan=True)


def _sent_s(known: Prompts, closed: EngineReplay, in_flight: int) -> list[float]:
    """Return when a client with `in_flight` requests at once sends each one, in their order."""
    sent_s: list[float] = []
    for request, parent in enumerate(known.parent):
        ends = np.sort(closed.finish_s[:request][~closed.oversized[:request]])
        latest = sent_s[-1] if sent_s else 0.0
        if len(ends) >= in_flight:
            latest = max(latest, ends[len(ends) - in_flight])
        if parent >= 0 and not closed.oversized[parent]:
            latest = max(latest, closed.finish_s[parent])
        sent_s.append(float(latest))
    return sent_s
