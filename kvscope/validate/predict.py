"""What the simulator says of the very requests that are sent to an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import Policy
from kvscope.simulate.definitions import standard
from kvscope.simulate.engine import EngineSettings, StepCost, replay_engine
from kvscope.simulate.estimates import tables_for
from kvscope.simulate.latency import LatencyProfile
from kvscope.simulate.traffic import traffic
from kvscope.store.prompts import Prompts
from kvscope.validate.replay import Measurement, Pace

_LEAST_STEP_S = 1e-6


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
) -> Prediction:
    """The prediction for `sent`, requests in the engine's own blocks.

    One after the other, hits do not depend on time, and TTFT is the profile's of what was not hit.
    At the recorded times the model's own steps say which requests meet. So many at once, the next
    one is sent when an answer ends: then the arrivals are those that `measured` has, and predicted
    is what becomes of them.
    """
    arrival_s = sent.arrival_s / pace.rate_scale
    if pace.kind == "sequential":
        settings = replace(settings, max_num_seqs=1)
    if pace.kind == "in-flight" and measured is not None:
        known = np.where(np.isnan(measured.sent_s), 0.0, measured.sent_s)
        arrival_s = np.maximum.accumulate(known)
    sent = replace(sent, arrival_s=np.ascontiguousarray(arrival_s, dtype=np.float64))
    found = replay_engine(
        sent,
        policy,
        settings,
        StepCost.of(replace(profile, base_s=max(profile.base_s, _LEAST_STEP_S))),
        tables=tables_for(traffic(sent, standard()), type(policy)),
    )
    hit_tokens = found.hit_blocks.astype(np.int64) * sent.block_size
    ttft_s = found.ttft_s
    if pace.kind == "sequential":
        ttft_s = profile.ttft_s(sent.input_tokens - hit_tokens, hit_tokens)
    return Prediction(hit_tokens, np.where(found.oversized, np.nan, ttft_s))
