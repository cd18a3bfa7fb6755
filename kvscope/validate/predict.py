"""Predict a run on the simulated engine, and compare the prediction with the measurement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.errors import EngineError
from kvscope.core.hits import standard
from kvscope.core.percentiles import percentiles
from kvscope.core.trace import Prompts
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import plugin_tables, tables_of_served
from kvscope.policies.base import Policy
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import traffic
from kvscope.validate.replay import Measurement, Pace
from kvscope.validate.result import Figures, RunFacts
from kvscope.vllm_sim import (
    EngineReplay,
    EngineSettings,
    StepCost,
    fits,
    replay_engine,
    replay_in_flight,
)

_LEAST_STEP_S = 1e-6
_NO_TIME_S = 1e-15  # lost in a time of seconds
_SPEEDS = np.geomspace(1 / 16, 16, 33).tolist()
_ROUNDS = 2

_Simulator = Callable[[StepCost], EngineReplay]


class Prediction(Struct, frozen=True):
    """The tokens that each request finds cached, its TTFT and the time to its last token.

    Times are in seconds, and nan for a request that is longer than the engine's pool. `answer_s` is
    also nan where requests are sent one after the other.
    """

    hit_tokens: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    answer_s: NDArray[np.float64]


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
    """Return the prediction for `sent`, whose prompts are in the engine's own blocks.

    Pace "sequential": requests take no time and arrive at the trace's times, which the policy's
    clock follows; TTFT is the profile's for the uncached tokens.

    "recorded": requests arrive at the trace's times, and simulated steps decide which overlap.

    "in-flight": TTFT is from a simulation in which the end of an answer triggers the next request,
    after the client's own delay; it depends on the profile. Hits are from another simulation, in
    which requests arrive at the `measured` send times, with the profile's costs scaled to the speed
    that the engine had in that run. Without `measured`, all is as for "recorded".

    `fitted` is the table of the policy's file. Sequential runs have the plugin's classes, fits and
    guard; other paces approximate them, as their clock and order of answers differ.
    """
    if pace.kind == "sequential":
        alone = replace(settings, max_num_seqs=1)
        tables = _tables(sent, policy, alone, fitted)
        run = replay_engine(sent, policy, alone, StepCost(base_s=_NO_TIME_S), tables=tables)
        hit_tokens = run.hit_blocks.astype(np.int64) * sent.block_size
        ttft_s = profile.ttft_s(sent.input_tokens - hit_tokens, hit_tokens)
        nan = np.full(len(hit_tokens), np.nan)
        return Prediction(hit_tokens, np.where(run.oversized, nan, ttft_s), nan)
    if pace.kind == "in-flight" and measured is not None:
        sent_s = np.where(np.isnan(measured.sent_s), 0.0, measured.sent_s)
        sent = replace(sent, arrival_s=np.maximum.accumulate(sent_s))
        tables = _tables(sent, policy, settings, fitted)
        simulate = partial(replay_engine, sent, policy, settings, tables=tables)
        hit_run = simulate(_step_cost(_as_fast(sent, simulate, profile, measured)))
        run = replay_in_flight(
            sent,
            policy,
            settings,
            _step_cost(profile),
            pace.in_flight,
            between_s=profile.request_s + _client_s(measured, pace.in_flight),
            tables=tables,
        )
    else:
        sent = replace(sent, arrival_s=sent.arrival_s / pace.rate_scale)
        tables = _tables(sent, policy, settings, fitted)
        run = hit_run = replay_engine(sent, policy, settings, _step_cost(profile), tables=tables)
    ttft_s = np.where(run.oversized, np.nan, run.ttft_s + profile.request_s)
    later_s = np.maximum(sent.output_tokens - 1, 0) * np.nan_to_num(run.tpot_s)
    hit_tokens = hit_run.hit_blocks.astype(np.int64) * sent.block_size
    return Prediction(hit_tokens, ttft_s, ttft_s + later_s)


def _client_s(measured: Measurement, in_flight: int) -> float:
    """Return the median time between the end of an answer and the next request, in seconds.

    A millisecond decides whether the next request still enters the engine's next step.
    """
    sent_s, finish_s = np.sort(measured.sent_s), np.sort(measured.finish_s)
    between_s = sent_s[in_flight:] - finish_s[:-in_flight]
    return max(float(np.nanmedian(between_s)), 0.0) if np.isfinite(between_s).any() else 0.0


def _tables(
    sent: Prompts, policy: Policy, settings: EngineSettings, fitted: FittedTable | None
) -> Tables:
    """Return the tables that the plugin would use for the requests `sent`, at their arrival times.

    `fitted` is the table of the policy's file, if any.
    """
    known = traffic(sent, standard())
    served = fits(known, settings)
    fit = partial(plugin_tables, policy=policy, fitted=fitted)
    return tables_of_served(known, served, fit).chosen(policy, settings.usable_blocks)


def _step_cost(profile: LatencyProfile, step: float = 1.0, tokens: float = 1.0) -> StepCost:
    """Return the step costs of a profile, with costs per step and per token scaled."""
    return StepCost.of(_scaled(profile, step, tokens))


def _scaled(profile: LatencyProfile, step: float, tokens: float) -> LatencyProfile:
    base_s, decode_s = profile.base_s - profile.request_s, profile.decode_base_s
    return replace(
        profile,
        base_s=profile.request_s + max(max(base_s, _LEAST_STEP_S) * step, _LEAST_STEP_S),
        per_token_s=profile.per_token_s * tokens,
        per_token_pair_s=profile.per_token_pair_s * tokens,
        floor_s=profile.floor_s * step,
        decode_base_s=None if decode_s is None else max(decode_s * step, _LEAST_STEP_S),
        decode_request_s=profile.decode_request_s * tokens,
        decode_context_token_s=profile.decode_context_token_s * tokens,
    )


def _as_fast(
    sent: Prompts, simulate: _Simulator, profile: LatencyProfile, measured: Measurement
) -> LatencyProfile:
    """Return the profile with its costs per step and per token scaled to the measured speed.

    `simulate` replays `sent` with the step costs that it is called with. The best factors have the
    fewest turns that arrive before the simulated answer to their previous turn ends (on the engine
    none did), then the fewest arrivals, on average, between an answer's simulated and measured end:
    these decide the hits. Both factors are searched together first, then one after the other.
    """
    answered = measured.answered
    ended = np.searchsorted(sent.arrival_s, measured.finish_s[answered])
    later = np.flatnonzero(sent.parent >= 0)
    before = sent.parent[later]
    known: dict[tuple[float, float], tuple[int, float]] = {}

    def error(factors: tuple[float, float]) -> tuple[int, float]:
        if factors not in known:
            finish_s = simulate(_step_cost(profile, *factors)).finish_s
            early = int(np.count_nonzero(finish_s[before] > sent.arrival_s[later]))
            ends = np.searchsorted(sent.arrival_s, finish_s[answered])
            known[factors] = early, float(np.abs(ends - ended).mean())
        return known[factors]

    step, tokens = min(((speed, speed) for speed in _SPEEDS), key=error)
    for _ in range(_ROUNDS):
        step, tokens = min(((step, speed) for speed in _SPEEDS), key=error)
        step, tokens = min(((speed, tokens) for speed in _SPEEDS), key=error)
    return _scaled(profile, step, tokens)


def compare_run(
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
    """Return the facts of run `repeat` (from 0); the first `warmup` requests are not counted.

    Raises EngineError where no counted request was answered.
    """
    counted = measured.answered & np.isfinite(predicted.ttft_s)
    counted[:warmup] = False
    if not counted.any():
        why = measured.ended or next(iter(measured.errors.values()), "")
        raise EngineError(
            f"no request after the warm-up was answered{f' ({why})' if why else ''}",
            where=f"the run of {policy.name}",
            remedy="replay more of the trace, or see the engine's log",
        )
    reported = bool((measured.hit_tokens[counted] >= 0).all())
    off = np.abs(measured.hit_tokens - predicted.hit_tokens)[counted]
    return RunFacts(
        policy=policy.name,
        leaves=policy.evicts,
        params={name: float(value) for name, value in policy.values.items()},
        repeat=repeat,
        flags=flags,
        predicted=_figures(sent, predicted, counted, slo_s),
        measured=_figures(sent, measured, counted, slo_s),
        counted=counted,
        mismatched_requests=int(np.count_nonzero(off)) if reported else None,
        mismatched_tokens=int(off.sum()) if reported else None,
        predicted_hit_tokens=predicted.hit_tokens,
        measured_hit_tokens=measured.hit_tokens,
        predicted_ttft_s=predicted.ttft_s,
        measured_ttft_s=measured.ttft_s,
        failed=measured.errors,
        ended=measured.ended,
    )


def _figures(
    sent: Prompts, run: Prediction | Measurement, counted: NDArray[np.bool_], slo_s: float | None
) -> Figures:
    hits = int(np.maximum(run.hit_tokens[counted], 0).sum())
    times, answers = run.ttft_s[counted], run.answer_s[counted]
    excess = None if slo_s is None else times[times > slo_s] - slo_s
    return Figures(
        hit_tokens=hits,
        token_hit_rate=hits / int(sent.input_tokens[counted].sum(dtype=np.int64)),
        ttft_ms=percentiles(times * 1e3),
        tel_ms=None if excess is None else float(excess.sum()) * 1e3,
        violations=None if excess is None else len(excess),
        answer_ms=percentiles(answers * 1e3) if np.isfinite(answers).all() else None,
    )
