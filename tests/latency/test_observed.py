"""A profile fitted to the TTFTs of a trace: what is recovered, and what is refused.

Traces are served by a simulated queue with a known profile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.errors import InputError
from kvscope.latency import observed
from kvscope.latency.calibration import fit
from kvscope.latency.observed import fit_ttfts
from kvscope.latency.profile import LatencyProfile
from tests.served import TRUE, Served, served, without_queue_times

SEEDS = range(20)
PROMPTS = ((100, 0), (1000, 0), (1000, 4000), (4000, 0), (4000, 2000))
"""Uncached and cached tokens in the range of the traces."""


def off(profile: LatencyProfile) -> float:
    """Return by how much a profile is off at most, for prompts in the range of the traces."""
    return max(
        abs(float(profile.ttft_s(*each)) / float(TRUE.ttft_s(*each)) - 1) for each in PROMPTS
    )


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out most resamples: the intervals are those of `fit`, which has its own tests."""
    monkeypatch.setattr(observed, "fit", partial(fit, draws=1))


@pytest.mark.parametrize(
    ("noise", "base", "per_token", "ttft"),
    [(0.0, 0.005, 0.005, 0.005), (0.1, 0.1, 0.07, 0.07), (0.15, 0.15, 0.1, 0.1)],
)
@pytest.mark.parametrize("queue_times", [False, True])
def test_a_profile_is_recovered_from_a_loaded_server(
    noise: float, base: float, per_token: float, ttft: float, *, queue_times: bool
) -> None:
    """At 60 % load, with TTFTs that vary, all of 20 seeds have the parameters of the server."""
    for seed in SEEDS:
        made = served(seed, 0.6, noise=noise)
        profile = (made if queue_times else without_queue_times(made)).fit().profile
        assert profile.base_s == pytest.approx(TRUE.base_s, rel=base)
        assert profile.per_token_s == pytest.approx(TRUE.per_token_s, rel=per_token)
        assert off(profile) < ttft


def test_overload_is_no_obstacle_where_queue_times_are_stated() -> None:
    """Behind a queue that only grows, TTFT less queue time is the time of the prefill."""
    for seed in SEEDS:
        fitted = served(seed, 1.3, noise=0.1).fit()
        assert fitted.requests == fitted.stated == 2000
        assert off(fitted.profile) < 0.07


def slots(made: Served, seed: int, count: int) -> Served:
    """Return the requests on an engine that decodes `count` at most, 2 s each on average."""
    rng = np.random.default_rng(seed)
    free_s, prefill_s, ttft_s = [0.0] * count, 0.0, np.empty(len(made.arrival_s))
    for number, arrival_s in enumerate(made.arrival_s):
        prefill_s = max(arrival_s, heapq.heappop(free_s), prefill_s) + made.alone_s[number]
        ttft_s[number] = prefill_s - arrival_s
        heapq.heappush(free_s, prefill_s + rng.exponential(2.0))
    return made.measuring(ttft_s=ttft_s)


def shared(made: Served) -> Served:
    """Return the requests on an engine that prefills all of them at once, at equal shares."""
    rest: dict[int, float] = {}
    now_s, ttft_s = 0.0, np.empty(len(made.arrival_s))
    coming = [*enumerate(made.arrival_s), (-1, np.inf)]
    while rest or len(coming) > 1:
        number, arrival_s = coming[0]
        first = min(rest, key=rest.__getitem__) if rest else -1
        end_s = now_s + rest[first] * len(rest) if rest else np.inf
        until_s = min(arrival_s, end_s)
        rest = {each: left - (until_s - now_s) / len(rest) for each, left in rest.items()}
        now_s = until_s
        if end_s < arrival_s:
            ttft_s[first] = now_s - made.arrival_s[first]
            del rest[first]
        else:
            rest[number] = float(made.alone_s[number])
            del coming[0]
    return made.measuring(ttft_s=ttft_s)


def sampled(made: Served, seed: int) -> Served:
    """Return a tenth of the requests: the others keep the server busy unseen."""
    return made.only(np.random.default_rng(seed).random(len(made.arrival_s)) < 0.1)


def whole_seconds(made: Served) -> Served:
    """Return the requests with arrivals in whole seconds."""
    return replace(made, arrival_s=np.floor(made.arrival_s))


ADVERSE: dict[str, Callable[[int], Served]] = {
    "a queue that grows": lambda seed: served(seed, 1.3, noise=0.1),
    "a busy server": lambda seed: served(seed, 0.97, requests=1000),
    "the others' traffic is missing": lambda seed: sampled(served(seed, 0.3, requests=6000), seed),
    "most of the load is missing": lambda seed: sampled(served(seed, 0.9, requests=6000), seed),
    "one slot": lambda seed: slots(served(seed, 0.05, requests=1500), seed, 1),
    "few slots, overloaded": lambda seed: slots(served(seed, 0.9, requests=1500), seed, 2),
    "workers not named": lambda seed: served(seed, 0.7, workers=8).measuring(
        worker=np.full(2000, -1, dtype=np.int32)
    ),
    "clock of whole seconds": lambda seed: whole_seconds(served(seed, 0.7)),
}


@pytest.mark.parametrize("case", ADVERSE)
def test_a_wrong_profile_is_refused(case: str) -> None:
    """Where TTFTs contain waiting that the trace does not show, no seed gets a profile."""
    for seed in SEEDS:
        with pytest.raises(InputError, match=r"another prefill|are off by|is off by"):
            without_queue_times(ADVERSE[case](seed)).fit()


@pytest.mark.parametrize(
    "made",
    [
        lambda seed: shared(served(seed, 0.7, requests=1500)),
        lambda seed: slots(served(seed, 0.2, requests=2000), seed, 8),
        lambda seed: whole_seconds(served(seed, 0.1)),
    ],
    ids=["shared prefills", "slots that suffice", "clock of whole seconds"],
)
def test_lone_requests_suffice_on_other_servers(made: Callable[[int], Served]) -> None:
    """A request without another prefill takes as long however the server orders them."""
    for seed in SEEDS:
        assert off(without_queue_times(made(seed)).fit().profile) < 0.1


def test_idle_is_per_worker() -> None:
    """With named workers, a request is alone if its own worker has no other."""
    made = without_queue_times(served(1, 0.6, workers=8, noise=0.1))
    assert off(made.fit().profile) < 0.07
    one_unknown = made.measured.worker.copy()
    one_unknown[0] = -1
    with pytest.raises(InputError, match="without another prefill"):
        made.measuring(worker=one_unknown).fit()


def test_requests_without_a_ttft_are_in_the_way() -> None:
    """A request whose TTFT is unknown occupies its worker all the same."""
    made = without_queue_times(served(1, 0.6))
    known = np.random.default_rng(1).random(2000) < 0.5
    some = made.measuring(ttft_s=np.where(known, made.measured.ttft_s, np.nan))
    with pytest.raises(InputError, match="without another prefill"):
        some.fit()


def test_the_error_is_that_of_other_requests() -> None:
    """Nine of ten new requests lie in the band; a third of the requests are not fitted to."""
    for seed in range(5):
        fitted = served(seed, 0.5, noise=0.15).fit()
        new = served(100 + seed, 0.5, noise=0.15)
        uncached = new.input_tokens - new.measured.cached_tokens
        ratio = (new.measured.ttft_s - new.measured.queue_s) / fitted.profile.ttft_s(
            uncached, new.measured.cached_tokens
        )
        inside = np.mean((ratio >= fitted.low) & (ratio <= fitted.high))
        assert 0.86 < inside < 0.94
        assert fitted.median_error == pytest.approx(np.median(np.abs(1 / ratio - 1)), abs=0.01)
        assert fitted.p90_error == pytest.approx(np.quantile(np.abs(1 / ratio - 1), 0.9), abs=0.03)
        assert fitted.low < 1 < fitted.high


def test_the_range_is_the_uncached_tokens_of_lone_requests() -> None:
    """Longer prompts than were computed whole are extrapolated, cached tokens or not."""
    made = served(1, 0.6)
    fitted = made.fit()
    uncached = made.input_tokens - made.measured.cached_tokens
    assert fitted.profile.measured_tokens == uncached.max()
    alone = without_queue_times(made).fit()
    assert alone.requests < fitted.requests == alone.stated
    assert alone.profile.measured_tokens <= fitted.profile.measured_tokens
    assert f"fitted to {alone.requests:,} of the 2,000 TTFTs of made" in alone.profile.source


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (served(1, 0.5).measuring(ttft_s=np.full(2000, np.nan)), "contains no TTFTs"),
        (
            served(1, 0.5).measuring(cached_tokens=np.full(2000, -1, dtype=np.int32)),
            "no cached tokens, so how many were computed is unknown",
        ),
        (served(1, 0.5, requests=80), "only 80 of 80 TTFTs were measured without another prefill"),
        (served(1, 0.5, spread=0.1).measuring(cached_tokens=np.zeros(2000)), "too narrow a range"),
        (
            served(1, 0.5).measuring(ttft_s=np.full(2000, 0.1), queue_s=np.zeros(2000)),
            "take no longer",
        ),
    ],
    ids=["no TTFTs", "no cached tokens", "few", "narrow", "constant"],
)
def test_what_is_missing_is_named(made: Served, message: str) -> None:
    """One line says what is wrong and what to do."""
    with pytest.raises(InputError, match=message) as refused:
        made.fit()
    assert refused.value.where == "made"
    assert "kvscope calibrate" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_measurements() -> None:
    """A trace of lengths and hashes has no TTFTs."""
    made = served(1, 0.5, requests=10)
    with pytest.raises(InputError, match="contains no TTFTs"):
        fit_ttfts("made", made.arrival_s, made.input_tokens, None)
