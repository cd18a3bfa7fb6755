"""Prediction and measurement of one run, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import EngineError
from kvscope.core.hits import standard
from kvscope.core.percentiles import percentiles
from kvscope.core.trace import Prompts
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import plugin_tables
from kvscope.policies.base import Policy
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import traffic
from kvscope.validate.replay import Measurement, Pace
from kvscope.validate.result import Figures, RunFacts
from kvscope.vllm_sim import EngineReplay, EngineSettings, StepCost, replay_engine

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
    fitted: FittedTable | None = None,
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


def _how(
    sent: Prompts, policy: Policy, settings: EngineSettings, fitted: FittedTable | None
) -> _How:
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


def compared(
    sent: Prompts,
    policy: Policy,
    predicted: Prediction,
    measured: Measurement,
    *,
    warmup: int,
    slo_s: float | None,
    repeat: int,
    flags: tuple[str, ...] = (),
) -> RunFacts:
    """The facts of one run; the first `warmup` requests are not counted.

    Raises EngineError where no counted request was answered.
    """
    counted = measured.answered & np.isfinite(predicted.ttft_s)
    counted[:warmup] = False
    if not counted.any():
        why = measured.ended or next(iter(measured.errors.values()), "")
        raise EngineError(
            f"no request was answered that counts{f' ({why})' if why else ''}",
            where=f"the run of {policy.name}",
            remedy="replay more of the trace, or see what the engine says",
        )
    told = bool((measured.hit_tokens[counted] >= 0).all())
    off = np.abs(measured.hit_tokens - predicted.hit_tokens)[counted]
    return RunFacts(
        policy=policy.name,
        leaves=policy.evicts,
        params={name: float(value) for name, value in policy.values.items()},
        repeat=repeat,
        flags=flags,
        predicted=_figures(sent, predicted.hit_tokens, predicted.ttft_s, counted, slo_s),
        measured=_figures(sent, measured.hit_tokens, measured.ttft_s, counted, slo_s),
        counted=counted,
        mismatched_requests=int(np.count_nonzero(off)) if told else None,
        mismatched_tokens=int(off.sum()) if told else None,
        predicted_hit_tokens=predicted.hit_tokens,
        measured_hit_tokens=measured.hit_tokens,
        predicted_ttft_s=predicted.ttft_s,
        measured_ttft_s=measured.ttft_s,
        failed=measured.errors,
        ended=measured.ended,
    )


def _figures(
    sent: Prompts,
    hit_tokens: NDArray[np.int64],
    ttft_s: NDArray[np.float64],
    counted: NDArray[np.bool_],
    slo_s: float | None,
) -> Figures:
    hits = int(np.maximum(hit_tokens[counted], 0).sum())
    times = ttft_s[counted]
    beyond = None if slo_s is None else times[times > slo_s] - slo_s
    return Figures(
        hit_tokens=hits,
        token_hit_rate=hits / int(sent.input_tokens[counted].sum(dtype=np.int64)),
        ttft_ms=percentiles(times * 1e3),
        tel_ms=None if beyond is None else float(beyond.sum()) * 1e3,
        violations=None if beyond is None else len(beyond),
    )
