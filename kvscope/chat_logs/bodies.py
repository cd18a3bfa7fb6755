"""Request bodies of several APIs, converted to chat completions as vLLM does, and responses.

Source: vLLM 0.33.0, vllm/entrypoints/anthropic/serving.py (to_chat_completion_request) and
vllm/entrypoints/openai/responses/utils.py (construct_input_messages).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct, field

from kvscope.chat_logs.formats.base import Message, Tool
from kvscope.chat_logs.messages import BILLING_HEADER
from kvscope.core.units import MIB
from kvscope.ingest.formats.base import BadLine, described
from kvscope.ingest.formats.litellm import TokenDetails, Usage

_BLOCKS = frozenset({"tool_use", "tool_result", "redacted_thinking"})
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_MOST_BYTES = 256 * MIB  # of lines whose responses can be continued


def is_anthropic(body: Mapping[str, Any]) -> bool:
    """Return whether a body has fields or blocks that only Anthropic's Messages API has."""
    tools, messages = body.get("tools"), body.get("messages")
    if not isinstance(messages, list):
        return False
    return (
        isinstance(body.get("system"), str | list)
        or any("input_schema" in tool for tool in _objects(tools))
        or any(
            part.get("type") in _BLOCKS
            for message in _objects(messages)
            for part in _objects(message.get("content"))
        )
    )


def from_anthropic(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of Anthropic's Messages API converted to chat completions."""
    messages: list[Message] = []
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    for message in [*system, *body["messages"]]:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and message.get("role") == "system":
            texts = [str(part.get("text") or "") for part in _objects(content)]
            content = "".join(text for text in texts if not text.startswith(BILLING_HEADER))
            messages.append({"role": "system", "content": content})
        elif isinstance(content, list):
            messages += _from_blocks(message, content)
        else:
            messages.append(message)
    tools = [from_schema(tool) for tool in _objects(body.get("tools"))]
    return {**body, "messages": messages, "tools": tools or None}


def _from_blocks(message: Message, blocks: Sequence[Any]) -> list[Message]:
    """Return a message of content blocks as messages: one per tool result, then one of the rest."""
    results: list[Message] = []
    parts, calls, thoughts = [], [], []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": json.dumps(block.get("input") or {}),
            }
            calls.append({"type": "function", "id": block.get("id"), "function": function})
        elif kind == "tool_result":
            content = block.get("content")
            if isinstance(content, list):
                content = [part for part in content if part != {"type": "text", "text": ""}]
            name = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": name, "content": content or ""})
        elif kind not in {"redacted_thinking", "tool_reference"}:
            parts.append(block)
    whole: Message = {"role": message.get("role")}
    if parts:
        whole["content"] = parts
    if calls:
        whole["tool_calls"] = calls
    if thoughts:
        whole["reasoning"] = "".join(thoughts)
    return [*results, *([whole] if len(whole) > 1 or not results else [])]


def from_schema(tool: Mapping[str, Any]) -> Tool:
    """Return a tool of Anthropic's API or the Responses API, converted to chat completions."""
    if "function" in tool:
        return dict(tool)
    parameters = tool.get("input_schema", tool.get("parameters"))
    function = {k: tool.get(k) for k in ("name", "description", "strict")}
    function |= {"parameters": parameters}
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def from_parts(message: Message, name: str) -> Iterator[Message]:
    """Yield a message with OpenTelemetry's `parts` as OpenAI's messages; yield others unchanged.

    Each tool response becomes a message. Raises BadLine with `name`, the log's field, for a part
    that is no text, reasoning, tool call or response, and for `parts` that are no list.
    """
    parts = message.get("parts")
    if parts is None:
        yield message
        return
    texts, calls, reasoning = [], [], []
    if not isinstance(parts, list):
        raise BadLine(f"parts of {name} are no list: {described(parts)}")
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "text":
            texts.append(str(part.get("content") or ""))
        elif kind == "reasoning" or str(kind).endswith("ReasoningContent"):  # as .NET spells it
            reasoning.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments")}
            calls.append({"type": "function", "id": part.get("id"), "function": function})
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            content = result if isinstance(result, str) else json.dumps(result)
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": content}
        else:
            raise BadLine(f"a part of {name} that is no text: {described(kind)}")
    if texts or calls or reasoning:
        plain: Message = {"role": message.get("role"), "content": "\n".join(texts)}
        if calls:
            plain["tool_calls"] = calls
        if reasoning:
            plain["reasoning"] = "\n".join(reasoning)
        yield plain


class _Turn(Struct, frozen=True):
    """The messages that a response and its input add to those of the response `before`.

    `size` is that of the response's log line (bytes), for the limit on stored responses.
    """

    before: _Turn | None
    messages: Sequence[Message]
    size: int


class Responses:
    """Converts bodies of the Responses API, with the logged responses that they continue.

    Only the responses of the latest lines, 256 MiB in all, can be continued.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[str, _Turn] = OrderedDict()
        self._bytes = 0

    def chat(self, body: Mapping[str, Any], response: Any, size: int) -> dict[str, Any]:
        """Return a body converted to chat completions; store `response`, which others may continue.

        A `response` without an id is ignored; `size` is the line's, in bytes. Raises BadLine if the
        body continues an unknown response.
        """
        before, known = None, body.get("previous_response_id")
        if known is not None:
            before = self._turns.get(str(known))
            if before is None:
                raise BadLine("the response that it continues is not among the lines before")
        asked = body["input"]
        own = [{"role": "user", "content": asked}] if isinstance(asked, str) else items(asked)
        history: list[Message] = []
        turn = before
        while turn is not None:
            history[:0] = turn.messages
            turn = turn.before
        if isinstance(response, dict) and isinstance(name := response.get("id"), str):
            self._keep(name, _Turn(before, [*own, *output_messages(response)], size))
        instructions = body.get("instructions")
        system = [{"role": "system", "content": instructions}] if instructions else []
        tools = [from_schema(x) for x in _objects(body.get("tools")) if x.get("type") == "function"]
        return {**body, "messages": [*system, *history, *own], "tools": tools or None}

    def _keep(self, name: str, turn: _Turn) -> None:
        self._turns[name] = turn
        self._bytes += turn.size
        while self._bytes > _MOST_BYTES:
            self._bytes -= self._turns.popitem(last=False)[1].size


def output_messages(response: Mapping[str, Any]) -> list[Message]:
    """Return a response of the Responses API as messages, without reasoning; [] if unreadable."""
    output = [each for each in _objects(response.get("output")) if each.get("type") != "reasoning"]
    try:
        return items(output)
    except BadLine:
        return []


def items(items: Any) -> list[Message]:
    """Return items of the Responses API as messages. Raises BadLine for unknown ones or no list."""
    if not isinstance(items, list):
        raise BadLine(f"input is neither text nor a list: {described(items)}")
    messages: list[Message] = []
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        assistant = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
        if kind in _CALLS:
            function = {"name": item.get("name"), "arguments": item.get(_CALLS[kind])}
            call = {"type": "function", "id": item.get("call_id"), "function": function}
            if assistant is None:
                messages.append({"role": "assistant", "tool_calls": [call]})
            else:
                assistant.setdefault("tool_calls", []).append(call)
        elif kind in _OUTPUTS:
            result = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **result})
        elif kind == "reasoning":
            parts = [*_objects(item.get("content")), *_objects(item.get("summary"))]
            messages.append({"role": "assistant", "reasoning": str((parts or [{}])[0].get("text"))})
        elif kind == "message" and "role" in item:
            plain = {"role": item["role"], "content": item.get("content")}
            if (
                plain["role"] == "assistant"
                and assistant is not None
                and "content" not in assistant
            ):
                assistant["content"] = plain["content"]
            else:
                messages.append(plain)
        else:
            raise BadLine(f"an input item of an unknown type: {described(item)}")
    return messages


def as_response(output: Any) -> Any:
    """Return an output message, or the first of a list, as a chat completion; others unchanged."""
    message = output[0] if isinstance(output, list) and output else output
    if isinstance(message, dict) and "role" in message:
        with suppress(BadLine):
            return {"choices": [{"message": each} for each in from_parts(message, "output")]}
    return output


class LoggedAnswer(Struct, frozen=True):
    """Message, token counts and id of a response; None where unreadable."""

    message: Message | str | None = None
    usage: Usage = field(default_factory=Usage)
    id: str | None = None


def answer_of(response: object) -> LoggedAnswer:
    """Return message, token counts and id of a response of any API, a text, or JSON text.

    Unreadable values become None: the request can be used without them.
    """
    if isinstance(response, str) and response.lstrip().startswith("{"):
        with suppress(msgspec.MsgspecError, RecursionError):
            response = msgspec.json.decode(response)
    if isinstance(response, str):
        return LoggedAnswer(response)
    if not isinstance(response, dict):
        return LoggedAnswer()
    name = response.get("id")
    return LoggedAnswer(
        _message_of(response),
        usage_of(response.get("usage")),
        name if isinstance(name, str) else None,
    )


def _message_of(response: dict[str, Any]) -> Message | str | None:
    for choice in _objects(response.get("choices")):
        said = choice.get("message", choice.get("text"))
        return said if isinstance(said, dict | str) else None
    output = response.get("output")
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return next(reversed(output_messages(response)), None)
    content = response.get("content")
    return {"content": content} if isinstance(content, str | list) else None


def usage_of(usage: object) -> Usage:
    """Return the token counts of any API; add the cached tokens that Anthropic's input excludes."""
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = _count(details, "cached_tokens")
    inputs = _count(usage, "prompt_tokens", "input_tokens")
    read, written = (_count(usage, f"cache_{kind}_input_tokens") for kind in ("read", "creation"))
    if "input_tokens" in usage and inputs is not None and (read or written):
        inputs, cached = inputs + (read or 0) + (written or 0), read or 0
    return Usage(
        inputs,
        _count(usage, "completion_tokens", "output_tokens"),
        None if cached is None else TokenDetails(cached),
    )


def _count(usage: object, *names: str) -> int | None:
    """Return the first of the fields `names` that is a non-negative integer, None if none is."""
    values = (usage.get(name) for name in names) if isinstance(usage, dict) else ()
    return next(
        (x for x in values if isinstance(x, int) and not isinstance(x, bool) and x >= 0), None
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; [] for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
