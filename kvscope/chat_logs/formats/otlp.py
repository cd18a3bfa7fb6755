"""OpenTelemetry spans with prompts: messages of GenAI or OpenInference, LMCache's token ids.

Source: OpenTelemetry semantic conventions for generative AI (gen_ai.input.messages and others);
LMCache, tools/cache_simulator/trace_analyze.py (mp.request.trace).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kvscope.chat_logs.bodies import as_response, from_schema
from kvscope.chat_logs.formats import openinference
from kvscope.chat_logs.formats.base import LoggedRequest
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, described
from kvscope.ingest.formats.otlp import (
    INPUT_MESSAGES,
    SPANS,
    TWICE,
    RecordedTwice,
    Values,
    spans_of,
)

_OUTPUT = "gen_ai.output.messages"
_SYSTEM, _TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_IDS = "lmcache.input_ids"
_FAILED = "calls that failed"
_NO_PROMPT = "spans without messages or token ids"


class Otlp(OpenAI):
    """JSON lines with `resourceSpans`, or one span per line."""

    name = "otlp"
    summary = "OpenTelemetry spans as OTLP JSON, with messages or LMCache's token ids"
    marks = SPANS

    def __init__(self) -> None:
        super().__init__()
        self._twice = RecordedTwice()

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the requests of spans with a prompt.

        Left out are repetitions, and failed spans that state no input tokens.
        """
        requests: list[LoggedRequest] = []
        for span in spans_of(line):
            values = span.values()
            if values.keys() & {INPUT_MESSAGES, _IDS}:
                body = _body(values)
            elif openinference.has_prompt(values):
                body = openinference.body(values)
            else:
                self.left_out[_NO_PROMPT] += 1
                continue
            facts = span.facts(values)
            if self._twice(span, values):
                self.left_out[TWICE] += 1
            elif span.failed and facts["input_tokens"] is None:
                self.left_out[_FAILED] += 1
            else:
                requests += self.served(body, len(line), **facts)
        return requests


def _body(values: Values) -> dict[str, Any]:
    """Return a span, by its attributes `values`, as the body of a request.

    A request with messages has its response, one with token ids has none. Raises BadLine if the
    span cannot be used.
    """
    if (ids := _listed(values, _IDS)) is not None:
        return {"prompt": ids}
    system = values.get(_SYSTEM)
    with suppress(BadLine):
        system = _listed(values, _SYSTEM)
    parts = [system] if isinstance(system, str) else system
    before = [{"role": "system", "parts": parts}] if parts else []
    tools, said = _listed(values, _TOOLS) or [], None
    if not all(isinstance(tool, dict) for tool in tools):
        raise BadLine(f"{_TOOLS} is no list of objects: {described(tools)}")
    with suppress(BadLine):  # nothing of an answer is worth a request
        said = _listed(values, _OUTPUT)
    return {
        "messages": [*before, *(_listed(values, INPUT_MESSAGES) or ())],
        "tools": [*map(from_schema, tools)] or None,
        "response": as_response(said) or {},
    }


def _listed(values: Values, name: str) -> list[Any] | None:
    """Return an attribute that is a list or its JSON text, None if missing. Raises BadLine."""
    value = values.get(name)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadLine(f"{name} is not JSON: {error}") from error
    if value is not None and not isinstance(value, list):
        raise BadLine(f"{name} is no list: {described(value)}")
    return value
