"""OpenInference's spans of LLM calls, in OTLP or as Arize Phoenix exports them.

Messages are attributes of dotted names, such as `llm.input_messages.0.message.role`. Source:
openinference-semantic-conventions 0.1.42 (trace/__init__.py), openinference-instrumentation-openai
0.1.66 (_request_attributes_extractor.py), arize-phoenix-client 3.5.0 (v1.Span; data frames).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kvscope.chat_logs.bodies import from_schema
from kvscope.chat_logs.formats.base import ASSISTANT, LoggedRequest, Message, Tool
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, described, moment
from kvscope.ingest.formats.otlp import OtlpSpan, Values

_ASKED, _SAID = "llm.input_messages.", "llm.output_messages."
_PROMPTS, _TOOLS = "llm.prompts.", "llm.tools."
_COLUMN = "attributes."
_INDEX = re.compile(r"\d{1,6}", re.ASCII)
_REDACTED = "__REDACTED__"
_NO_PROMPT = "spans without messages or a prompt"
_NS = 1_000_000_000


class OpenInference(OpenAI):
    """JSON lines of Phoenix: spans of its API, or rows of its data frames."""

    name = "openinference"
    summary = "OpenInference spans that Arize Phoenix exports, as JSON lines"
    marks = ("attributes context span_kind",)

    @classmethod
    def recognizes(cls, keys: frozenset[str]) -> bool:
        """Return whether lines are spans: with `attributes`, or with a column per attribute."""
        return super().recognizes(keys) or any(key.startswith(f"{_COLUMN}llm.") for key in keys)

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the request of a span, () if it has no prompt."""
        row = msgspec.json.decode(line, type=dict[str, Any])
        stated = row.get("attributes")
        if not isinstance(stated, dict):
            columns = {key for key in row if key.startswith(_COLUMN)}
            stated = {key.removeprefix(_COLUMN): row[key] for key in columns}
        values = dict(_flat("", stated))
        if not has_prompt(values):
            self.left_out[_NO_PROMPT] += 1
            return ()
        times_s = [moment(row.get(name), name) for name in ("start_time", "end_time")]
        start, end = (None if at_s is None else round(at_s * _NS) for at_s in times_s)
        span = OtlpSpan(start_time_unix_nano=start, end_time_unix_nano=end)
        return self.served(body(values), len(line), **span.facts(values))


def has_prompt(values: Values) -> bool:
    """Return whether a span, by its attributes `values`, has messages or a completion's prompt."""
    return any(key.startswith((_ASKED, _PROMPTS)) for key in values)


def body(values: Values) -> dict[str, Any]:
    """Return a span, by its attributes `values`, as the body of a request, with its response.

    Raises BadLine if it cannot be used.
    """
    said: list[Message] = []
    with suppress(BadLine):  # nothing of an answer is worth a request
        said = _messages(values, _SAID)
    response = {"choices": [{"message": said[0]}]} if said else {}
    if messages := _messages(values, _ASKED):
        tools = [*map(_tool, _listed(values, _TOOLS))]
        return {"messages": messages, "tools": tools or None, "response": response}
    texts = [each.get("prompt.text") for each in _listed(values, _PROMPTS)]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise BadLine("llm.prompts is not one text", texts)
    return {"prompt": texts[0], "response": response}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of all values but None in nested objects and lists."""
    items: Sequence[tuple[object, Any]] = ()
    if isinstance(value, Mapping):
        items = [*value.items()]
    elif isinstance(value, list):
        items = [*enumerate(value)]
    elif value is not None:
        yield name, value
    for key, inner in items:
        yield from _flat(f"{name}.{key}" if name else str(key), inner)


def _tool(stated: Mapping[str, Any]) -> Tool:
    schema = stated.get("tool.json_schema")
    try:
        return from_schema(msgspec.json.decode(str(schema), type=dict[str, Any]))
    except msgspec.MsgspecError as error:
        raise BadLine("tool.json_schema is no JSON object", schema) from error


def _messages(values: Values, prefix: str) -> list[Message]:
    """Return the messages whose attributes begin with `prefix`, as messages of OpenAI's API."""
    return [_message(each) for each in _listed(values, prefix)]


def _message(stated: Mapping[str, Any]) -> Message:
    role = stated.get("message.role")
    message: Message = {"role": ASSISTANT if role == "model" else role}  # as Gemini calls it
    texts = [stated["message.content"]] if "message.content" in stated else []
    reasoning: list[Any] = []
    for part in _listed(stated, "message.contents."):
        kind, text = part.get("message_content.type", "text"), part.get("message_content.text")
        if kind not in {"text", "reasoning"}:
            raise BadLine(f"a part of a message that is no text: {described(kind)}")
        (reasoning if kind == "reasoning" else texts).append(text or "")
    if not all(isinstance(text, str) for text in (*texts, *reasoning)):
        raise BadLine("message.content is no text")
    if _REDACTED in texts:
        raise BadLine("the prompt is redacted: trace without OPENINFERENCE_HIDE_INPUTS")
    message["content"] = "\n".join(texts)
    calls = [
        {
            "type": "function",
            "id": call.get("tool_call.id"),
            "function": {
                "name": call.get("tool_call.function.name"),
                "arguments": call.get("tool_call.function.arguments", "{}"),
            },
        }
        for call in _listed(stated, "message.tool_calls.")
    ]
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning"] = "\n".join(reasoning)
    for name in ("name", "tool_call_id"):
        if (value := stated.get(f"message.{name}")) is not None:
            message[name] = value
    return message


def _listed(values: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the attributes `prefix` N `.` name as an object for each N. Raises BadLine."""
    listed: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        if key.startswith(prefix):
            index, _, name = key.removeprefix(prefix).partition(".")
            if not _INDEX.fullmatch(index):
                raise BadLine(f"{prefix[:-1]} without an index")
            listed.setdefault(int(index), {})[name] = value
    return [listed[index] for index in sorted(listed)]
