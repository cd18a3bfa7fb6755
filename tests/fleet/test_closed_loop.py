"""Think times, and conversations whose next turn waits for the previous one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.errors import InputError
from kvscope.core.hits import standard
from kvscope.core.trace import Measurements, Prompts
from kvscope.fleet.closed_loop import think_times
from kvscope.fleet.replay import asked, replay_fleet
from kvscope.ingest.formats.base import Request
from kvscope.ingest.pipeline import ingest
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.replay.traffic import traffic
from kvscope.routers.balancers import RoundRobin
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests.small_traces import built, prompts

# A prompt's token takes 0.1 s, and an output token 0.5 s.
PROFILE = LatencyProfile("made", "made", 0.0, 0.1, decode_base_s=0.5)


def asks(
    tokens: int, outputs: int, at_s: float, chat: int | None = None, parent: int | None = None
) -> Request:
    """Return a request whose prompt has blocks of 2 tokens, the same for all."""
    return Request(
        input_tokens=tokens,
        output_tokens=outputs,
        arrival_s=at_s,
        hash_ids=list(range(tokens // 2)),
        chat_id=chat,
        parent_chat_id=parent,
    )


def chat() -> Prompts:
    """Return two turns of one chat, 10 s apart: 4 tokens and 3 outputs, then 8 tokens."""
    first = asks(4, 3, 0.0, 1)
    second = asks(8, 1, 10.0, 2, 1)
    return prompts(built([first, second], 2))


def test_think_time_is_the_gap_less_the_time_alone() -> None:
    trace = chat()
    times = think_times(trace, traffic(trace, standard()), PROFILE)
    assert times.think_s.tolist() == [-1.0, pytest.approx(10 - (0.4 + 2 * 0.5))]
    assert (times.stated, times.recorded, times.estimated, times.floored) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("duration_s", "delay_s", "think_s"), [(4.0, np.nan, 6.0), (12.0, np.nan, 0.0), (4.0, 1.5, 1.5)]
)
def test_what_the_trace_has_counts_and_never_below_0(
    duration_s: float, delay_s: float, think_s: float
) -> None:
    """A delay that it states before a duration that it has."""
    trace = chat()
    none = np.full(2, np.nan)
    told = Measurements(
        worker=np.full(2, -1, dtype=np.int32),
        ttft_s=none,
        queue_s=none,
        duration_s=np.array([duration_s, np.nan]),
        cached_tokens=np.full(2, -1, dtype=np.int32),
        delay_s=np.array([np.nan, delay_s]),
        waits_for=np.full(2, -1, dtype=np.int32),
        workers=(),
    )
    trace = replace(trace, measurements=told)
    times = think_times(trace, traffic(trace, standard()), PROFILE)
    assert times.think_s[1] == think_s
    stated = int(think_s == 1.5)
    counts = (times.stated, times.recorded, times.estimated, times.floored)
    assert counts == (stated, 1 - stated, 0, int(think_s == 0))


def test_a_request_waits_for_another_session_that_the_trace_names(tmp_path: Path) -> None:
    """Agentic Mooncake's dependency on the request that ends last, within its play."""
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 2}

    def row(name: str, session: str, begin_ms: int, *waits: tuple[str | int, ...]) -> str:
        names = ("request_id", "relation", "trigger", "delay_ms")
        dependencies = [dict(zip(names, each, strict=True)) for each in waits]
        lengths = {"input_length": 4, "output_length": 1, "hash_ids": [1, 2]}
        times = {"not_before_ms": begin_ms, "recorded_api_time_ms": 1000}
        ids = {"request_id": name, "play_id": "p", "session_id": session}
        return json.dumps({**ids, **lengths, **times, "dependencies": dependencies})

    end = ("completion",)
    lines = [
        json.dumps(header),
        row("a", "main", 0),
        row("b", "sub", 500, ("a", "spawn", "dispatch", 500)),
        row("c", "sub", 3000, ("b", "sequence", *end, 1500)),
        row(
            "d", "main", 9000, ("a", "sequence", "completion", 8000), ("c", "join", "completion", 5)
        ),
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    with open_store(MEMORY) as store:
        trace = load_prompts(store, ingest(store, str(path)).trace)
    assert trace.parent.tolist() == [-1, -1, 1, 0]
    steps = traffic(trace, standard())
    times = think_times(trace, steps, PROFILE)
    assert times.think_s.tolist() == [-1.0, -1.0, 1.5, 0.005]
    assert times.after.tolist() == [-1, -1, 1, 2]
    slow = PROFILE.scaled(100.0)
    done = replay_fleet(
        steps,
        asked(trace),
        slow,
        Lru(),
        RoundRobin(),
        1,
        100,
        think_s=times.think_s,
        after=times.after,
    )
    assert done.arrival_s[2:].tolist() == [
        pytest.approx(done.end_s[1] + 1.5),
        pytest.approx(done.end_s[2] + 0.005),
    ]


def test_a_slow_fleet_delays_the_next_turn() -> None:
    trace = chat()
    steps = traffic(trace, standard())
    think_s = think_times(trace, steps, PROFILE).think_s
    slow = PROFILE.scaled(10.0)
    done = replay_fleet(steps, asked(trace), slow, Lru(), RoundRobin(), 1, 100, think_s=think_s)
    assert done.end_s[0] == pytest.approx(14.0)
    assert done.arrival_s.tolist() == [0.0, pytest.approx(14.0 + 8.6)]
    same = replay_fleet(steps, asked(trace), PROFILE, Lru(), RoundRobin(), 1, 100, think_s=think_s)
    assert same.arrival_s.tolist() == [0.0, pytest.approx(10.0)]


def test_a_trace_without_turns_has_no_loop() -> None:
    trace = prompts(built([asks(4, 3, 0.0)], 2))
    with pytest.raises(InputError, match="no loop to close"):
        think_times(trace, traffic(trace, standard()), PROFILE)
