"""Convert messages that clients send to those that vLLM passes to a chat template.

Source: vLLM 0.32.0, vllm/renderers/chat_utils.py (_parse_chat_message_content,
_postprocess_messages), vllm/renderers/hf.py (safe_apply_chat_template) and
vllm/entrypoints/openai/chat_completion/protocol.py (ChatCompletionToolsParam).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvscope.chat_logs.formats.base import Message, Tool
from kvscope.ingest.formats.base import BadLine, described

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MISTRAL_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning")
_MISTRAL_ID = 9
_OTHER_PARTS = frozenset({
    "image", "image_url", "input_image", "input_audio", "audio_url", "video_url", "file",
    "input_file", "document",
})  # fmt: skip
BILLING_HEADER = "x-anthropic-billing-header"


def rendered_messages(messages: Sequence[Message], *, as_parts: bool) -> list[Message]:
    """Return messages for a chat template: content as text or, `as_parts`, as a list of parts.

    Arguments of tool calls become objects. Raises BadLine for content that is no text.
    """
    if not messages:
        raise BadLine("messages are empty")
    return [_rendered(message, at, as_parts) for at, message in enumerate(messages)]


def rendered_tools(tools: Sequence[Tool]) -> list[Tool]:
    """Return tools with the fields, in order, that vLLM passes to a template. Raises BadLine."""
    rendered = []
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, dict) or "name" not in function:
            raise BadLine(f"a tool without a function's name: {described(tool)}")
        plain = {name: function.get(name) for name in ("name", "description", "parameters")}
        plain |= {name: function[name] for name in ("strict",) if function.get(name) is not None}
        rendered.append({"type": "function", "function": plain})
    return rendered


def without_developers(messages: list[Message]) -> list[Message]:
    """Return messages, developers' as system ones, all merged in front if any is not first."""
    system: list[str] = []
    others = []
    moved = False
    for at, message in enumerate(messages):
        if message["role"] in {"developer", "system"}:
            moved = moved or at > 0
            if content := message["content"]:
                parts = [part["text"] for part in content] if isinstance(content, list) else None
                system.append(content if parts is None else "\n".join(parts))
        else:
            others.append(message)
    if not moved:
        return [
            message | {"role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]
    return [{"role": "system", "content": "\n\n".join(system)}, *others]


def for_mistral(messages: Sequence[Message]) -> list[Message]:
    """Return messages for mistral-common: known fields and texts only, ids cut to 9 characters.

    Source: vLLM 0.33.0, vllm/tokenizers/mistral.py (truncate_tool_call_ids).
    """
    plain = []
    for at, message in enumerate(messages):
        kept = {name: message[name] for name in _MISTRAL_FIELDS if message.get(name) is not None}
        if isinstance(kept.get("content"), list):
            texts = _texts(kept["content"], at)
            kept["content"] = [{"type": "text", "text": text} for text in texts]
        if isinstance(name := kept.get("tool_call_id"), str):
            kept["tool_call_id"] = name[-_MISTRAL_ID:]
        if isinstance(calls := kept.get("tool_calls"), list):
            kept["tool_calls"] = [
                {**call, "id": call["id"][-_MISTRAL_ID:]}
                if isinstance(call, dict) and isinstance(call.get("id"), str)
                else call
                for call in calls
            ]
        plain.append(kept)
    return plain


def plain_text(message: Message | str) -> str:
    """Return the text that a model wrote: reasoning, content and tool calls, without a template."""
    if isinstance(message, str):
        return message
    rendered = _rendered(message | {"role": "assistant"}, 0, as_parts=False)
    calls = [json.dumps(call.get("function")) for call in rendered.get("tool_calls", ())]
    return "\n".join([rendered.get("reasoning") or "", rendered["content"], *calls]).strip("\n")


def _rendered(message: Message, at: int, as_parts: bool) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise BadLine(f"message without a role - at `$.messages[{at}]`")
    if role != "assistant" and "content" not in message and len(message) > 1:
        raise BadLine(f"message without content - at `$.messages[{at}]`")
    parts = _texts(message.get("content"), at)
    if role == "system":
        parts = _without_billing_header(parts)
    rendered: Message = {"role": role, "content": "\n".join(parts)}
    if as_parts and role != "tool":
        rendered["content"] = [{"type": "text", "text": text} for text in parts]
    if role == "assistant":
        if calls := message.get("tool_calls"):
            rendered["tool_calls"] = _calls(calls, at)
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if isinstance(reasoning, str):
            rendered["reasoning"] = rendered["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        rendered["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        rendered["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        rendered["name"] = message["name"]
    return rendered


def _texts(content: Any, at: int) -> list[str]:
    """Return the texts of a message's content.

    Raises BadLine, which names the message by its index `at`, for content that is no text.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise BadLine(f"content is no text: {described(content)} - at `$.messages[{at}]`")
    texts = []
    for part in content:
        text: Any = part
        if isinstance(part, dict):
            kind = part.get("type", "text")
            if not isinstance(kind, str) or kind not in _TEXT_PARTS:
                known = kind if kind in _OTHER_PARTS else described(kind)
                raise BadLine(
                    f"content that is no text cannot be hashed: {known}"
                    f" - at `$.messages[{at}].content`"
                )
            text = part.get(_TEXT_PARTS[kind])
        if text is not None:
            if not isinstance(text, str):
                raise BadLine(f"text is none: {described(text)} - at `$.messages[{at}].content`")
            texts.append(text)
    return texts


def _without_billing_header(parts: list[str]) -> list[str]:
    """Return system texts without Claude Code's billing header, which differs in every request."""
    kept = []
    for text in parts:
        if not text.startswith(BILLING_HEADER):
            kept.append(text)
        elif rest := text.partition("\n")[2]:
            kept.append(rest)
    return kept


def parsed_arguments(arguments: Any) -> Any:
    """Return the arguments of a call, decoded if they are JSON text, else unchanged."""
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            pass
    return arguments


def _calls(calls: Any, at: int) -> list[dict[str, Any]]:
    """Return tool calls with their arguments as objects, {} for other arguments.

    Raises BadLine, which names the message by its index `at`, if `calls` is no list of calls.
    """
    if not isinstance(calls, list):
        raise BadLine(f"tool_calls are no list: {described(calls)} - at `$.messages[{at}]`")
    rendered = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadLine(f"tool call without a function - at `$.messages[{at}].tool_calls`")
        arguments = parsed_arguments(function.get("arguments"))
        arguments = arguments if isinstance(arguments, dict) else {}
        rendered.append(call | {"function": function | {"arguments": arguments}})
    return rendered
