"""LiteLLM's logging payloads and spend logs: lengths, times and what the provider cached.

A payload is a JSON line. A row of the spend-log table is a JSON line or a CSV line, with flags and
objects as strings. Failed calls, calls without a prompt and answers from LiteLLM's own cache never
reached an engine and are left out. Source: litellm 1.110.2, types/utils.py (CallTypes,
StandardLoggingPayload) and proxy/_types.py (SpendLogsPayload).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvscope.ingest.formats.base import (
    UNREAD_PROMPTS,
    BadLine,
    Identifier,
    ReadOptions,
    Request,
    Service,
    between,
    common_keys,
    moment,
    named,
)
from kvscope.ingest.formats.json_lines import RowFormat
from kvscope.ingest.formats.lengths import csv_fields, csv_header

_PROMPTED = frozenset({
    "completion", "text_completion", "anthropic_messages", "responses", "generate_content",
    "generate_content_stream", "pass_through_endpoint", "allm_passthrough_route",
    "llm_passthrough_route", "_aresponses_websocket",
})  # fmt: skip
"""Call types with a prompt; asynchronous calls have the same names with an "a" before them."""
_UNCACHED = frozenset({"", "none", "false"})


class TokenDetails(msgspec.Struct, gc=False):
    """Details of a prompt's tokens: how many the server found in its cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """The `usage` object of OpenAI's responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """The prompt tokens found in the server's cache."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Metadata(msgspec.Struct, gc=False):
    user_api_key_user_id: str | None = None
    usage_object: Usage | None = None


_metadata_of = msgspec.json.Decoder(_Metadata).decode


class Payload(msgspec.Struct, gc=False, kw_only=True):
    """A logging payload without prompt and answer."""

    startTime: Any = None  # noqa: N815
    endTime: Any = None  # noqa: N815
    completionStartTime: Any = None  # noqa: N815
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    model_id: str | None = None
    trace_id: str | None = None
    session_id: str | None = None
    user: str | None = None
    end_user: str | None = None
    call_type: str | None = None
    status: str | None = None
    cache_hit: bool | str | None = None
    metadata: _Metadata | str | None = None

    def unserved(self) -> str | None:
        """Return why the call is no request to an engine, None if it is one."""
        kind = self.call_type or ""
        if kind and not {kind, kind.removeprefix("a")} & _PROMPTED:
            return f"calls of the kind {named(kind)}"
        if self.status not in {None, "", "success"}:
            return "calls that failed"
        cached = str(self.cache_hit).lower() not in _UNCACHED
        return "calls answered by LiteLLM's own cache" if cached else None

    def service(self) -> Service:
        """Return times (s), ids and cached tokens. Raises BadLine for invalid times."""
        start_s = moment(self.startTime, "startTime")
        end_s = moment(self.endTime, "endTime")
        first_s = moment(self.completionStartTime, "completionStartTime")
        if first_s is not None and end_s is not None and first_s >= end_s:
            first_s = None  # not streamed: the time of the first token is not known
        metadata = self.metadata or _Metadata()
        if isinstance(metadata, str):
            metadata = _metadata_of(metadata)
        return Service(
            arrival_s=start_s,
            session_id=self.session_id or self.trace_id,
            user_id=self.end_user or self.user or metadata.user_api_key_user_id,
            model=self.model,
            worker=self.model_id or None,
            ttft_s=between(start_s, first_s),
            duration_s=between(start_s, end_s),
            cached_tokens=(metadata.usage_object or Usage()).cached_tokens,
        )


class _LengthsPayload(Payload, gc=False, kw_only=True):
    id: Identifier | None = None
    request_id: Identifier | None = None
    messages: msgspec.Raw = msgspec.Raw()


class _PayloadRow(_LengthsPayload, gc=False, kw_only=True):
    standard_logging_object: _LengthsPayload | None = None


class LiteLlmPayloads(RowFormat):
    """LiteLLM's standard logging payloads and spend logs: lengths only."""

    name = "litellm"
    summary = "LiteLLM payloads and spend logs: lengths and times, no hashes"
    source = "litellm 1.110.2 (StandardLoggingPayload, SpendLogsPayload)"
    fields = ("startTime", "endTime", "prompt_tokens", "completion_tokens")
    default_block_size = 16
    has_hashes = False
    row = _PayloadRow
    redundant = frozenset({"total_tokens", "response_time", "request_duration_ms"})

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the lines are or hold payloads, or are CSV with a payload's columns."""
        keys = common_keys(head) or {*csv_header(head)}
        return {"startTime", "prompt_tokens"} <= keys or "standard_logging_object" in keys

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._header: list[str] = []

    def parse(self, line: bytes) -> Sequence[Request] | None:
        """Return the request of a JSON line, or of a CSV line below the header."""
        if line.lstrip().startswith(b"{"):
            return super().parse(line)
        fields = csv_fields(line)
        if not self._header or fields == self._header:
            self._header = fields
            return None
        if len(fields) != len(self._header):
            raise BadLine(f"expected {len(self._header)} columns, got {len(fields)}")
        named = {k: v for k, v in zip(self._header, fields, strict=True) if v}
        if named.pop("messages", "{}") not in {"{}", "[]"}:
            self.note(UNREAD_PROMPTS)
        request = self.request(msgspec.convert(named, _PayloadRow, strict=False))
        return None if request is None else (request,)

    def is_cut(self, line: bytes) -> bool:
        """Return True for cut JSON, or for a CSV line with fewer columns than the header."""
        commas = len(self._header) - 1
        return line.count(b",") < commas if self._header else super().is_cut(line)

    def request(self, row: _PayloadRow) -> Request | None:
        payload = row.standard_logging_object or row
        if reason := payload.unserved():
            self.left_out[reason] += 1
            return None
        if bytes(payload.messages) not in {b"", b"null", b"[]", b"{}", b'""', b'"{}"', b'"[]"'}:
            self.note(UNREAD_PROMPTS)
        if payload.prompt_tokens is None:
            raise BadLine("Object missing required field `prompt_tokens`")
        return Request(
            input_tokens=payload.prompt_tokens,
            output_tokens=payload.completion_tokens or 0,
            chat_id=payload.request_id if payload.id is None else payload.id,
            **payload.service(),
        )
