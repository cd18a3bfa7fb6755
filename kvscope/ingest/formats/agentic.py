"""Agentic Mooncake, version 2: a header, then one request per line with its dependencies.

A play is a group of sessions; hash ids are comparable only within a play. A request waits for the
end of one request: of its dependencies, the one that ends last. In traces made from weka sessions
every play starts at 0. Source: ai-dynamo/aisimulate, crates/core (AgenticMooncakeHeader,
AgenticMooncakeRow, version 2).
"""

from __future__ import annotations

import math

import msgspec

from kvscope.ingest.formats.base import BadLine, Identifier, ReadOptions, Request, in_seconds
from kvscope.ingest.formats.json_lines import RowFormat

_SCHEMA = "dynamo.agentic_mooncake"
_VERSION = 2
_AFTER_END = "completion"
_FANS = (
    "requests sent after another session's was (spawn) arrive at their recorded times: a closed"
    " loop follows what waits for an end"
)


class _WaitsFor(msgspec.Struct, gc=False):
    request_id: Identifier | None = None
    trigger: str | None = None
    delay_ms: float | None = None


class _TraceSource(msgspec.Struct, gc=False):
    format: str = ""


class _AgenticRow(msgspec.Struct, gc=False):
    """A request, which arrives at `not_before_ms`, or the header if it has a `schema`."""

    schema: str | None = None
    version: int | None = None
    request_id: Identifier | None = None
    block_size: int | None = None
    source: _TraceSource | None = None
    play_id: Identifier | None = None
    session_id: Identifier | None = None
    model: str | None = None
    input_length: int | None = None
    output_length: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    hash_ids: msgspec.Raw = msgspec.Raw()
    not_before_ms: float | None = None
    recorded_api_time_ms: float | None = None
    dependencies: list[_WaitsFor] | None = None


class AgenticMooncake(RowFormat):
    """Agentic Mooncake JSONL, version 2; older versions are read as mooncake."""

    name = "agentic-mooncake"
    summary = "Agentic Mooncake v2: plays of sessions that wait for each other"
    source = "ai-dynamo/aisimulate (dynamo.agentic_mooncake, version 2)"
    fields = ("request_id", "play_id", "not_before_ms", "input_length", "hash_ids")
    marks = ("not_before_ms", "schema hash_id_scope")
    default_block_size = 64
    places_sessions = True
    row = _AgenticRow

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._block_size: int | None = None
        self._own_clocks = False
        self._ends_ms: dict[Identifier, float] = {}  # as recorded

    def request(self, row: _AgenticRow) -> Request | None:
        if row.schema is not None:
            if row.schema != _SCHEMA or row.version != _VERSION:
                raise BadLine(f"not {_SCHEMA} version {_VERSION}: {row.schema[:40]} {row.version}")
            self._block_size = row.block_size
            self._own_clocks = row.source is not None and row.source.format == "weka"
            return None
        inputs = row.input_length if row.input_length is not None else row.input_tokens
        outputs = row.output_length if row.output_length is not None else row.output_tokens
        if inputs is None:
            raise BadLine("Object missing required field `input_length`")
        if row.not_before_ms is None:
            raise BadLine("Object missing required field `not_before_ms`")
        waits_for = self._waits_for(row)
        if row.dependencies and waits_for is None:
            self.note(_FANS)
        request_id = _in_play(row.play_id, row.request_id)
        if request_id is not None:
            self._ends_ms[request_id] = row.not_before_ms + (row.recorded_api_time_ms or 0.0)
        play = row.play_id
        session = row.session_id
        return Request(
            input_tokens=inputs,
            output_tokens=outputs or 0,
            arrival_s=in_seconds(row.not_before_ms),
            delay_s=None if waits_for is None else in_seconds(waits_for.delay_ms),
            chat_id=request_id,
            waits_for=None if waits_for is None else _in_play(play, waits_for.request_id),
            hash_ids=row.hash_ids,
            session_id=session if play is None or session is None else f"{play}/{session}",
            scope=None if play is None else str(play),
            clock=play if self._own_clocks else None,
            block_size=self._block_size,
            model=row.model,
            duration_s=in_seconds(row.recorded_api_time_ms),
        )

    def _waits_for(self, row: _AgenticRow) -> _WaitsFor | None:
        """Return the dependency on the request that ended last, as recorded; None without any.

        Dependencies with another `trigger` than the end, such as a request's dispatch, are ignored.
        """
        ends = [each for each in row.dependencies or () if each.trigger == _AFTER_END]

        def ended_ms(dependency: _WaitsFor) -> float:
            request = _in_play(row.play_id, dependency.request_id)
            return -math.inf if request is None else self._ends_ms.get(request, -math.inf)

        return max(ends, key=ended_ms, default=None)


def _in_play(play: Identifier | None, request: Identifier | None) -> Identifier | None:
    return request if play is None or request is None else f"{play}/{request}"
