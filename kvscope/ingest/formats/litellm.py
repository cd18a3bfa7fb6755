"""LiteLLM's StandardLoggingPayload, one a line: lengths, times and what the provider cached.

Failed calls and answers from LiteLLM's own response cache never reached an engine and are left
out. Source: docs.litellm.ai, StandardLoggingPayload specification (read 2026-11).
"""

from __future__ import annotations

import msgspec

from kvscope.ingest.formats.base import Identifier, Request, TraceFormat
from kvscope.ingest.formats.json_lines import RowReader, common_keys

_PROMPTS = "prompts are logged but not read: `kvscope hash` makes a trace with block hashes of them"
_UNSERVED = "failed calls and answers from LiteLLM's response cache are left out"


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _PayloadUsage(msgspec.Struct, gc=False):
    prompt_tokens_details: _PromptDetails | None = None


class _PayloadMetadata(msgspec.Struct, gc=False):
    usage_object: _PayloadUsage | None = None


class _LiteLlmRow(msgspec.Struct, gc=False, rename={"start_s": "startTime", "end_s": "endTime"}):
    start_s: float
    prompt_tokens: int
    completion_tokens: int
    end_s: float | None = None
    first_token_s: float | None = msgspec.field(name="completionStartTime", default=None)
    status: str | None = None
    cache_hit: bool | None = None
    model: str | None = None
    model_id: Identifier | None = None
    trace_id: Identifier | None = None
    end_user: Identifier | None = None
    messages: msgspec.Raw = msgspec.Raw()
    metadata: _PayloadMetadata | None = None


class _LiteLlmReader(RowReader):
    row = _LiteLlmRow

    def request(self, row: _LiteLlmRow) -> Request | None:
        if row.status == "failure" or row.cache_hit:
            self.note(_UNSERVED)
            return None
        if bytes(row.messages) not in {b"", b"null", b"[]", b"{}", b'""'}:
            self.note(_PROMPTS)
        usage = row.metadata and row.metadata.usage_object
        details = usage and usage.prompt_tokens_details
        streamed = row.first_token_s is not None and row.first_token_s != row.end_s
        return Request(
            input_tokens=row.prompt_tokens,
            output_tokens=row.completion_tokens,
            arrival_s=row.start_s,
            session_id=row.trace_id,
            user_id=row.end_user or None,
            model=row.model,
            worker=row.model_id or None,
            ttft_s=row.first_token_s - row.start_s if streamed and row.first_token_s else None,
            duration_s=None if row.end_s is None else row.end_s - row.start_s,
            cached_tokens=details.cached_tokens if details else None,
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
        """Return True if the lines carry a start and prompt tokens as LiteLLM spells them."""
        return {"startTime", "prompt_tokens"} <= common_keys(head)
