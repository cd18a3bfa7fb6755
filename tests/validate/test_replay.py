"""Requests as they are sent, and the TTFT that is predicted of them."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.app.monitor import Monitor
from kvscope.core.errors import Stopped
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.serving.client import Endpoint
from kvscope.validate.predict import predict
from kvscope.validate.replay import Measurement, Pace, TraceReplay
from kvscope.validate.tokens import TokenTrace
from kvscope.validate.validate import PolicyRun, validate
from kvscope.vllm_sim import EngineSettings, StepCost, replay_in_flight
from tests.serving.fake import Behaviour, fake_server
from tests.validate.test_tokens import chats


def measured(folder: Path, behaviour: Behaviour) -> tuple[Measurement, TokenTrace]:
    """Thirty requests, some milliseconds apart, at their own times."""
    trace = TokenTrace(chats(folder, 30, gap_s=0.005), forced=True)
    with fake_server(behaviour) as url:
        pace = Pace("recorded")
        done = TraceReplay(
            Endpoint(url), "fake", trace, pace, advance=lambda _: None, stop=Event()
        ).run()
    return done, trace


def test_a_slow_health_check_does_not_delay_the_sender(tmp_path: Path) -> None:
    """One request is refused, and the server takes seconds to say that it is well."""
    behaviour = Behaviour(refuses_at=3, health_s=3.0)
    done, trace = measured(tmp_path, behaviour)
    arrival_s = trace.prompts.arrival_s - trace.prompts.arrival_s[0]
    # Requests 5 ms apart may overtake each other: the fourth that arrives is any of the first few.
    (refused,) = done.errors
    assert behaviour.seen[3]["prompt"] == trace.prompt(refused).tolist()
    assert done.ended == ""
    late_s = (done.sent_s - arrival_s)[done.answered]
    assert np.abs(late_s).max() < 1.5


def test_a_server_that_refuses_all_is_given_up(tmp_path: Path) -> None:
    """Where nothing was ever served."""
    done, _ = measured(tmp_path, Behaviour(refuses_from=0))
    assert "no request was served: status 400: not today" in done.ended
    assert len(done.errors) >= 5


ENGINE = LatencyProfile("the engine's", "", base_s=0.02, per_token_s=1e-3)
SETTINGS, IN_FLIGHT, SIZE = EngineSettings(300), 8, 32


@pytest.mark.parametrize(("slower", "client_s"), [(1.0, 0.0), (2.0, 0.0), (1.0, 0.03)])
def test_ttft_in_flight_is_as_far_off_as_the_profile(
    tmp_path: Path, slower: float, client_s: float
) -> None:
    """A profile twice as slow predicts twice the TTFT, and no queue that grows with the trace.

    The time that the client takes between an answer and the next request is that of the run.
    """
    sent = TokenTrace(chats(tmp_path, 200), forced=True).sent(SIZE)
    cost = StepCost.of(ENGINE)
    run = replay_in_flight(sent, Lru(), SETTINGS, cost, IN_FLIGHT, between_s=client_s)
    in_order = np.sort(run.finish_s)
    measured = Measurement(
        sent_s=np.concatenate((np.zeros(IN_FLIGHT), in_order[:-IN_FLIGHT] + client_s)),
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
    later_s = np.where(sent.output_tokens > 1, (sent.output_tokens - 1) * run.tpot_s, 0.0)
    assert predicted.answer_s == pytest.approx(slower * (run.ttft_s + later_s))


def test_nothing_measured_is_no_validation(tmp_path: Path) -> None:
    """Stopped before the first run, it ends as interrupted: without a verdict or a report."""
    stop = Event()
    stop.set()
    plan: Any = SimpleNamespace(sample=TokenTrace(chats(tmp_path, 2), forced=True), repeats=1)
    engine: Any = None
    with pytest.raises(Stopped, match="before the first run"):
        validate(
            plan, engine, [PolicyRun()], pytest.fail, progress=Monitor().steps,
            show_log=pytest.fail, stop=stop,
        )  # fmt: skip
