"""LiteLLM's StandardLoggingPayload with messages: what the trace format reads, and prompts.

Source: https://docs.litellm.ai/docs/proxy/logging_spec
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvscope.chat_logs.bodies import answer_of, from_anthropic, is_anthropic, items
from kvscope.chat_logs.formats.base import (
    Chat,
    LogFormat,
    LoggedRequest,
    Message,
    Prompt,
    Tool,
)
from kvscope.chat_logs.formats.openai import texts
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


class LiteLLM(LogFormat):
    """JSON lines with `startTime` and `completionStartTime`."""

    name = "litellm"
    summary = "LiteLLM's StandardLoggingPayload with messages, one per line"
    marks = ("startTime completionStartTime", "standard_logging_object")

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(_PromptRow).decode

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the line's request; none for calls that no engine has served."""
        row = self._decode(line)
        payload = row.standard_logging_object or row
        if reason := payload.unserved():
            self.left_out[reason] += 1
            return ()
        prompts = _prompts(payload)
        if len(prompts) > 1:
            raise BadLine(f"several prompts in one call: {len(prompts)}")
        return [
            LoggedRequest(
                prompt=prompts[0],
                response=answer_of(payload.response).message,
                input_tokens=payload.prompt_tokens,
                output_tokens=payload.completion_tokens,
                **payload.service(),
            )
        ]


def _prompts(payload: _PromptPayload) -> list[Prompt]:
    parameters = payload.model_parameters or _Parameters()
    messages = payload.messages
    if isinstance(messages, dict) and "messages" in messages:
        messages = messages["messages"]
    body = {"messages": messages, "tools": parameters.tools, "system": parameters.system}
    if (payload.call_type or "").endswith("responses") and messages:
        own = [{"role": "user", "content": messages}] if isinstance(messages, str) else None
        system = [{"role": "system", "content": parameters.instructions}]
        body["messages"] = [*system * bool(parameters.instructions), *(own or items(messages))]
    elif is_anthropic(body):
        body = from_anthropic(body)
    messages = body["messages"]
    if isinstance(messages, list) and messages and all(isinstance(x, dict) for x in messages):
        arguments = dict(parameters.chat_template_kwargs or {})
        if parameters.reasoning_effort is not None:
            arguments["reasoning_effort"] = parameters.reasoning_effort
        chat: list[Message] = messages
        return [Chat(chat, body["tools"], arguments)]
    if not messages or (isinstance(messages, str) and messages.startswith("redacted-by-litellm")):
        raise BadLine(f"messages were not logged: {described(messages)}")
    return texts(messages)
