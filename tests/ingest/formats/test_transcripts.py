"""Transcripts of coding agents: one request a call, and what it shares with the call before."""

from __future__ import annotations

import json
from typing import Any

from kvscope.ingest.formats.base import Request

_Line = dict[str, Any]


def at(second: int) -> str:
    return f"2026-05-01T10:{second // 60:02d}:{second % 60:02d}Z"


def entry(kind: str, second: int, message: object, **more: object) -> _Line:
    return {
        "type": kind, "sessionId": "s", "parentUuid": "p", "timestamp": at(second),
        "message": message,
    } | more  # fmt: skip


def answered(name: str, second: int, new: int, read: int, **more: object) -> _Line:
    """Return an answer's line: `read` tokens came from the cache, `new` were written to it."""
    usage = {
        "input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": new,
        "cache_creation": {"ephemeral_5m_input_tokens": new, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 7,
    }  # fmt: skip
    return entry("assistant", second, {"id": name, "model": "m", "usage": usage}, **more)


def calls(read: Any, *lines: _Line) -> list[Request]:
    found = read("\n".join(map(json.dumps, lines)).encode())
    assert not found.rejects.count
    return list(found.requests)


def test_a_call_is_sent_at_the_latest_input_and_counted_once(read: Any) -> None:
    """A line for each part of the answer; summaries and failed calls are no calls."""
    first, second = calls(
        read,
        {"type": "summary", "summary": "text", "leafUuid": "u"},
        entry("user", 5, {"role": "user", "content": "text"}),
        answered("a", 9, 64, 0),
        answered("a", 11, 64, 0),
        entry("user", 20, "text"),
        entry("assistant", 21, {"id": "x", "model": "<synthetic>", "usage": {"input_tokens": 0}}),
        answered("b", 24, 32, 64),
    )
    assert (first.input_tokens, second.input_tokens) == (64, 96)
    assert second.arrival_s - first.arrival_s == 15
    assert (first.duration_s, second.duration_s) == (4, 4)
    assert second.cached_tokens == 64
    assert second.hash_ids[:4] == first.hash_ids


def test_what_was_not_found_has_expired_or_was_changed(read: Any) -> None:
    """After five minutes a miss says nothing of the prompt; before, it was another one."""
    whole, expired, changed, compacted = (
        call.hash_ids
        for call in calls(
            read,
            answered("a", 0, 64, 0),
            answered("b", 400, 96, 0),
            answered("c", 420, 96, 32),
            answered("d", 900, 48, 32),
        )
    )
    assert expired[:4] == whole
    assert changed[:2] == expired[:2]
    assert not {*changed[2:]} & {*expired}
    assert compacted[:2] == changed[:2]
    assert not {*compacted[2:]} & {*changed}


def test_sub_agents_have_sessions_of_their_own(read: Any) -> None:
    requests = calls(
        read,
        answered("a", 0, 64, 0),
        answered("b", 1, 64, 0, agentId="k", isSidechain=True),
        answered("c", 2, 64, 0, isSidechain=True),
    )
    assert [request.session_id for request in requests] == ["s", "s/k", "s/sub-agents"]


def test_tokens_written_are_noted_by_how_long_they_are_kept(read: Any) -> None:
    lines = [answered("a", 0, 64, 0), answered("b", 9, 16, 64)]
    found = read("\n".join(map(json.dumps, lines)).encode())
    assert "cache writes: 80 tokens for 5 min, 0 for 1 h" in found.reader.all_notes()


def test_codex_counts_the_same_call_again_when_its_limits_change(read: Any) -> None:
    """The session, then the model, come before; input is sent by the user or by a tool."""

    def counted(second: int, total: int, last: int) -> _Line:
        usage = {"input_tokens": last, "cached_input_tokens": last // 2, "output_tokens": 3}
        info = {"total_token_usage": {"input_tokens": total}, "last_token_usage": usage}
        payload = {"type": "token_count", "info": info, "rate_limits": {"second": second}}
        return {"timestamp": at(second), "type": "event_msg", "payload": payload}

    lines = [
        {"timestamp": at(0), "type": "session_meta", "payload": {"id": "s"}},
        {"timestamp": at(0), "type": "turn_context", "payload": {"model": "g"}},
        {
            "timestamp": at(1),
            "type": "response_item",
            "payload": {"type": "message", "role": "user"},
        },
        {"timestamp": at(2), "type": "event_msg", "payload": {"type": "token_count", "info": None}},
        counted(5, 100, 100),
        counted(6, 100, 100),
        {"timestamp": at(8), "type": "response_item", "payload": {"type": "function_call_output"}},
        counted(9, 250, 150),
    ]
    first, second = calls(read, *lines)
    assert (first.input_tokens, second.input_tokens) == (100, 150)
    assert second.arrival_s - first.arrival_s == 7
    assert (second.session_id, second.model, second.cached_tokens) == ("s", "g", 75)
    assert second.hash_ids[:6] == first.hash_ids
