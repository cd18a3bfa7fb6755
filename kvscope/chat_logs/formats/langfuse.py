"""Langfuse's observations, as its API, its table and its blob storage export them: JSON lines.

A generation's input are messages, or an object with messages and tools. Usage is split by kind:
input tokens are the sum of all kinds of input, cached ones among them. Source: langfuse 5.0.4
(api/commons/types/observation_v2.py, openai.py), and its reference of export fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.formats.base import LoggedRequest
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, between, described, moment

_GENERATION = "GENERATION"
_WRITTEN = ("creation", "write")


class Langfuse(OpenAI):
    """JSON lines with `traceId` (or `trace_id`), `startTime`, `type` and `input`."""

    name = "langfuse"
    summary = "Langfuse observations with input, as JSON lines"
    marks = ("traceId startTime type input", "trace_id start_time type input")

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the generation's request; none for other observations."""
        row = msgspec.json.decode(line, type=dict[str, Any])
        if (kind := row.get("type")) != _GENERATION:
            self.left_out[f"observations of the type {str(kind)[:40]}"] += 1
            return ()
        asked, said = _decoded(row.get("input")), _decoded(row.get("output"))
        if isinstance(asked, list):
            asked = {"messages": asked}
        elif isinstance(asked, str):
            asked = {"prompt": asked}
        if not isinstance(asked, dict):
            raise BadLine(f"input is no prompt: {described(asked)}")
        if isinstance(said, dict) and "choices" not in said:
            said = {"choices": [{"message": said}]}
        start_s = moment(_of(row, "startTime", "start_time"), "startTime")
        first = _of(row, "completionStartTime", "completion_start_time")
        first_s = between(start_s, moment(first, "completionStartTime"))
        fields = {
            "request": asked,
            "response": said,
            "usage": _usage(_of(row, "usageDetails", "usage_details", "usage")),
            "timestamp": start_s,
            "end_time": _of(row, "endTime", "end_time"),
            "ttft_ms": None if first_s is None else 1000 * first_s,
            "session_id": _of(row, "sessionId", "session_id", "traceId", "trace_id"),
            "user_id": _of(row, "userId", "user_id"),
        }
        model = _of(row, "model", "providedModelName", "provided_model_name")
        return self.requests(fields | ({} if model is None else {"model": model}), len(line))


def _of(row: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields that has a value; exports spell them in two ways."""
    values = (row.get(name) for name in names)
    return next((value for value in values if value is not None and value != ""), None)


def _decoded(value: Any) -> Any:
    """Return a value that blob storage holds as JSON text; others as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{", '"'}:
        try:
            return msgspec.json.decode(value)
        except msgspec.MsgspecError:
            pass
    return value


def _usage(details: Any) -> dict[str, Any] | None:
    """Return usage as OpenAI states it, of the tokens by kind."""
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
    cached = {kind: n for kind, n in inputs.items() if "cache" in kind}
    read = [n for kind, n in cached.items() if not any(word in kind for word in _WRITTEN)]
    return {
        "prompt_tokens": sum(inputs.values()) or None,
        "completion_tokens": sum(n for kind, n in counts.items() if "output" in kind) or None,
        "prompt_tokens_details": {"cached_tokens": sum(read)} if cached else None,
    }
