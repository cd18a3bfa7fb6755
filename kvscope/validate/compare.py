"""Prediction and measurement of one run, side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import EngineError
from kvscope.policies.base import Policy
from kvscope.simulate.percentiles import percentiles
from kvscope.store.prompts import Prompts
from kvscope.validate.facts import Figures, RunFacts
from kvscope.validate.predict import Prediction
from kvscope.validate.replay import Measurement


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
