"""OpenTelemetry spans with prompts: messages of GenAI or OpenInference, LMCache's token ids.

Source: OpenTelemetry semantic conventions for generative AI (gen_ai.input.messages and others);
LMCache, tools/cache_simulator/trace_analyze.py (mp.request.trace).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kvscope.chat_logs.bodies import from_parts, from_schema
from kvscope.chat_logs.formats import openinference
from kvscope.chat_logs.formats.base import (
    Chat,
    LogFormat,
    LoggedRequest,
    Message,
)
from kvscope.chat_logs.formats.openai import texts
from kvscope.ingest.formats.base import BadLine, described
from kvscope.ingest.formats.otlp import (
    INPUT_MESSAGES,
    SPANS,
    OtlpSpan,
    Values,
    input_tokens,
    output_tokens,
    spans_of,
)

_OUTPUT = "gen_ai.output.messages"
_SYSTEM, _TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_IDS = "lmcache.input_ids"
_NO_PROMPT = "spans without messages or token ids"


class Otlp(LogFormat):
    """JSON lines with `resourceSpans`, or a span each."""

    name = "otlp"
    summary = "OpenTelemetry spans as OTLP JSON, with messages or LMCache's token ids"
    marks = SPANS

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the requests of the line's spans that have a prompt."""
        requests = []
        for span in spans_of(line):
            values = span.values()
            if values.keys() & {INPUT_MESSAGES, _IDS}:
                requests.append(_request(span, values))
            elif openinference.has_prompt(values):
                requests.append(openinference.request(span, values))
            else:
                self.left_out[_NO_PROMPT] += 1
        return requests


def _request(span: OtlpSpan, values: Values) -> LoggedRequest:
    ids = _structured(values.get(_IDS), _IDS)
    prompt = _chat(values) if ids is None else texts(ids)[0]
    if ids is not None and not isinstance(prompt, list):
        raise BadLine(f"{_IDS} are no token ids: {described(ids)}")
    answer = None
    with suppress(BadLine):  # nothing of an answer is worth a request
        answer = next(iter(_messages(values.get(_OUTPUT), _OUTPUT)), None)
    return LoggedRequest(
        prompt=prompt,
        response=answer,
        input_tokens=input_tokens(values),
        output_tokens=output_tokens(values),
        **span.service(values),
    )


def _chat(values: Values) -> Chat:
    messages = _messages(values.get(INPUT_MESSAGES), INPUT_MESSAGES)
    system = _structured(values.get(_SYSTEM), _SYSTEM)
    if system:
        parts = [system] if isinstance(system, str) else system
        messages = [*from_parts({"role": "system", "parts": parts}, _SYSTEM), *messages]
    tools = _structured(values.get(_TOOLS), _TOOLS)
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    ):
        raise BadLine(f"{_TOOLS} is no list of objects: {described(tools)}")
    return Chat(messages, [*map(from_schema, tools)] if tools else None)


def _messages(value: Any, name: str) -> list[Message]:
    messages = _structured(value, name) or []
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadLine(f"{name} is no list of messages: {described(messages)}")
    return [each for message in messages for each in from_parts(message, name)]


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
