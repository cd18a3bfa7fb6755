"""LiteLLM's StandardLoggingPayload, one a line: lengths, times and what the provider cached.

Failed calls, calls that are no completions and answers from LiteLLM's own response cache never
reached an engine as a prompt and are left out. Source: docs.litellm.ai, StandardLoggingPayload
specification (read 2026-11).
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvscope.ingest.formats.base import BadLine, Identifier, Request, Service, TraceFormat
from kvscope.ingest.formats.json_lines import RowReader, common_keys
from kvscope.ingest.formats.times import between, moment

_COMPLETIONS = ("completion", "text_completion")
_PROMPTS = "prompts are logged but not read: `kvscope hash` makes a trace with block hashes of them"


class TokenDetails(msgspec.Struct, gc=False):
    """The part of a prompt that the server found in its cache."""

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


class Payload(msgspec.Struct, gc=False, kw_only=True):
    """A payload, prompt and answer aside."""

    startTime: Any = None  # noqa: N815
    endTime: Any = None  # noqa: N815
    completionStartTime: Any = None  # noqa: N815
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    model_id: str | None = None
    trace_id: str | None = None
    end_user: str | None = None
    call_type: str | None = None
    status: str | None = None
    cache_hit: bool | None = None
    metadata: _Metadata | None = None

    def unserved(self) -> str | None:
        """Return why the call is no request to an engine, None if it is one."""
        if self.call_type and self.call_type.removeprefix("a") not in _COMPLETIONS:
            return "calls that are no completions"
        if self.status not in {None, "success"}:
            return "calls that failed"
        return "calls answered by LiteLLM's own cache" if self.cache_hit else None

    def service(self) -> Service:
        """Return how the call was served. Raises BadLine for times that are none."""
        start_s = moment(self.startTime, "startTime")
        end_s = moment(self.endTime, "endTime")
        first_s = moment(self.completionStartTime, "completionStartTime")
        if first_s is not None and end_s is not None and first_s >= end_s:
            first_s = None  # not streamed: the time of the first token is not known
        metadata = self.metadata or _Metadata()
        return Service(
            arrival_s=start_s,
            session_id=self.trace_id,
            user_id=self.end_user or metadata.user_api_key_user_id,
            model=self.model,
            worker=self.model_id or None,
            ttft_s=between(start_s, first_s),
            duration_s=between(start_s, end_s),
            cached_tokens=(metadata.usage_object or Usage()).cached_tokens,
        )


class _LengthsPayload(Payload, gc=False, kw_only=True):
    id: Identifier | None = None
    messages: msgspec.Raw = msgspec.Raw()


class _PayloadRow(_LengthsPayload, gc=False, kw_only=True):
    standard_logging_object: _LengthsPayload | None = None


class _LiteLlmReader(RowReader):
    row = _PayloadRow

    def request(self, row: _PayloadRow) -> Request | None:
        payload = row.standard_logging_object or row
        if reason := payload.unserved():
            self.note(f"{reason} are left out")
            return None
        if bytes(payload.messages) not in {b"", b"null", b"[]", b"{}", b'""'}:
            self.note(_PROMPTS)
        if payload.prompt_tokens is None:
            raise BadLine("Object missing required field `prompt_tokens`")
        return Request(
            input_tokens=payload.prompt_tokens,
            output_tokens=payload.completion_tokens or 0,
            chat_id=payload.id,
            **payload.service(),
        )


class LiteLlmPayloads(TraceFormat):
    """LiteLLM's standard logging payloads: lengths only."""

    name = "litellm"
    summary = "LiteLLM logging payloads: lengths, times, cached tokens; no hashes"
    source = "docs.litellm.ai, StandardLoggingPayload specification"
    fields = ("startTime", "endTime", "prompt_tokens", "completion_tokens")
    default_block_size = 16
    reader = _LiteLlmReader
    has_hashes = False

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the lines are payloads, or hold them."""
        keys = common_keys(head)
        return {"startTime", "prompt_tokens"} <= keys or "standard_logging_object" in keys
