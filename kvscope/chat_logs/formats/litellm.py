"""LiteLLM's StandardLoggingPayload with messages: the fields of the trace format, and prompts.

Source: https://docs.litellm.ai/docs/proxy/logging_spec
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.formats.base import LoggedRequest, Tool
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.ingest.formats.base import BadLine, described
from kvscope.ingest.formats.litellm import Payload


class _Parameters(msgspec.Struct, gc=False):
    tools: list[Tool] | None = None
    system: Any = None
    instructions: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class _PromptPayload(Payload, gc=False, kw_only=True):
    messages: Any = None
    response: Any = None
    model_parameters: _Parameters | None = None


class _PromptRow(_PromptPayload, gc=False, kw_only=True):
    standard_logging_object: _PromptPayload | None = None


class LiteLLM(OpenAI):
    """JSON lines with `startTime` and `completionStartTime`."""

    name = "litellm"
    summary = "LiteLLM's StandardLoggingPayload with messages, one per line"
    marks = ("startTime completionStartTime", "standard_logging_object")

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(_PromptRow).decode

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the line's request; () for calls that no engine served, such as failures."""
        row = self._decode(line)
        payload = row.standard_logging_object or row
        if reason := payload.unserved():
            self.left_out[reason] += 1
            return ()
        return self.served(
            _body(payload) | {"response": payload.response or {}},
            len(line),
            input_tokens=payload.prompt_tokens,
            output_tokens=payload.completion_tokens,
            **payload.service(),
        )


def _body(payload: _PromptPayload) -> dict[str, Any]:
    """Return a call as the body of a request. Raises BadLine if its messages were not logged."""
    messages = payload.messages
    if isinstance(messages, dict) and "messages" in messages:
        messages = messages["messages"]
    if not messages or (isinstance(messages, str) and messages.startswith("redacted-by-litellm")):
        raise BadLine(f"messages were not logged: {described(messages)}")
    kind = "prompt"
    if (payload.call_type or "").endswith("responses"):
        kind = "input"
    elif isinstance(messages, list) and all(isinstance(each, dict) for each in messages):
        kind = "messages"
    parameters = msgspec.structs.asdict(payload.model_parameters or _Parameters())
    return {k: v for k, v in parameters.items() if v is not None} | {kind: messages}
