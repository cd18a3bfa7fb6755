"""What the weka format alone does: sessions with clocks of their own, sub-agents, local ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvscope.ingest.source import HEAD_BYTES


def session(name: str | int, *requests: dict[str, Any], **fields: Any) -> bytes:
    """Return a line with one session."""
    head = {"id": name, "block_size": 64, "hash_id_scope": "local"}
    return json.dumps(head | fields | {"requests": list(requests)}).encode() + b"\n"


def entry(t: float, **fields: Any) -> dict[str, Any]:
    """Return a request of 70 tokens."""
    return {"t": t, "type": "n", "model": "m", "in": 70, "out": 2, "hash_ids": [1]} | fields


def agent(t: float, *requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a sub-agent."""
    return {"t": t, "type": "subagent", "requests": list(requests)} | fields


def test_sub_agents_count_from_their_own_start(read: Any) -> None:
    """Nested times add up along the nesting; file order is kept."""
    inner = agent(2.0, entry(0.25), agent_id="b")
    data = session("s", entry(1.0), agent(10.0, entry(0.5), inner, agent_id="a"), entry(11.0))
    requests = read(data).requests
    assert [r.arrival_s for r in requests] == [1.0, 10.5, 12.25, 11.0]
    assert [r.type for r in requests] == ["agent", "subagent", "subagent", "agent"]
    assert [r.session_id for r in requests] == [
        "s/main/m",
        "s/main/a/m",
        "s/main/a/b/m",
        "s/main/m",
    ]


def test_times_that_count_from_the_session_are_recognized(read: Any) -> None:
    """If nothing nested is earlier than its sub-agent, times are the session's, at any depth."""
    inner = agent(12.0, entry(12.0), agent_id="b")
    absolute = session("s", entry(1.0), agent(10.0, entry(10.5), inner, agent_id="a"))
    relative = session("t", agent(3.0, entry(0.0), entry(4.0)), agent(5.0, entry(6.0)))
    result = read(absolute + relative)
    assert [r.arrival_s for r in result.requests] == [1.0, 10.5, 12.0, 15.0, 19.0, 23.0]
    assert result.reader.notes == [
        "times of sub-agents count from the start of their session where none is earlier"
    ]


def test_sub_agents_at_the_start_leave_no_doubt(read: Any) -> None:
    """At 0 both readings agree, and nothing is noted."""
    result = read(session("s", agent(0.0, entry(0.0), entry(2.0))))
    assert [r.arrival_s for r in result.requests] == [0.0, 2.0]
    assert result.reader.notes == []


def test_agents_of_one_name_are_told_apart(read: Any) -> None:
    """Each sub-agent is a chain of its own, named or not."""
    data = session("s", *(agent(t, entry(0), agent_id="a") for t in (1, 2)), agent(3, entry(0)))
    chains = [request.session_id for request in read(data).requests]
    assert chains == ["s/main/a/m", "s/main/a#2/m", "s/main/agent/m"]


def test_blocks_are_shared_within_a_session_and_a_model_only(read: Any) -> None:
    """Local ids carry their session, requests their model; agents of one model share blocks."""
    data = session("s", entry(0), entry(1, model="n"), agent(2, entry(0))) + session(5, entry(0))
    requests = read(data).requests
    assert [(r.scope, r.model) for r in requests] == [
        ("s", "m"),
        ("s", "n"),
        ("s", "m"),
        ("5", "m"),
    ]


def test_global_ids_carry_their_model_alone(read: Any) -> None:
    """Ids that hold across sessions still mean other blocks under another model."""
    data = session("s", entry(0), hash_id_scope="global") + session(
        "t", entry(0), hash_id_scope=None
    )
    assert [(r.scope, r.model) for r in read(data).requests] == [(None, "m"), (None, "m")]


def test_a_session_of_one_model_need_not_repeat_it(read: Any) -> None:
    """A request without a model has the session's only one; else the model is unknown."""
    data = session("s", entry(0, model=None), models=["m"])
    data += session("t", entry(0, model=None), models=["m", "n"])
    requests = read(data).requests
    assert [(r.model, r.session_id) for r in requests] == [
        ("m", "s/main/m"),
        (None, "t/main/unknown"),
    ]


def test_measured_times_are_kept(read: Any) -> None:
    """Seconds to the first token and to the last, where the session was recorded with them."""
    data = session("s", entry(0, ttft=0.5, api_time=2.5), entry(1, api_time=3))
    requests = read(data).requests
    assert [(r.ttft_s, r.duration_s) for r in requests] == [(0.5, 2.5), (None, 3.0)]


def test_sessions_are_placed_back_to_back(read: Any) -> None:
    """The next session starts when the last request of all before it arrived."""
    data = (
        session("a", entry(3), agent(5, entry(4)), entry(6)) + session("b") + session("c", entry(1))
    )
    result = read(data)
    assert [r.arrival_s for r in result.requests] == [3.0, 9.0, 6.0, 10.0]
    assert [r.clock for r in result.requests] == ["a", "a", "a", "c"]


def test_a_session_is_used_whole_or_not_at_all(read: Any) -> None:
    """One bad request rejects its session, which then leaves no trace on the others."""
    bad = session("s", entry(0), agent(50, entry(1), entry(2, out=None)))
    result = read(bad + session("s", entry(1)))
    assert result.rejects.lines == [
        (1, "Object missing required field `out` - at `$.requests[1].requests[1]`")
    ]
    assert [request.arrival_s for request in result.requests] == [1.0]


def test_session_ids_are_unique(read: Any) -> None:
    """A second session of the same id is refused, a number being no other id than its digits."""
    result = read(session(1, entry(0)) + session("1", entry(0)))
    assert result.rejects.lines == [(2, "duplicate session id: '1'")]


@pytest.mark.parametrize("t", [-0.5, 2e9])
def test_times_that_cannot_be_are_refused(read: Any, t: float) -> None:
    """A broken time must not move the sessions after it."""
    result = read(session("s", agent(0, entry(t))) + session("t", entry(1)))
    assert result.rejects.lines == [
        (1, f"time outside 0 to 1e+09 s: {t:g} - at `$.requests[0].requests[0].t`")
    ]
    assert result.requests[0].arrival_s == 1.0


def test_the_scope_is_one_of_two(read: Any) -> None:
    """An unknown scope is refused, for its meaning is unknown."""
    result = read(session("s", entry(0), hash_id_scope="tenant"))
    assert result.rejects.lines == [(1, "hash_id_scope is neither local nor global: 'tenant'")]


def test_sessions_longer_than_the_head_are_read(read: Any) -> None:
    """A line of several megabytes is recognized by its beginning and read whole."""
    ids = list(range(400_000))
    result = read(session("s", entry(0, hash_ids=ids, **{"in": 64 * len(ids)})))
    assert len(ids) * 6 > 32 * HEAD_BYTES
    assert result.requests[0].hash_ids == ids
