"""The engine model's rules by hand-worked examples: blocks of four tokens, steps of a second."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvscope.core.errors import UsageError
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru, ThresholdLru, Ttl
from kvscope.policies.tlru import TLru
from kvscope.replay.derived_traces import at_rate
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine, replay_in_flight
from tests.vllm_sim.examples import (
    SECONDS,
    asks,
    check_books,
    engine,
    queue,
    run,
    served,
    told,
)

UNHASHED, LANE = 0, 1


PAIR, PART = (asks("abc", 12, outputs=2), asks("xyz", 12)), {"max_num_batched_tokens": 16}
# Names of rules: the requests, the engine, and columns of its requests afterwards.
RULES: dict[str, tuple[tuple[Request, ...], dict[str, Any], dict[str, list[int]]]] = {
    "the last token is computed, so that three of four full blocks are found": (
        (asks("abcd", 16), asks("abcd", 16, at=9), asks("abcde", 17, at=19)),
        {"blocks": 20},
        {"hits": [0, 3, 4]},
    ),
    "found blocks cannot be taken, though they are the oldest": (
        (asks("ab", 8), asks("xy", 8, at=9), asks("abcd", 16, at=19)),
        {"blocks": 4},
        {"hits": [0, 0, 2]},
    ),
    "blocks are hashed when they are scheduled: twins of a step share all but the end": (
        (asks("abc", 12), asks("abc", 12)),
        {"blocks": 9},
        {"hits": [0, 2], "first_token_s": [1, 1]},
    ),
    "ten tokens at four a step take three steps, and one for each output from then on": (
        (asks("abc", 10, outputs=3),),
        {"blocks": 9, "max_num_batched_tokens": 4},
        {"first_token_s": [3], "finished_s": [5]},
    ),
    "of two tokens a step, a request that decodes leaves one to the next prompt": (
        (asks("a", 2, outputs=9), asks("x", 3, at=1)),
        {"blocks": 9, "max_num_batched_tokens": 2},
        {"first_token_s": [1, 4]},
    ),
    "a prompt that does not fit waits, and no other one overtakes it": (
        (asks("abc", 12, outputs=5), asks("xyz", 12), asks("u", 4)),
        {"blocks": 4},
        {"admitted_s": [0, 5, 5]},
    ),
    "with one slot, the second request starts after the first": (
        (asks("a", 4, outputs=3), asks("x", 4)),
        {"blocks": 9, "max_num_seqs": 1},
        {"admitted_s": [0, 3]},
    ),
    # In the third step the first request needs its third block. The second one gives its two back
    # and waits until nine tokens fit; its own first block is then found, outside the count of hits.
    # Two of its outputs are known by then.
    "the youngest request is preempted and starts over": (
        (asks("ab", 7, outputs=6), asks("xy", 7, outputs=6)),
        {"blocks": 4},
        {"preemptions": [0, 1], "hits": [0, 0], "first_token_s": [1, 1], "finished_s": [6, 10]},
    ),
    "the youngest request, which needs a block, preempts itself": (
        (asks("ab", 8, outputs=4), asks("xy", 6, outputs=9)),
        {"blocks": 5},
        {"preemptions": [0, 1]},
    ),
    "all of a prompt has to fit": (PAIR, {"blocks": 4, **PART}, {"admitted_s": [0, 2]}),
    "unless its first chunk is enough to begin": (
        PAIR,
        {"blocks": 4, "reserve_full_prompt": False, **PART},
        {"admitted_s": [0, 0]},
    ),
    "an overlapped step is planned before the one in progress ends": (
        PAIR,
        {"blocks": 4, "async_scheduling": True},
        {"finished_s": [2, 3], "admitted_s": [0, 2]},
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: str) -> None:
    """Hits, times and preemptions of each request."""
    requests, settings, expected = RULES[rule]
    seen = served(*requests, **settings).requests
    assert {name: seen[name].tolist() for name in expected} == expected


def test_freed_blocks_lie_in_vllms_order() -> None:
    """A partial block goes to the front; of the full ones the deepest is given up first.

    The last output has no place: seven tokens and one fill one block, and with two outputs two.
    """
    seen = served(asks("abc", 10), blocks=6)
    assert queue(seen, UNHASHED) == [2, 3, 4, 5]
    assert queue(seen, LANE) == [1, 0]
    for outputs in (1, 2):
        assert len(queue(served(asks("ab", 7, outputs=outputs), blocks=9), LANE)) == outputs


def test_unhashed_blocks_are_taken_before_any_content_is_lost() -> None:
    """Three blocks of a, one never used: who needs two loses only the deepest of them."""
    seen = served(asks("abc", 12), asks("xy", 8, at=9), asks("abc", 12, at=19), blocks=4)
    assert seen.requests.hits.tolist() == [0, 0, 2]
    assert seen.state[0].evictions == 2  # c for x y, then y for c


def test_duplicates_stay() -> None:
    """The same full prompt twice: its last block is computed again and held twice."""
    seen = served(asks("ab", 8), asks("ab", 8, at=9), blocks=9)
    last, *others = seen.blocks.content[queue(seen, LANE)].tolist()
    assert (others.count(last), len(others)) == (1, 2)
    assert seen.holders[last] - 1 == 1  # the older one is found


def test_oversized_requests_are_turned_away() -> None:
    """Five blocks never fit into four, be it for prompt or output; others do not wait for that."""
    known = told(asks("abcde", 17), asks("ab", 8, outputs=10), asks("x", 4))
    seen = replay_engine(known, Lru(), EngineSettings(4), SECONDS)
    assert seen.oversized.tolist() == [True, True, False]
    assert seen.hit_blocks.tolist() == [0, 0, 0]
    assert np.isnan(seen.ttft_s).tolist() == [True, True, False]
    assert seen.queue_s[2] == 0


@pytest.mark.parametrize(("launch_s", "first_token_s"), [(0.0, 3), (0.25, 2)])
def test_what_arrives_while_a_step_is_launched_enters_the_next(
    launch_s: float, first_token_s: float
) -> None:
    """Without a launch the next step is planned as soon as a step begins."""
    two = told(asks("abc", 12, outputs=4), asks("xyz", 12, at=0.25))
    cost = StepCost(base_s=1.0, launch_s=launch_s)
    seen = run(engine(two, 8, cost=cost, async_scheduling=True))
    assert seen.requests.first_token_s.tolist() == [1, first_token_s]
    assert seen.requests.finished_s[0] == 4


def test_a_client_sends_once_its_answer_ends_and_not_once_the_next_step_is_launched() -> None:
    """Two in flight: the third comes as the first ends, while a step with the second begins."""
    three = told(asks("abc", 12), asks("uvwxyz", 24, outputs=3), asks("pq", 8))
    settings = EngineSettings(20, 4, 16, async_scheduling=True)
    cost = StepCost(base_s=1.0, launch_s=0.5)
    seen = replay_in_flight(three, Lru(), settings, cost, 2)
    assert seen.finish_s[0] == 1
    sent_s = seen.finish_s[2] - seen.ttft_s[2]
    assert sent_s == 1


def test_safe_blocks_leave_first() -> None:
    """T-LRU: the deepest block of abcd can be recomputed in time, so it leaves before older z."""
    policy = TLru({"xi_tokens": 5, "next_prompt_tokens": 0}, leaves="any")
    known = told(
        asks("xyz", 12, outputs=2),
        asks("abcd", 16, at=9),
        asks("uv", 8, at=19),
        asks("xyzw", 13, at=29),
    )
    assert run(engine(known, 8)).requests.hits.tolist() == [0, 0, 0, 2]
    assert run(engine(known, 8, policy)).requests.hits.tolist() == [0, 0, 0, 3]


def test_a_shared_head_stays_while_a_tail_needs_it() -> None:
    """All of the short second turn is safe, its head s too; as a leaf policy T-LRU keeps s.

    The third request needs five blocks: one is unhashed, d, c and x are safe. Then s leaves, or b.
    """
    trace = (
        asks("sabcd", 20),
        asks("sx", 8, at=9),
        asks("uvwyz", 20, at=19),
        asks("sabcd", 20, at=29),
    )
    found = {}
    for leaves in ("any", "leaf"):
        policy = TLru({"xi_tokens": 9, "next_prompt_tokens": 0}, leaves=leaves)  # type: ignore[arg-type]
        machine = run(engine(told(*trace), 7, policy))
        found[leaves] = machine.requests.hits.tolist()
        check_books(machine, leaf=leaves == "leaf")
    assert found == {"any": [0, 1, 0, 0], "leaf": [0, 1, 0, 2]}


def test_a_time_to_live_drops_what_nobody_uses() -> None:
    """Found after eight seconds, gone after twelve."""
    policy = Ttl({"ttl_s": 10})
    known = told(asks("ab", 8), asks("ab", 8, at=9), asks("ab", 8, at=22))
    seen = run(engine(known, 9, policy))
    assert seen.requests.hits.tolist() == [0, 1, 0]
    check_books(seen, leaf=False)


def test_what_a_policy_does_not_admit_loses_its_content() -> None:
    """A history of nine tokens is not cached, and what it found is; one of seventeen is cached."""
    policy = ThresholdLru({"threshold_tokens": 17})
    known = told(
        asks("ab", 8), asks("ab", 8, at=9), asks("abcd", 16, at=19), asks("abcd", 16, at=29)
    )
    seen = run(engine(known, 9, policy))
    assert seen.requests.hits.tolist() == [0, 0, 0, 3]
    check_books(seen, leaf=False)


@pytest.mark.parametrize(
    "profile",
    [
        LatencyProfile("made", "made", 0.01, 0.001, 0.0001),
        LatencyProfile("made", "made", 0.01, 0.001, 0.0001, floor_s=0.015, request_s=0.004),
    ],
)
def test_a_lone_prompt_takes_the_time_of_the_profile(profile: LatencyProfile) -> None:
    """Whether it is found in part or not, but for what passes outside of the steps."""
    known = told(asks("abcde", 20), asks("abcde", 20, at=9))
    seen = replay_engine(known, Lru(), EngineSettings(30), StepCost.of(profile))
    assert seen.hit_blocks.tolist() == [0, 4]
    expected = profile.ttft_s(np.array([20, 4]), np.array([0, 16]))
    assert seen.ttft_s + profile.request_s == pytest.approx(expected)


def test_two_prompts_of_a_step_read_the_weights_once() -> None:
    """The floor is the step's: 12 + 12 tokens of a second each exceed 20 s together."""
    cost, settings = StepCost(1.0, 1.0, floor_s=20.0), EngineSettings(30)
    both = replay_engine(told(asks("abc", 12), asks("xyz", 12)), Lru(), settings, cost)
    assert both.ttft_s.tolist() == [25.0, 25.0]
    alone = replay_engine(told(asks("abc", 12)), Lru(), settings, cost)
    assert alone.ttft_s.tolist() == [21.0]


def test_decoding_has_a_cost_of_its_own() -> None:
    """A step without prompts takes its own base, and each request its context."""
    profile = LatencyProfile(
        "made",
        "made",
        1.0,
        0.1,
        floor_s=2.0,
        decode_base_s=0.25,
        decode_request_s=0.01,
        decode_context_token_s=0.001,
    )
    known = told(asks("abc", 12, outputs=3))
    replay = replay_engine(known, Lru(), EngineSettings(9), StepCost.of(profile))
    assert replay.ttft_s.tolist() == [3.0]
    steps = [0.25 + 0.01 + 0.001 * context for context in (12, 13)]
    assert replay.finish_s.tolist() == pytest.approx([3.0 + sum(steps)])


def test_a_faster_trace_queues() -> None:
    """At ten times the rate the second request comes while the first one runs."""
    known = told(asks("abc", 12, outputs=5), asks("xyz", 12, at=10))
    slow = replay_engine(known, Lru(), EngineSettings(4), SECONDS)
    fast = replay_engine(at_rate(known, 10), Lru(), EngineSettings(4), SECONDS)
    assert slow.queue_s.tolist() == [0, 0]
    assert fast.queue_s.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: EngineSettings(0), "usable_blocks"),
        (lambda: EngineSettings(5, max_num_seqs=0), "max_num_seqs"),
        (lambda: StepCost(0.0), "no time"),
        (lambda: StepCost(1.0, decode_base_s=0.0), "give decode_base_s above 0"),
        (lambda: StepCost(1.0, floor_s=-1.0), "floor_s"),
        (lambda: StepCost(1.0, prefill_token_s=-1.0), "prefill_token_s"),
        (lambda: replay_engine(told(asks("a", 4)), Belady(), EngineSettings(5), SECONDS), "belady"),
    ],
)
def test_impossible_settings_are_refused(wrong: object, named: str) -> None:
    """The message names what is wrong."""
    with pytest.raises(UsageError, match=named):
        wrong()  # type: ignore[operator]
