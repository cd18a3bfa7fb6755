"""Langfuse's observations, as its API, its table and its blob storage export them: JSON lines.

A generation's input is a list of messages, or an object with messages and tools. Usage is split by
kind: input tokens are the sum of the kinds with `input` in their name, cached ones among them;
these include all other kinds of prompt tokens. Source: langfuse 5.0.4 (openai.py,
api/commons/types/observation_v2.py), its reference of export fields, and the exported traces in
langfuse/langfuse 6275144614 (worker/src/__tests__/chatml/framework-traces).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.bodies import as_response
from kvscope.chat_logs.formats import openinference
from kvscope.chat_logs.formats.base import LoggedRequest
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, between, described, moment, named

_GENERATION = "GENERATION"
_WRITTEN = ("creation", "write")


class Langfuse(OpenAI):
    """JSON lines with `traceId` (or `trace_id`), `startTime`, `type` and `input`."""

    name = "langfuse"
    summary = "Langfuse observations with input, as JSON lines"
    marks = ("traceId startTime type input", "trace_id start_time type input")

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the generation's requests; () for other observations and without an input."""
        row = msgspec.json.decode(line, type=dict[str, Any])
        if (kind := row.get("type")) != _GENERATION:
            self.left_out[f"observations of the type {named(kind)}"] += 1
            return ()
        asked, said = _exchange(row)
        if asked is None:
            self.left_out["generations without an input"] += 1
            return ()
        start_s = moment(_of(row, "startTime", "start_time"), "startTime")
        first = _of(row, "completionStartTime", "completion_start_time")
        first_s = between(start_s, moment(first, "completionStartTime"))
        fields = {
            "request": asked,
            "response": said or {},
            "usage": _usage(_of(row, "usageDetails", "usage_details", "usage")),
            "timestamp": start_s,
            "end_time": _of(row, "endTime", "end_time"),
            "ttft_ms": None if first_s is None else 1000 * first_s,
            "session_id": _of(row, "sessionId", "session_id", "traceId", "trace_id"),
            "user_id": _of(row, "userId", "user_id"),
        }
        model = _of(row, "model", "providedModelName", "provided_model_name")
        return self.requests(fields | ({} if model is None else {"model": model}), len(line))


def _exchange(row: Mapping[str, Any]) -> tuple[dict[str, Any] | None, Any]:
    """Return a generation's input as a request body (None without input), and its response.

    An OpenInference span in the metadata takes precedence: it has tools and instructions that the
    inputs of some frameworks lack. LangChain lists tools among its messages.
    """
    asked, said = _decoded(row.get("input")), _decoded(row.get("output"))
    metadata = _decoded(row.get("metadata"))
    attributes = _decoded(metadata.get("attributes")) if isinstance(metadata, dict) else None
    if isinstance(attributes, dict) and openinference.has_prompt(attributes):
        asked = openinference.body(attributes)
        said = asked.pop("response") or said
    elif isinstance(asked, str):
        asked = {"prompt": asked}
    elif isinstance(asked, dict) and "role" in asked:
        asked = {"messages": [asked]}
    elif isinstance(asked, list) and any(isinstance(x, dict) and "role" not in x for x in asked):
        asked = {"input": asked}  # items of the Responses API
    elif isinstance(asked, list):
        tools = [message["content"] for message in asked if _is_tool(message)]
        messages = [message for message in asked if not _is_tool(message)]
        asked = {"messages": messages, "tools": tools or None}
    elif asked is not None and not isinstance(asked, dict):
        raise BadLine(f"input is no prompt: {described(asked)}")
    return asked, as_response(said)


def _is_tool(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, dict) and "function" in content


def _of(row: Mapping[str, Any], *names: str) -> Any:
    """Return the first of the fields `names` that has a value, None if none has."""
    values = (row.get(name) for name in names)
    return next((value for value in values if value is not None and value != ""), None)


def _decoded(value: Any) -> Any:
    """Return the value of a JSON text (blob storage writes those); other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{", '"'}:
        try:
            return msgspec.json.decode(value)
        except msgspec.MsgspecError:
            pass
    return value


def _usage(details: Any) -> dict[str, Any] | None:
    """Return token counts by kind as a `usage` object of OpenAI's API; None without an object."""
    details = _decoded(details)
    if not isinstance(details, dict):
        return None
    counts = {
        kind: count
        for kind, count in details.items()
        if isinstance(count, int) and not isinstance(count, bool)
    }
    if "prompt_tokens" in counts:
        return details
    inputs = {kind: count for kind, count in counts.items() if "input" in kind}
    cached = {kind: n for kind, n in counts.items() if "cache" in kind}
    read = [n for kind, n in cached.items() if not any(word in kind for word in _WRITTEN)]
    return {
        "prompt_tokens": sum(inputs.values()) or None,
        "completion_tokens": sum(n for kind, n in counts.items() if "output" in kind) or None,
        "prompt_tokens_details": {"cached_tokens": sum(read)} if cached else None,
    }
