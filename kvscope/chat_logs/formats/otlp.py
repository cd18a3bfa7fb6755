"""OpenTelemetry spans as OTLP JSON: GenAI spans with messages, LMCache's spans with token ids.

Source: OpenTelemetry semantic conventions for generative AI (gen_ai.input.messages and others);
LMCache, tools/cache_simulator/trace_analyze.py (mp.request.trace).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.formats.base import (
    Chat,
    LogFormat,
    LoggedRequest,
    Message,
    Tool,
    difference,
    seconds,
)
from kvscope.chat_logs.formats.openai import texts
from kvscope.ingest.formats.base import TOO_DEEP, BadLine
from kvscope.ingest.limits import MAX_NESTING

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_SYSTEM, _TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_IDS = "lmcache.input_ids"
_NO_PROMPT = "spans without messages or token ids"


class _Attribute(msgspec.Struct, gc=False):
    key: str
    value: dict[str, Any] | None = None


class _Event(msgspec.Struct, gc=False):
    attributes: list[_Attribute] = []


class _Span(msgspec.Struct, gc=False):
    startTimeUnixNano: int | str | None = None  # noqa: N815
    endTimeUnixNano: int | str | None = None  # noqa: N815
    attributes: list[_Attribute] = []
    events: list[_Event] = []


class _Scope(msgspec.Struct, gc=False):
    spans: list[_Span] = []


class _Resource(msgspec.Struct, gc=False):
    scopeSpans: list[_Scope] = []  # noqa: N815


class _Export(msgspec.Struct, gc=False):
    resourceSpans: list[_Resource] | None = None  # noqa: N815


class Otlp(LogFormat):
    """JSON lines with `resourceSpans`, or a span each."""

    name = "otlp"
    summary = "OpenTelemetry spans as OTLP JSON, with gen_ai.input.messages or LMCache's token ids"

    def __init__(self) -> None:
        super().__init__()
        self._export = msgspec.json.Decoder(_Export).decode
        self._span = msgspec.json.Decoder(_Span).decode

    @classmethod
    def recognizes(cls, keys: frozenset[str]) -> bool:
        """Return True if lines are exports or spans."""
        return "resourceSpans" in keys or {"spanId", "attributes"} <= keys

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the requests of the line's spans that have a prompt."""
        resources = self._export(line).resourceSpans
        if resources is None:
            spans = [self._span(line)]
        else:
            spans = [
                span for each in resources for scope in each.scopeSpans for span in scope.spans
            ]
        requests = []
        for span in spans:
            attributes = {each.key: each.value for each in _attributes(span)}
            if attributes.keys() & {_INPUT, _IDS}:
                values = {key: _value(value) for key, value in attributes.items()}
                requests.append(_request(span, values))
            else:
                self.left_out[_NO_PROMPT] += 1
        return requests


def _attributes(span: _Span) -> Iterator[_Attribute]:
    """Yield the attributes of a span's events and its own, which win."""
    for event in span.events:
        yield from event.attributes
    yield from span.attributes


def _request(span: _Span, values: Mapping[str, Any]) -> LoggedRequest:
    start_s = seconds(span.startTimeUnixNano, "startTimeUnixNano")
    ids = _structured(values.get(_IDS), _IDS)
    prompt = _chat(values) if ids is None else texts(ids)[0]
    if ids is not None and not isinstance(prompt, list):
        raise BadLine(f"{_IDS} are no token ids: {reprlib.repr(ids)}")
    answers = _messages(values.get(_OUTPUT), _OUTPUT)
    return LoggedRequest(
        prompt=prompt,
        response=answers[0] if answers else None,
        input_tokens=_count(values, "gen_ai.usage.input_tokens"),
        output_tokens=_count(values, "gen_ai.usage.output_tokens"),
        cached_tokens=_count(values, "gen_ai.usage.cache_read.input_tokens"),
        arrival_s=start_s,
        ttft_s=_number(values, "gen_ai.response.time_to_first_chunk"),
        duration_s=difference(start_s, seconds(span.endTimeUnixNano, "endTimeUnixNano")),
        session=_text(values, "gen_ai.conversation.id", "session.id", "session_id"),
        user=_text(values, "user.id", "enduser.id"),
        model=_text(values, "gen_ai.request.model", "lmcache.model", "gen_ai.response.model"),
    )


def _chat(values: Mapping[str, Any]) -> Chat:
    messages = _messages(values.get(_INPUT), _INPUT)
    system = _structured(values.get(_SYSTEM), _SYSTEM)
    if system:
        parts = [system] if isinstance(system, str) else system
        messages = [*_as_openai({"role": "system", "parts": parts}, _SYSTEM), *messages]
    tools = _structured(values.get(_TOOLS), _TOOLS)
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    ):
        raise BadLine(f"{_TOOLS} is no list of objects: {reprlib.repr(tools)}")
    return Chat(messages, [*map(_tool, tools)] if tools else None)


def _tool(tool: dict[str, Any]) -> Tool:
    """Return a tool definition as OpenAI's API has it: the fields of functions in an object."""
    if "function" in tool:
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _messages(value: Any, name: str) -> list[Message]:
    messages = _structured(value, name) or []
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadLine(f"{name} is no list of messages: {reprlib.repr(messages)}")
    return [each for message in messages for each in _as_openai(message, name)]


def _as_openai(message: dict[str, Any], name: str) -> Iterator[Message]:
    """Yield a message of the semantic conventions as messages of OpenAI's API.

    Each response of a tool is a message of its own.
    """
    if "parts" not in message:
        yield message
        return
    texts_, calls, reasoning = [], [], []
    parts = message["parts"]
    if not isinstance(parts, list):
        raise BadLine(f"parts of {name} are no list: {reprlib.repr(parts)}")
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts_.append(part)
        elif kind == "text":
            texts_.append(str(part.get("content") or ""))
        elif kind == "reasoning":
            reasoning.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments")}
            calls.append({"type": "function", "id": part.get("id"), "function": function})
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            content = result if isinstance(result, str) else json.dumps(result)
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": content}
        else:
            raise BadLine(f"a part of {name} that is no text: {reprlib.repr(kind)}")
    if texts_ or calls or reasoning:
        plain: Message = {"role": message.get("role"), "content": "\n".join(texts_)}
        if calls:
            plain["tool_calls"] = calls
        if reasoning:
            plain["reasoning"] = "\n".join(reasoning)
        yield plain


def _structured(value: Any, name: str) -> Any:
    """Return an attribute that is structured or the JSON text of it."""
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] not in {"[", "{"}:
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise BadLine(f"{name} is not JSON: {error}") from error


def _value(value: Any, depth: int = 0) -> Any:
    """Return the plain value of OTLP's AnyValue."""
    if depth > MAX_NESTING:
        raise BadLine(TOO_DEEP)
    if not isinstance(value, dict):
        return None
    for kind in ("stringValue", "boolValue", "doubleValue"):
        if kind in value:
            return value[kind]
    if "intValue" in value:
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            raise BadLine(f"intValue is no integer: {reprlib.repr(value['intValue'])}") from None
    nested = value.get("arrayValue", value.get("kvlistValue"))
    inner = nested.get("values") if isinstance(nested, dict) else None
    if not isinstance(inner, list):
        return None
    if "arrayValue" in value:
        return [_value(each, depth + 1) for each in inner]
    pairs = [each for each in inner if isinstance(each, dict)]
    return {str(each.get("key")): _value(each.get("value"), depth + 1) for each in pairs}


def _count(values: Mapping[str, Any], name: str) -> int | None:
    number = _number(values, name)
    return None if number is None else int(number)


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, int | float) and 0 <= value < float("inf") else None


def _text(values: Mapping[str, Any], *names: str) -> str | None:
    return next((str(values[name]) for name in names if values.get(name)), None)
