"""OpenTelemetry spans of LLM requests as OTLP JSON, one export request a line: lengths and times.

Spans with a number of input tokens are requests; all others are left out. vLLM's spans count
prompt and completion tokens and have latencies in seconds. Source: OpenTelemetry GenAI semantic
conventions (gen_ai.usage.*); OTLP's JSON encoding; vLLM 0.32.0, vllm/tracing/utils.py and
vllm/v1/engine/output_processor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kvscope.ingest.formats.base import BadLine, LineReader, ReadOptions, Request, TraceFormat
from kvscope.ingest.formats.json_lines import common_keys

_NS = 1_000_000_000
_INPUTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens",)
_MODEL = ("gen_ai.response.model", "gen_ai.request.model")
_SESSION = ("gen_ai.conversation.id",)
_TTFT = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
_QUEUE = ("gen_ai.latency.time_in_queue",)
_DURATION = ("gen_ai.latency.e2e",)
_MESSAGES = ("gen_ai.input.messages",)
_PROMPTS = "prompts are logged but not read: `kvscope hash` makes a trace with block hashes of them"


class _SpanValue(msgspec.Struct, gc=False, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None  # OTLP's JSON writes 64-bit integers as strings
    double_value: float | None = None


class _SpanAttribute(msgspec.Struct, gc=False):
    key: str
    value: _SpanValue | None = None


class _LlmSpan(msgspec.Struct, gc=False, rename="camel"):
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str | None = None
    attributes: list[_SpanAttribute] = []


class _SpansOfScope(msgspec.Struct, gc=False):
    spans: list[_LlmSpan] = []


class _SpansOfResource(msgspec.Struct, gc=False, rename="camel"):
    scope_spans: list[_SpansOfScope] = []


class _ExportLine(msgspec.Struct, gc=False, rename="camel"):
    resource_spans: list[_SpansOfResource]


class _OtlpReader(LineReader):
    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._decode = msgspec.json.Decoder(_ExportLine).decode

    def parse(self, line: bytes) -> Sequence[Request] | None:
        export = self._decode(line)
        spans = (
            span
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        return [*self._requests(spans)] or None

    def _requests(self, spans: Iterator[_LlmSpan]) -> Iterator[Request]:
        for span in spans:
            values = {each.key: each.value for each in span.attributes if each.value is not None}
            inputs = _number(values, _INPUTS)
            if inputs is None:
                continue
            if any(name in values for name in _MESSAGES) and _PROMPTS not in self.notes:
                self.notes.append(_PROMPTS)
            start_ns = _whole("startTimeUnixNano", span.start_time_unix_nano)
            duration_s = _number(values, _DURATION)
            if duration_s is None and span.end_time_unix_nano is not None:
                end_ns = _whole("endTimeUnixNano", span.end_time_unix_nano)
                duration_s = (end_ns - start_ns) / _NS
            cached = _number(values, _CACHED)
            yield Request(
                input_tokens=int(inputs),
                output_tokens=int(_number(values, _OUTPUTS) or 0),
                arrival_s=start_ns / _NS,
                session_id=_text(values, _SESSION),
                model=_text(values, _MODEL),
                ttft_s=_number(values, _TTFT),
                queue_s=_number(values, _QUEUE),
                duration_s=duration_s,
                cached_tokens=None if cached is None else int(cached),
            )


def _number(values: dict[str, _SpanValue], names: Sequence[str]) -> float | None:
    """Return the first of the attributes called `names` that is a number."""
    for name in names:
        if value := values.get(name):
            if value.int_value is not None:
                return _whole(name, value.int_value)
            if value.double_value is not None:
                return value.double_value
    return None


def _text(values: dict[str, _SpanValue], names: Sequence[str]) -> str | None:
    texts = (value.string_value for name in names if (value := values.get(name)))
    return next((text for text in texts if text), None)


def _whole(name: str, value: int | str) -> int:
    digits = str(value)
    if len(digits) > 20 or not digits.removeprefix("-").isdecimal():
        raise BadLine(f"expected a whole number in {name}: {digits[:40]!r}")
    return int(digits)


class OtlpSpans(TraceFormat):
    """OTLP JSON with GenAI or vLLM spans: lengths only."""

    name = "otlp"
    summary = "OTLP JSON lines of GenAI and vLLM spans: lengths, times; no hashes"
    source = "OpenTelemetry GenAI semantic conventions; vLLM 0.32.0 (vllm/tracing)"
    fields = ("resourceSpans",)
    default_block_size = 16
    reader = _OtlpReader
    has_hashes = False

    @classmethod
    def recognizes(cls, head: bytes) -> bool:
        """Return True if the lines are export requests of traces."""
        return "resourceSpans" in common_keys(head)
