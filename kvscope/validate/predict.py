"""What the simulator says of the very requests that are sent to an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import Policy
from kvscope.policies.fits import Fit
from kvscope.simulate.definitions import standard
from kvscope.simulate.engine import EngineReplay, EngineSettings, StepCost, replay_engine
from kvscope.simulate.latency import LatencyProfile
from kvscope.simulate.one_fit import plugin_tables
from kvscope.simulate.replay import Tables
from kvscope.simulate.traffic import traffic
from kvscope.store.prompts import Prompts
from kvscope.validate.replay import Measurement, Pace

_LEAST_STEP_S = 1e-6
_NO_TIME_S = 1e-15  # lost in a time of seconds
_SPEEDS = np.geomspace(1 / 16, 16, 33).tolist()
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of each request: the tokens that it finds cached, and its TTFT in seconds.

    TTFT is nan for a request that an engine with so few blocks would turn away.
    """

    hit_tokens: NDArray[np.int64]
    ttft_s: NDArray[np.float64]


def predict(
    sent: Prompts,
    policy: Policy,
    settings: EngineSettings,
    profile: LatencyProfile,
    pace: Pace,
    measured: Measurement | None = None,
    *,
    fitted: Fit | None = None,
) -> Prediction:
    """The prediction for `sent`, requests in the engine's own blocks.

    One after the other, requests come and go at once at their times in the trace, which a policy's
    clock follows, and TTFT is the profile's of what was not hit.
    At the recorded times the model's own steps say which requests meet. So many at once, the next
    one is sent when an answer ends: arrivals are then those that `measured` has, and hits are what
    follows from them on a model that is as fast as the engine was just then. `fitted` is the table
    that the policy's file brings; one after the other, classes, fits and guard are those of the
    plugin, and else as near as its clock and the order of the answers allow.
    """
    if pace.kind == "sequential":
        alone = replace(settings, max_num_seqs=1)
        how = _how(sent, policy, alone, fitted)
        found = _replayed(sent, how, alone, StepCost(base_s=_NO_TIME_S))
        hit_tokens = found.hit_blocks.astype(np.int64) * sent.block_size
        ttft_s = profile.ttft_s(sent.input_tokens - hit_tokens, hit_tokens)
        return Prediction(hit_tokens, np.where(found.oversized, np.nan, ttft_s))
    if pace.kind == "in-flight" and measured is not None:
        known = np.where(np.isnan(measured.sent_s), 0.0, measured.sent_s)
        sent = replace(sent, arrival_s=np.maximum.accumulate(known))
        how = _how(sent, policy, settings, fitted)
        alike = _as_fast(sent, how, settings, profile, measured)
    else:
        sent = replace(sent, arrival_s=sent.arrival_s / pace.rate_scale)
        how = _how(sent, policy, settings, fitted)
        alike = profile
    found = _served(sent, how, settings, profile)
    hits = (found if alike is profile else _served(sent, how, settings, alike)).hit_blocks
    ttft_s = np.where(found.oversized, np.nan, found.ttft_s)
    return Prediction(hits.astype(np.int64) * sent.block_size, ttft_s)


class _How(NamedTuple):
    """A policy, and what it is told."""

    policy: Policy
    tables: Tables


def _how(sent: Prompts, policy: Policy, settings: EngineSettings, fitted: Fit | None) -> _How:
    """The same with the tables that the plugin would go by."""
    tables = plugin_tables(traffic(sent, standard()), policy, fitted)
    return _How(policy, tables.chosen(policy, settings.usable_blocks))


def _served(
    sent: Prompts, how: _How, settings: EngineSettings, profile: LatencyProfile
) -> EngineReplay:
    """What the model of the engine does with the requests."""
    cost = StepCost.of(replace(profile, base_s=max(profile.base_s, _LEAST_STEP_S)))
    return _replayed(sent, how, settings, cost)


def _replayed(sent: Prompts, how: _How, settings: EngineSettings, cost: StepCost) -> EngineReplay:
    """The same, a step taking what `cost` says."""
    return replay_engine(sent, how.policy, settings, cost, tables=how.tables)


def _as_fast(
    sent: Prompts,
    how: _How,
    settings: EngineSettings,
    profile: LatencyProfile,
    measured: Measurement,
) -> LatencyProfile:
    """The profile, its cost of a step and that of tokens so many times as high as fits best.

    First of all as few turns as can be come before the answer to the one before them: on the engine
    none did. Then answers end between the same two requests as they did there: that decides what
    each one finds. Both factors together first, then one after the other.
    """
    answered = measured.answered
    ended = np.searchsorted(sent.arrival_s, measured.finish_s[answered])
    later = np.flatnonzero(sent.parent >= 0)
    before = sent.parent[later]
    known: dict[tuple[float, float], tuple[int, float]] = {}

    def off(times: tuple[float, float]) -> tuple[int, float]:
        if times not in known:
            finish_s = _served(sent, how, settings, _slower(profile, *times)).finish_s
            early = int(np.count_nonzero(finish_s[before] > sent.arrival_s[later]))
            ends = np.searchsorted(sent.arrival_s, finish_s[answered])
            known[times] = early, float(np.abs(ends - ended).mean())
        return known[times]

    step, tokens = min(((one, one) for one in _SPEEDS), key=off)
    for _ in range(_ROUNDS):
        step, tokens = min(((step, one) for one in _SPEEDS), key=off)
        step, tokens = min(((one, tokens) for one in _SPEEDS), key=off)
    return _slower(profile, step, tokens)


def _slower(profile: LatencyProfile, step: float, tokens: float) -> LatencyProfile:
    return replace(
        profile,
        base_s=max(profile.base_s, _LEAST_STEP_S) * step,
        per_token_s=profile.per_token_s * tokens,
        per_token_pair_s=profile.per_token_pair_s * tokens,
    )
