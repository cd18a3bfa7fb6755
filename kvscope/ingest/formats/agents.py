"""Agents' rounds and calls with lengths and without hashes: TraceLab, Claude Code and Codex.

Block ids follow from lengths: prompts begin like the session's previous one; the rest is new.

A round of TraceLab states its prompt's cached prefix and new input, and its output with reasoning;
a session's rounds are in order. A round is sent at its latest user message or tool result. Source:
ai-dynamo/aiperf, src/aiperf/dataset/loader/_tracelab_convert.py, commit 018a03f; uw-syfi/TraceLab,
example_sessions/derived/README.md, commit 0b8a262.

Transcripts of coding agents (Claude Code's session files, Codex's rollouts) hold the usage of each
call, and text, which is not read. A session appends, so a call repeats the whole previous prompt.
Two kinds of calls repeat only the tokens that the provider reports as cached: calls with a shorter
prompt (a compacted history), and calls to Anthropic before the previous prompt's cache expires. A
call is sent at the latest user message or tool result before its answer.
"""

from __future__ import annotations

import reprlib
from typing import Any

import msgspec

from kvscope.ingest.formats.base import BadLine, Identifier, ReadOptions, Request, between, moment
from kvscope.ingest.formats.json_lines import RowFormat
from kvscope.ingest.limits import MAX_HASH_IDS, MAX_TOKENS

BLOCK_SIZE = 16
_INPUT_EVENTS = frozenset({"user_message", "tool_result"})
_OUTPUT_EVENTS = frozenset({"text", "reasoning", "tool_call"})
_FROM_PREFIXES = "block ids follow from cached prefixes: nothing is shared between sessions"


class _Rounds(RowFormat):
    """Agent rounds without hashes: each prompt begins like the previous prompt of its session."""

    default_block_size = BLOCK_SIZE

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._size = options.block_size or BLOCK_SIZE
        self._paths: dict[Identifier, list[int]] = {}
        self._next = 1

    def _round(
        self, session: Identifier, total: int, repeated: int, outputs: int, **others: Any
    ) -> Request:
        """Return the request: the first `repeated` of `total` tokens repeat the previous prompt.

        `outputs`: output tokens; `others`: fields of `Request`. Empty or too long: BadLine.
        """
        if not 1 <= total <= MAX_TOKENS:
            raise BadLine(f"input tokens must be 1 to {MAX_TOKENS:,}: {reprlib.repr(total)}")
        if total // self._size > MAX_HASH_IDS:
            raise BadLine(f"request with more than {MAX_HASH_IDS:,} blocks: use larger ones")
        kept = self._paths.get(session, [])[: max(min(repeated, total), 0) // self._size]
        new = total // self._size - len(kept)
        path = [*kept, *range(self._next, self._next + new)]
        self._next += new
        self._paths[session] = path
        return Request(
            input_tokens=total,
            output_tokens=outputs,
            hash_ids=[*path],
            block_size=self._size,
            session_id=session,
            type="agent",
            **others,
        )


class _TimingEvent(msgspec.Struct, gc=False):
    event_type: str | None = None
    timestamp: str | None = None


class _TraceLabRow(msgspec.Struct, gc=False):
    session_id: Identifier
    input_tokens_total: int
    prefix_tokens: int
    round_index: int | None = None
    output_tokens: int | None = None
    model: str | None = None
    user: Identifier | None = None
    timing_events: list[_TimingEvent] | None = None


class TraceLab(_Rounds):
    """TraceLab JSONL, one round per line."""

    name = "tracelab"
    summary = "TraceLab agent rounds: blocks follow from reported prefixes"
    source = "aiperf, src/aiperf/dataset/loader/_tracelab_convert.py (commit 018a03f)"
    fields = ("session_id", "round_index", "input_tokens_total", "prefix_tokens")
    marks = ("input_tokens_total prefix_tokens",)
    redundant = frozenset({"newly_append_tokens", "reasoning_output_tokens"})
    row = _TraceLabRow

    def request(self, row: _TraceLabRow) -> Request:
        self.note(_FROM_PREFIXES)
        arrival_s, duration_s = _times(row.timing_events or [])
        return self._round(
            row.session_id,
            row.input_tokens_total,
            row.prefix_tokens,
            row.output_tokens or 0,
            arrival_s=arrival_s,
            user_id=row.user,
            model=row.model,
            duration_s=duration_s,
            cached_tokens=row.prefix_tokens,
        )


def _times(events: list[_TimingEvent]) -> tuple[float | None, float | None]:
    """Return when a round is sent (s since 1970), and the time (s) until its last output."""
    inputs_s, outputs_s = _moments(events, _INPUT_EVENTS), _moments(events, _OUTPUT_EVENTS)
    if not inputs_s and not outputs_s:
        return None, None
    arrival_s = max(inputs_s) if inputs_s else min(outputs_s)
    return arrival_s, max(max(outputs_s) - arrival_s, 0.0) if outputs_s else None


def _moments(events: list[_TimingEvent], kinds: frozenset[str]) -> list[float]:
    times_s = (moment(each.timestamp, "timestamp") for each in events if each.event_type in kinds)
    return [time_s for time_s in times_s if time_s is not None]


_FROM_LENGTHS = "block ids follow from the lengths of calls: nothing is shared between sessions"
_LIFETIME_S = 300.0  # of a cached block of Anthropic's after its last use, at least


class _CacheWrites(msgspec.Struct, gc=False):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _CacheWrites | None = None
    cached_input_tokens: int | None = None


class _Transcript(_Rounds):
    """Reader of calls; keeps each session's last call (prompt length, time) and input (time)."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._sent_s: dict[Identifier, float | None] = {}
        self._last: dict[Identifier, tuple[int, float | None]] = {}  # input tokens, and when

    def _call(
        self,
        session: Identifier,
        total: int,
        cached: int,
        usage: _Usage,
        model: str | None,
        at_s: float | None,
        lifetime_s: float = 0.0,
    ) -> Request:
        self.note(_FROM_LENGTHS)
        sent_s = self._sent_s.pop(session, None)
        sent_s = at_s if sent_s is None else sent_s
        before, before_s = self._last.get(session, (0, None))
        idle_s = between(before_s, sent_s)
        expired = idle_s is None or idle_s >= lifetime_s
        kept = before if total >= before and expired else min(cached, before)
        call = self._round(
            session,
            total,
            kept,
            usage.output_tokens,
            arrival_s=sent_s,
            model=model,
            duration_s=between(sent_s, at_s) or None,
            cached_tokens=cached,
        )
        self._last[session] = total, at_s
        return call


class _Message(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None


class _ClaudeRow(msgspec.Struct, gc=False):
    type: str | None = None
    sessionId: str | None = None  # noqa: N815
    agentId: str | None = None  # noqa: N815
    isSidechain: bool | None = None  # noqa: N815
    requestId: str | None = None  # noqa: N815
    timestamp: str | None = None
    message: _Message | str | None = None


class ClaudeCode(_Transcript):
    """Session files of Claude Code, one per session: `~/.claude/projects/*/*.jsonl`."""

    name = "claude-code"
    summary = "Claude Code transcripts: usage per call; blocks follow from lengths"
    source = "transcripts of Claude Code 2.1"
    fields = ("sessionId", "parentUuid", "message")
    marks = ("sessionId parentUuid",)
    row = _ClaudeRow

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._known: set[tuple[str | None, str | None]] = set()
        self._writes = _CacheWrites()

    @classmethod
    def unread(cls, head: bytes) -> list[str]:  # noqa: ARG003
        """Return no fields: the unread fields hold no times or lengths of calls."""
        return []

    def all_notes(self) -> list[str]:
        """Return the notes on the trace, also on tokens written to the provider's cache, if any."""
        short, long = (
            self._writes.ephemeral_5m_input_tokens,
            self._writes.ephemeral_1h_input_tokens,
        )
        wrote = f"cache writes: {short:,} tokens for 5 min, {long:,} for 1 h"
        return [*super().all_notes(), *([wrote] if short or long else [])]

    def request(self, row: _ClaudeRow) -> Request | None:
        message = row.message if isinstance(row.message, _Message) else None
        agent = row.agentId or ("sub-agents" if row.isSidechain else None)
        session = "/".join(filter(None, (row.sessionId, agent)))
        if row.type == "user":
            self._sent_s[session] = moment(row.timestamp, "timestamp")
        if row.type != "assistant" or message is None or message.usage is None:
            return None
        usage, call = message.usage, (message.id, row.requestId)
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        total = usage.input_tokens + cached + written
        if not total or call in self._known:  # a line for each part of the answer
            return None
        if message.id is not None:
            self._known.add(call)
        if (writes := usage.cache_creation) is not None:
            self._writes.ephemeral_5m_input_tokens += writes.ephemeral_5m_input_tokens
            self._writes.ephemeral_1h_input_tokens += writes.ephemeral_1h_input_tokens
        at_s = moment(row.timestamp, "timestamp")
        return self._call(session, total, cached, usage, message.model, at_s, _LIFETIME_S)


class _TokenCounts(msgspec.Struct, gc=False):
    last_token_usage: _Usage | None = None
    total_token_usage: _Usage | None = None


class _Payload(msgspec.Struct, gc=False):
    type: str | None = None
    id: str | None = None
    role: str | None = None
    model: str | None = None
    info: _TokenCounts | None = None


class _CodexRow(msgspec.Struct, gc=False):
    type: str
    payload: _Payload | str | None = None
    timestamp: str | None = None


_INPUTS = frozenset({"function_call_output", "custom_tool_call_output", "user_message"})


class Codex(_Transcript):
    """Rollouts of Codex, one per session: `~/.codex/sessions/**/rollout-*.jsonl`."""

    name = "codex"
    summary = "Codex rollouts: usage per call; blocks follow from lengths"
    source = "rollouts of Codex CLI 0.156"
    fields = ("timestamp", "type", "payload")
    marks = ("timestamp type payload",)
    row = _CodexRow
    redundant = frozenset({"ordinal"})

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._session = ""
        self._model: str | None = None
        self._total: _Usage | None = None

    def request(self, row: _CodexRow) -> Request | None:
        payload = row.payload if isinstance(row.payload, _Payload) else _Payload()
        if row.type == "session_meta":
            self._session, self._total = payload.id or self._session, None
        elif row.type == "turn_context":
            self._model = payload.model or self._model
        elif payload.type in _INPUTS or payload.role == "user":
            self._sent_s[self._session] = moment(row.timestamp, "timestamp")
        if payload.type != "token_count" or payload.info is None:
            return None
        usage, total = payload.info.last_token_usage, payload.info.total_token_usage
        if usage is None or not usage.input_tokens or (total is not None and total == self._total):
            return None  # counted before: limits alone have changed
        self._total = total
        if not self._session:
            raise BadLine("no session_meta before this call")
        cached = usage.cached_input_tokens or 0
        at_s = moment(row.timestamp, "timestamp")
        return self._call(self._session, usage.input_tokens, cached, usage, self._model, at_s)
