"""When requests are sent, and what an answer may delay."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np

from kvscope.serving.client import Endpoint
from kvscope.validate.replay import Measurement, Pace, TraceReplay
from kvscope.validate.tokens import TokenTrace
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
