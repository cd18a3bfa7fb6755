"""Load: a queue that grows is known as such, and so is what would carry it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.ingest.formats.base import Request
from kvscope.policies.lru import Lru
from kvscope.replay.metrics import GROWTH, ServedRequests, waiting_s
from kvscope.tuning.least import Load, keeps_up, load_of, ttft_growth
from kvscope.tuning.replicas import thinned
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator
from tests.tuning.examples import BLOCK, served, workload

TARGET = Target(1.0, view="queued")


def _queue(service_s: float, requests: int = 100) -> ServedRequests:
    """Return requests of equal work that come one a second."""
    some = served([service_s] * requests)
    times = waiting_s(some.prompts.arrival_s, some.ttft_s) + some.ttft_s
    return replace(some, queued_ttft_s=times)


@settings(deadline=None, max_examples=50)
@given(growth=st.floats(0.0, 3.0), requests=st.integers(10, 60))
def test_the_growth_of_a_known_queue(growth: float, requests: int) -> None:
    """An engine that serves 1/(1 + g) of the work that arrives lags g seconds more a second."""
    assert ttft_growth(_queue(1 + growth, requests)) == pytest.approx(growth, abs=1e-9)


@pytest.mark.parametrize("service_s", [0.1, 0.5, 1.0])
def test_what_is_served_as_it_comes_does_not_grow(service_s: float) -> None:
    """At most a second of work a second: no request waits."""
    assert ttft_growth(_queue(service_s)) == pytest.approx(0.0, abs=1e-12)
    assert keeps_up(_queue(service_s), slo_s=0.01)


def test_only_what_is_counted_and_got_a_token() -> None:
    """The warm-up's queue and requests without a token say nothing."""
    some = _queue(1.5)
    times = some.queued_ttft_s
    assert times is not None
    with_rejected = times.copy()
    with_rejected[::7] = math.nan
    known = replace(some, queued_ttft_s=with_rejected)
    assert ttft_growth(known) == pytest.approx(0.5, abs=0.02)
    steady = np.where(np.arange(100) < 50, times, 1.5)
    assert ttft_growth(replace(some, queued_ttft_s=steady, first=50)) == 0.0
    assert ttft_growth(replace(some, queued_ttft_s=steady, first=0)) <= 0.0
    assert ttft_growth(replace(some, first=50)) == pytest.approx(0.5)


def test_a_queue_that_grew_before_the_window_counts() -> None:
    """Requests wait 30 s throughout the window, since the 100 s before it: no steady state."""
    some = served([0.5] * 200)
    wait_s = np.minimum(np.arange(200) * 0.3, 30.0)
    grown = replace(some, queued_ttft_s=0.5 + wait_s, first=100)
    assert ttft_growth(grown) == pytest.approx(30 / 189.5)  # the last 20 come 180 to 199 s in
    assert not keeps_up(grown, slo_s=1.0)


def test_a_long_prefill_is_no_queue() -> None:
    """Within a short trace a TTFT of 3 s is much of the time, and yet nothing waits."""
    some = served([3.0] * 20)
    assert ttft_growth(some) == 0.0
    assert keeps_up(some, slo_s=1.0)


@pytest.mark.parametrize(
    "some",
    [
        replace(_queue(3.0), queued_ttft_s=None),
        _queue(3.0, 4),
        replace(_queue(3.0), first=97),
        replace(_queue(3.0), queued_ttft_s=np.full(100, math.nan)),
    ],
    ids=["no times", "four requests", "three counted", "no token"],
)
def test_what_is_unknown_is_no_overload(some: ServedRequests) -> None:
    """Without times, or with fewer than five requests, no growth is seen."""
    assert ttft_growth(some) == 0.0
    assert keeps_up(some, slo_s=0.01)


def test_a_queue_keeps_up_until_it_grows_by_20_ms_a_second() -> None:
    """And beyond that while its last requests are still within the SLO."""
    assert GROWTH == 0.02
    assert keeps_up(_queue(1.0199), slo_s=0.01)
    grown = _queue(1.0201)
    assert not keeps_up(grown, slo_s=0.01)
    assert grown.queued_ttft_s is not None
    last_s = float(grown.queued_ttft_s[-20:].mean())
    assert keeps_up(grown, slo_s=last_s)
    assert not keeps_up(grown, slo_s=math.nextafter(last_s, 0))


def _strangers(requests: int, tokens: int, every_s: float = 1.0) -> list[Request]:
    """Return requests that share nothing, each a conversation of its own."""
    blocks = tokens // BLOCK
    return [
        Request(
            input_tokens=tokens,
            output_tokens=1,
            arrival_s=at * every_s,
            hash_ids=[at * 1_000 + depth for depth in range(blocks)],
            chat_id=at,
            parent_chat_id=-1,
        )
        for at in range(requests)
    ]


def test_the_share_carried_and_the_replicas_needed() -> None:
    """Prompts of 2 s come once a second: half of them fit, or two replicas carry them all.

    Conversations are drawn, so that a replica of two may get a few more than half.
    """
    evaluator = Evaluator(workload(_strangers(400, 2_000), 0.25), TARGET)
    load = load_of(evaluator, 10, 1, 64)
    assert load.overloaded
    assert load.growth == pytest.approx(1.01)  # 10 ms, and 1 ms a token
    share, needed = load.carried_share, load.replicas_at_least
    assert share is not None
    assert needed is not None
    assert share == pytest.approx(0.5, abs=0.1)
    assert share * 64 == int(share * 64)

    def carried(of: float) -> ServedRequests:
        part = thinned(evaluator.workload, of)
        return evaluator.over(workload=part, replicas=1).served(Lru(), 10)

    assert keeps_up(carried(share), TARGET.slo_s)
    assert not keeps_up(carried(share + 1 / 64), TARGET.slo_s)
    assert load.carried is not None
    some = carried(share)
    assert load.carried.outcome.requests == len(some.ttft_s) - some.first

    def enough(replicas: int) -> bool:
        return keeps_up(evaluator.over(replicas=replicas).served(Lru(), 10), TARGET.slo_s)

    assert enough(needed)
    assert needed == 2 or not enough(needed - 1)
    assert needed <= 3


def test_replicas_that_keep_up_need_no_more() -> None:
    """Half a second of work a second: no share, no more replicas."""
    evaluator = Evaluator(workload(_strangers(200, 480), 0.25), TARGET)
    load = load_of(evaluator, 10, 1, 64)
    assert load == Load(pytest.approx(0.0, abs=1e-12), overloaded=False)  # type: ignore[arg-type]


def test_where_not_even_one_conversation_fits_there_is_no_share() -> None:
    """One that is counted is too much, and one that is not counted says nothing."""
    trace = _strangers(200, 2_000)
    for at in range(40, 200):  # one conversation; the others are in the warm-up
        trace[at].parent_chat_id = at - 1
    trace[40].parent_chat_id = -1
    evaluator = Evaluator(workload(trace, 0.25), TARGET)
    load = load_of(evaluator, 10, 1, 64)
    assert load.overloaded
    assert load.replicas_at_least is None  # no router splits a conversation
    assert (load.carried_share, load.carried) == (None, None)
