"""Predictions of runs with requests in flight, against the simulated engine as if it were real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.validate.predict import predict
from kvscope.validate.replay import Measurement, Pace
from kvscope.validate.tokens import TokenTrace
from kvscope.vllm_sim import EngineSettings, StepCost, replay_in_flight
from tests.validate.test_tokens import chats

ENGINE = LatencyProfile("the engine's", "", base_s=0.02, per_token_s=1e-3)
SETTINGS, IN_FLIGHT, SIZE = EngineSettings(300), 8, 32


@pytest.mark.parametrize("slower", [1.0, 2.0])
def test_ttft_in_flight_is_as_far_off_as_the_profile(tmp_path: Path, slower: float) -> None:
    """A profile twice as slow predicts twice the TTFT, and no queue that grows with the trace."""
    sent = TokenTrace(chats(tmp_path, 200), forced=True).sent(SIZE)
    run = replay_in_flight(sent, Lru(), SETTINGS, StepCost.of(ENGINE), IN_FLIGHT)
    measured = Measurement(
        sent_s=np.sort(run.finish_s) - run.finish_s.min(),  # one is sent where one ends
        ttft_s=run.ttft_s,
        finish_s=run.finish_s,
        hit_tokens=run.hit_blocks.astype(np.int64) * SIZE,
        output_tokens=sent.output_tokens.astype(np.int64),
        errors={},
    )
    profile = replace(
        ENGINE, base_s=slower * ENGINE.base_s, per_token_s=slower * ENGINE.per_token_s
    )
    pace = Pace("in-flight", IN_FLIGHT)
    predicted = predict(sent, Lru(), SETTINGS, profile, pace, measured)
    assert predicted.ttft_s == pytest.approx(slower * measured.ttft_s)
