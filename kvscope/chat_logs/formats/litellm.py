"""LiteLLM's StandardLoggingPayload, one per line.

Source: https://docs.litellm.ai/docs/proxy/logging_spec
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.formats.base import (
    Chat,
    LogFormat,
    LoggedRequest,
    Message,
    Prompt,
    Response,
    Tool,
    Usage,
    difference,
    seconds,
)
from kvscope.chat_logs.formats.openai import texts
from kvscope.ingest.formats.base import BadLine

_COMPLETIONS = ("completion", "text_completion")


class _Parameters(msgspec.Struct, gc=False):
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class _Metadata(msgspec.Struct, gc=False):
    user_api_key_user_id: str | None = None
    usage_object: Usage | None = None


class _Payload(msgspec.Struct, gc=False, kw_only=True):
    messages: Any = None
    response: Response | str | None = None
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
    model_parameters: _Parameters | None = None
    metadata: _Metadata | None = None


class _Wrapped(msgspec.Struct, gc=False):
    standard_logging_object: _Payload | None = None


class LiteLLM(LogFormat):
    """JSON lines with `startTime` and `completionStartTime`."""

    name = "litellm"
    summary = "LiteLLM's StandardLoggingPayload with messages, one per line"

    def __init__(self) -> None:
        super().__init__()
        self._wrapped = msgspec.json.Decoder(_Wrapped).decode
        self._decode = msgspec.json.Decoder(_Payload).decode

    @classmethod
    def recognizes(cls, keys: frozenset[str]) -> bool:
        """Return True if lines have the payload's times, or hold the payload."""
        return {"startTime", "completionStartTime"} <= keys or "standard_logging_object" in keys

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the line's request; none for calls that no engine has served."""
        payload = self._wrapped(line).standard_logging_object or self._decode(line)
        if reason := _left_out(payload):
            self.left_out[reason] += 1
            return ()
        start_s = seconds(payload.startTime, "startTime")
        end_s = seconds(payload.endTime, "endTime")
        first_s = seconds(payload.completionStartTime, "completionStartTime")
        if first_s is not None and end_s is not None and first_s >= end_s:
            first_s = None  # not streamed: the time of the first token is not known
        metadata = payload.metadata or _Metadata()
        response = payload.response
        prompts = _prompts(payload)
        if len(prompts) > 1:
            raise BadLine(f"several prompts in one call: {len(prompts)}")
        return [
            LoggedRequest(
                prompt=prompts[0],
                response=response.answer if isinstance(response, Response) else response,
                input_tokens=payload.prompt_tokens,
                output_tokens=payload.completion_tokens,
                cached_tokens=(metadata.usage_object or Usage()).cached_tokens,
                arrival_s=start_s,
                ttft_s=difference(start_s, first_s),
                duration_s=difference(start_s, end_s),
                session=payload.trace_id,
                user=payload.end_user or metadata.user_api_key_user_id,
                model=payload.model,
                worker=payload.model_id,
            )
        ]


def _left_out(payload: _Payload) -> str | None:
    """Return why a call is no request to an engine, None if it is one."""
    if payload.call_type and payload.call_type.removeprefix("a") not in _COMPLETIONS:
        return "calls that are no completions"
    if payload.status not in {None, "success"}:
        return "calls that failed"
    return "calls answered by LiteLLM's own cache" if payload.cache_hit else None


def _prompts(payload: _Payload) -> list[Prompt]:
    parameters = payload.model_parameters or _Parameters()
    messages = payload.messages
    if isinstance(messages, dict) and "messages" in messages:
        messages = messages["messages"]
    if isinstance(messages, list) and messages and all(isinstance(x, dict) for x in messages):
        arguments = dict(parameters.chat_template_kwargs or {})
        if parameters.reasoning_effort is not None:
            arguments["reasoning_effort"] = parameters.reasoning_effort
        chat: list[Message] = messages
        return [Chat(chat, parameters.tools, arguments)]
    if not messages or (isinstance(messages, str) and messages.startswith("redacted-by-litellm")):
        raise BadLine(f"messages were not logged: {reprlib.repr(messages)}")
    return texts(messages)
