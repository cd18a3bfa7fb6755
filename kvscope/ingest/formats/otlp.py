"""OpenTelemetry spans of LLM requests as OTLP JSON: a line is an export request or a span.

Spans with a number of input tokens are requests; other spans are left out. If a client library and
its instrumentation both record a request, the second span is left out too. vLLM's spans count
prompt and completion tokens and have latencies in seconds. Source: OpenTelemetry GenAI semantic
conventions (gen_ai.usage.*); OpenInference (llm.token_count.*); OTLP's JSON encoding;
vLLM 0.32.0, vllm/tracing/utils.py and vllm/v1/engine/output_processor.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kvscope.ingest.formats.base import (
    TOO_DEEP,
    UNREAD_PROMPTS,
    UNUSABLE,
    BadLine,
    LineFormat,
    ReadOptions,
    Records,
    Request,
    Service,
    between,
)
from kvscope.ingest.limits import MAX_NESTING
from kvscope.ingest.source import Source

_NS = 1_000_000_000
_BEYOND = 2**64
SPANS = ("resourceSpans", "spanId attributes")
"""Keys of lines, as `marks` of a format: of an export request, or of a span."""
INPUT_MESSAGES = "gen_ai.input.messages"

_INPUTS = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
)  # fmt: skip
_OUTPUTS = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
)  # fmt: skip
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read",
)  # fmt: skip
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens", "llm.token_count.prompt_details.cache_write",
)  # fmt: skip
_MODEL = (
    "gen_ai.response.model", "gen_ai.request.model", "lmcache.model", "llm.model_name",
)  # fmt: skip
_PROVIDER = ("gen_ai.provider.name", "gen_ai.system", "llm.provider")
_BESIDE = "input tokens do not count what was read from the cache or written to it: both are added"
TWICE = "second spans of a request, by another instrumentation"
_RECENT_KEYS, _RECENT_SPANS = 65_536, 16
_NO_TOKENS = "spans without a number of input tokens"
_SESSION = ("gen_ai.conversation.id", "session.id", "session_id")
_USER = ("user.id", "enduser.id")
_TTFT = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
_QUEUE = ("gen_ai.latency.time_in_queue",)
_DURATION = ("gen_ai.latency.e2e",)

Values = Mapping[str, Any]
"""The attributes of a span as plain values."""


class _Attribute(msgspec.Struct, gc=False):
    key: str
    value: dict[str, Any] | None = None


class _Event(msgspec.Struct, gc=False):
    attributes: list[_Attribute] = []


class OtlpSpan(msgspec.Struct, gc=False, rename="camel"):
    """A span, with the fields that may describe a request.

    `written_by` is the name of the instrumentation scope, the library that wrote the span; empty if
    the line does not name it, as for spans outside of export requests.
    """

    trace_id: str | None = None
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: list[_Attribute] = []
    events: list[_Event] = []
    status: Any = None
    written_by: str = ""  # the name of its scope

    @property
    def failed(self) -> bool:
        """Whether the span ended with an error."""
        code = self.status.get("code") if isinstance(self.status, dict) else None
        return code in {2, "STATUS_CODE_ERROR"}

    def values(self) -> Values:
        """Return the attributes by key: the events', overridden by the span's. Raises BadLine."""
        events = (each for event in self.events for each in event.attributes)
        return {each.key: _plain(each.value) for each in (*events, *self.attributes)}

    def service(self, values: Values) -> Service:
        """Return the times (s), ids and cached tokens of a `Request`; BadLine for invalid times."""
        start_s = _seconds(self.start_time_unix_nano)
        end_s = _seconds(self.end_time_unix_nano)
        duration_s = _number(values, _DURATION)
        return Service(
            arrival_s=start_s,
            session_id=_text(values, _SESSION),
            user_id=_text(values, _USER),
            model=_text(values, _MODEL),
            ttft_s=_number(values, _TTFT),
            queue_s=_number(values, _QUEUE),
            duration_s=between(start_s, end_s) if duration_s is None else duration_s,
            cached_tokens=_count(values, _CACHED),
        )

    def facts(self, values: Values) -> dict[str, Any]:
        """Return the fields of `service`, and `input_tokens` and `output_tokens` (or None).

        Readers of chat logs set these as fields of a request. Raises BadLine for invalid times.
        """
        inputs, outputs = _count(values, _INPUTS), _count(values, _OUTPUTS)
        return {**self.service(values), "input_tokens": inputs, "output_tokens": outputs}


class _Scope(msgspec.Struct, gc=False):
    name: str = ""


class _SpansOfScope(msgspec.Struct, gc=False):
    spans: list[OtlpSpan] = []
    scope: _Scope | None = None


class _SpansOfResource(msgspec.Struct, gc=False, rename="camel"):
    scope_spans: list[_SpansOfScope] = []


class _Line(OtlpSpan, gc=False, rename="camel"):
    """A span, or an export request with `resource_spans`."""

    resource_spans: list[_SpansOfResource] | None = None


_decode = msgspec.json.Decoder(_Line).decode


def spans_of(line: bytes) -> Iterator[OtlpSpan]:
    """Yield the spans of a line. Raises msgspec's errors."""
    decoded = _decode(line)
    if decoded.resource_spans is None:
        yield decoded
    for resource in decoded.resource_spans or ():
        for scope in resource.scope_spans:
            for span in scope.spans:
                span.written_by = "" if scope.scope is None else scope.scope.name
                yield span


def _seconds(unix_nano: int | str | None) -> float | None:
    return None if unix_nano is None else _whole(unix_nano) / _NS


def _whole(value: Any) -> int:
    """Return a whole number, also from a string, as OTLP's JSON writes 64-bit integers."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = _BEYOND
    if abs(number) >= _BEYOND:
        raise BadLine("expected a whole number", value)
    return number


def _plain(value: Any, depth: int = 0) -> Any:
    """Return an AnyValue of OTLP, `depth` levels deep, as a plain value; None if unknown."""
    if depth > MAX_NESTING:
        raise BadLine(TOO_DEEP)
    if not isinstance(value, dict):
        return None
    for kind in ("stringValue", "boolValue", "doubleValue"):
        if kind in value:
            return value[kind]
    if "intValue" in value:
        return _whole(value["intValue"])
    nested = value.get("arrayValue", value.get("kvlistValue"))
    inner = nested.get("values") if isinstance(nested, dict) else None
    if not isinstance(inner, list):
        return None
    if "arrayValue" in value:
        return [_plain(each, depth + 1) for each in inner]
    pairs = [each for each in inner if isinstance(each, dict)]
    return {str(each.get("key")): _plain(each.get("value"), depth + 1) for each in pairs}


def _count(values: Values, names: Sequence[str]) -> int | None:
    number = _number(values, names)
    return None if number is None else int(number)


def _number(values: Values, names: Sequence[str]) -> float | None:
    """Return the first value under `names` that is a finite number from 0 on, else None."""
    numbers = (values.get(name) for name in names)
    return next(
        (x for x in numbers if isinstance(x, int | float) and 0 <= x < float("inf")),
        None,
    )


def _text(values: Values, names: Sequence[str]) -> str | None:
    return next((str(values[name]) for name in names if values.get(name)), None)


class CachedBeside:
    """Providers whose instrumentation does not count cached tokens as input tokens.

    A span with more cached than input tokens shows that its provider is one of them.

    Source: OpenTelemetry semantic conventions for Anthropic (input_tokens excludes cached ones).
    """

    def __init__(self) -> None:
        self._providers: set[str | None] = set()

    def learn(self, head: bytes) -> None:
        """Find providers that count cached tokens apart, in the first bytes of a trace."""
        for line in head.split(b"\n")[:-1]:
            with suppress(*UNUSABLE):
                for span in spans_of(line):
                    self.input_tokens(span.values())

    def input_tokens(self, values: Values) -> tuple[int | None, bool]:
        """Return a prompt's tokens (None: not stated), and whether cached ones were added."""
        inputs = _count(values, _INPUTS)
        cached = (_count(values, _CACHED) or 0) + (_count(values, _WRITTEN) or 0)
        if inputs is None or not cached:
            return inputs, False
        provider = _text(values, _PROVIDER)
        if cached > inputs:
            self._providers.add(provider)
        beside = provider in self._providers
        return inputs + cached * beside, beside


class RecordedTwice:
    """Finds the second spans of requests that two instrumentations have recorded.

    Both spans have the same trace, model and number of input tokens, and one lies within the time
    of the other. Remembers a bounded number of first spans, the most recent.
    """

    def __init__(self) -> None:
        self._recent: dict[object, deque[tuple[str, int, int]]] = {}

    def __call__(self, span: OtlpSpan, values: Values) -> bool:
        """Return True for a second span. Raises BadLine for invalid times."""
        inputs, start, end = (
            _count(values, _INPUTS),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
        )
        if inputs is None or span.trace_id is None or start is None or end is None:
            return False
        begin, after = _whole(start), _whole(end)
        key = span.trace_id, _text(values, _MODEL), inputs
        earlier = self._recent.pop(key, deque(maxlen=_RECENT_SPANS))
        self._recent[key] = earlier  # the last one now
        for other in earlier:
            writer, first, last = other
            within = (first <= begin and after <= last) or (begin <= first and last <= after)
            if writer != span.written_by and within:
                earlier.remove(other)
                return True
        earlier.append((span.written_by, begin, after))
        if len(self._recent) > _RECENT_KEYS:
            del self._recent[next(iter(self._recent))]
        return False


class OtlpSpans(LineFormat):
    """OTLP JSON with GenAI or vLLM spans: lengths only."""

    name = "otlp"
    summary = "OTLP JSON lines of GenAI and vLLM spans: lengths, times; no hashes"
    source = "OpenTelemetry GenAI semantic conventions; vLLM 0.32.0 (vllm/tracing)"
    fields = ("resourceSpans",)
    marks = SPANS
    default_block_size = 16
    has_hashes = False

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._beside = CachedBeside()
        self._twice = RecordedTwice()

    def records(self, source: Source) -> Iterator[Records]:
        self._beside.learn(source.head)
        return super().records(source)

    def parse(self, line: bytes) -> Sequence[Request] | None:
        return [*self._requests(line)] or None

    def _requests(self, line: bytes) -> Iterator[Request]:
        for span in spans_of(line):
            values = span.values()
            inputs, beside = self._beside.input_tokens(values)
            if inputs is None:
                self.left_out[_NO_TOKENS] += 1
                continue
            if self._twice(span, values):
                self.left_out[TWICE] += 1
                continue
            if INPUT_MESSAGES in values:
                self.note(UNREAD_PROMPTS)
            if beside:
                self.note(_BESIDE)
            yield Request(
                input_tokens=inputs,
                output_tokens=_count(values, _OUTPUTS) or 0,
                **span.service(values),
            )
