"""Dynamo's request traces: JSON lines of events, one for the end of each request.

In Dynamo's files a line holds an `event` and the time since the file was opened. Hashes are chained
and cover the prompt with its last partial block. Source: ai-dynamo/dynamo, dynamo-llm 1.4.1,
lib/llm/src/request_trace (types.rs, replay.rs) and lib/llm/src/telemetry/jsonl.rs.
"""

from __future__ import annotations

import msgspec

from kvscope.ingest.formats.base import (
    UNREAD_PROMPTS,
    BadLine,
    Identifier,
    Request,
    common_keys,
    in_seconds,
    named,
)
from kvscope.ingest.formats.json_lines import RowFormat

_REQUEST = "request_end"
_TOOLS = "tool events (a closed loop takes think times from arrivals and durations)"


class _AgentContext(msgspec.Struct, gc=False):
    session_id: Identifier | None = None
    parent_session_id: Identifier | None = None


class _DynamoWorker(msgspec.Struct, gc=False):
    prefill_worker_id: Identifier | None = None
    prefill_dp_rank: int | None = None
    decode_worker_id: Identifier | None = None
    decode_dp_rank: int | None = None

    def name(self) -> Identifier | None:
        """Return the prefill worker, else the decode worker, with its rank unless the rank is 0."""
        worker, rank = self.prefill_worker_id, self.prefill_dp_rank
        if worker is None:
            worker, rank = self.decode_worker_id, self.decode_dp_rank
        return f"{worker}/{rank}" if worker is not None and rank else worker


class _ReplayMetrics(msgspec.Struct, gc=False):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: list[int | str]


class _RequestMetrics(msgspec.Struct, gc=False):
    request_id: Identifier | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    request_received_ms: float | None = None
    prefill_wait_time_ms: float | None = None
    ttft_ms: float | None = None
    total_time_ms: float | None = None
    worker: _DynamoWorker | None = None
    replay: _ReplayMetrics | None = None


class _DynamoEvent(msgspec.Struct, gc=False):
    event_type: str | None = None
    event_time_unix_ms: float | None = None
    agent_context: _AgentContext | None = None
    request: _RequestMetrics | None = None


class _DynamoRow(_DynamoEvent, gc=False):
    event: _DynamoEvent | None = None


class DynamoTraces(RowFormat):
    """Dynamo's request traces (schema dynamo.request.trace.v1)."""

    name = "dynamo"
    summary = "Dynamo request traces (v1): sessions, workers, measured times"
    source = "ai-dynamo/dynamo, dynamo-llm 1.4.1 (request_trace)"
    fields = ("schema", "event_type", "event_time_unix_ms", "request")
    default_block_size = 64
    row = _DynamoRow
    redundant = frozenset({"timestamp"})

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the lines are events, or hold them in `event`."""
        keys = common_keys(head)
        wrapped = "event" in keys and b'"event_time_unix_ms"' in head
        return wrapped or "event_time_unix_ms" in keys

    def request(self, line: _DynamoRow) -> Request | None:
        row = line.event or line
        if row.event_type is None:
            raise BadLine("Object missing required field `event_type`")
        if row.event_type != _REQUEST:
            tool = row.event_type.startswith("tool_")
            self.left_out[_TOOLS if tool else f"{named(row.event_type)} records"] += 1
            if row.event_type == "request_payload":
                self.note(UNREAD_PROMPTS)
            return None
        ended = row.request
        if ended is None:
            raise BadLine("Object missing required field `request`")
        replay, context, arrival_ms = ended.replay, row.agent_context, ended.request_received_ms
        inputs = ended.input_tokens if replay is None else replay.input_length
        if inputs is None:
            raise BadLine(
                "Object missing required field `replay` or `input_tokens` - at `$.request`"
            )
        if arrival_ms is None and row.event_time_unix_ms is not None:
            arrival_ms = row.event_time_unix_ms - (ended.total_time_ms or 0.0)
        sub_agent = context is not None and context.parent_session_id is not None
        return Request(
            input_tokens=inputs,
            output_tokens=ended.output_tokens or 0,
            arrival_s=in_seconds(arrival_ms),
            hash_ids=None if replay is None else replay.input_sequence_hashes,
            block_size=None if replay is None else replay.trace_block_size,
            chat_id=ended.request_id,
            session_id=None if context is None else context.session_id,
            type=None if context is None else "subagent" if sub_agent else "agent",
            model=ended.model,
            worker=None if ended.worker is None else ended.worker.name(),
            ttft_s=in_seconds(ended.ttft_ms),
            queue_s=in_seconds(ended.prefill_wait_time_ms),
            duration_s=in_seconds(ended.total_time_ms),
            cached_tokens=ended.cached_tokens,
        )
