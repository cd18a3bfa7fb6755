"""Requests as gateways log them: chats of several APIs, whole conversations and plain prompts.

A line is a request body of OpenAI's chat completions, completions or Responses API, or of
Anthropic's Messages API, or an object with the body in `request` or `body` and the response in
`response`. Messages of which the last is the assistant's are a conversation: a request per answer.
So are those of public data sets, in `conversation`, or in `conversations` with `from` and `value`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from secrets import randbits
from typing import Any, ClassVar

import msgspec

from kvscope.chat_logs.bodies import (
    LoggedAnswer,
    Responses,
    answer_of,
    from_anthropic,
    from_parts,
    is_anthropic,
    usage_of,
)
from kvscope.chat_logs.formats.base import (
    ASSISTANT,
    Chat,
    LogFormat,
    LoggedRequest,
    Message,
    Prompt,
    Tool,
)
from kvscope.core.trace import Directives
from kvscope.ingest.formats.base import BadLine, Identifier, between, described, in_seconds, moment

_BODIES = ("request", "body")
_CHATS = ("messages", "conversation", "conversations")
_TIMES = (
    "timestamp", "time", "ts", "created", "created_at", "created_time", "request_time",
    "start_time", "startTime", "arrival_time",
)  # fmt: skip
_ENDS = ("end_time", "endTime", "finished_at", "completed_at")
_SESSIONS = (
    "session_id", "conversation_id", "conversation_hash", "chat_id", "thread_id", "trace_id",
)  # fmt: skip
_REQUESTS = ("request_id", "id")
_PARENTS = ("parent_request_id", "parent_id")
_RESPONSE = "previous_response_id"
_USERS = ("user", "user_id")
_TEMPLATE_ARGUMENTS = (
    "documents", "reasoning_effort", "add_generation_prompt", "continue_final_message",
)  # fmt: skip
_ROLES = {"human": "user", "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT}


class _Row(msgspec.Struct, gc=False, kw_only=True):
    """The keys of a line and of the request body in it; other types make the line unusable."""

    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    response: Any = None
    usage: Any = None
    model: str | None = None
    type: str | None = None
    lora_name: str | None = None
    lora_id: Identifier | None = None
    cache_salt: str | None = None
    worker: Identifier | None = None
    ttft_ms: float | None = None
    queue_ms: float | None = None
    duration_ms: float | None = None
    retention: Directives | None = None


class OpenAI(LogFormat):
    """JSON lines with `messages`, `prompt` or `input`, as in OpenAI's APIs."""

    name = "openai"
    summary = "Requests of OpenAI's and Anthropic's APIs, or whole conversations, one per line"
    marks: ClassVar[tuple[str, ...]] = (*_CHATS, *_BODIES, "prompt", "input")

    def __init__(self) -> None:
        super().__init__()
        self._responses = Responses()

    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return a request, or one per answer of a conversation or per prompt of a list."""
        return self.requests(msgspec.json.decode(line, type=dict[str, Any]), len(line))

    def requests(self, fields: dict[str, Any], size: int) -> Sequence[LoggedRequest]:
        """Return the requests of a line of `size` bytes with these fields, as `parse` does."""
        fields = _flattened(fields)
        if "messages" not in fields and isinstance(fields.get("input"), str | list):
            fields = self._responses.chat(fields, fields.get("response"), size)
        elif is_anthropic(fields):
            fields = from_anthropic(fields)
        row = msgspec.convert(fields, _Row)
        answer = answer_of(row.response)
        start_s = _time(fields, _TIMES)
        common: dict[str, Any] = {
            **_links(fields, answer),
            "session_id": _identifier(fields, _SESSIONS),
            "user_id": _identifier(fields, _USERS),
            "type": row.type,
            "model": row.model,
            "adapter": row.lora_name or row.lora_id,
            "cache_salt": row.cache_salt,
            "worker": row.worker,
        }
        if row.messages is not None:
            answers = _answers(row)
            if answers:
                return _conversation(row, fields, answers, start_s, common)
            prompts: list[Prompt] = [_chat(row, fields, row.messages)]
        else:
            prompts = _prompts(fields.get("prompt"))
        usage = next(
            (x for x in (usage_of(row.usage), answer.usage, usage_of(fields)) if x.prompt_tokens),
            answer.usage,
        )
        duration_s = between(start_s, _time(fields, _ENDS))
        if row.duration_ms is not None:
            duration_s = in_seconds(row.duration_ms)
        if len(prompts) > 1:  # what is measured is measured of all of them together
            return [
                LoggedRequest(prompt=each, arrival_s=start_s, retention=row.retention, **common)
                for each in prompts
            ]
        return [
            LoggedRequest(
                prompt=prompts[0],
                response=answer.message,
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                arrival_s=start_s,
                ttft_s=in_seconds(row.ttft_ms),
                queue_s=in_seconds(row.queue_ms),
                duration_s=duration_s,
                retention=row.retention,
                **common,
            )
        ]

    def served(self, body: dict[str, Any], size: int, **known: Any) -> Sequence[LoggedRequest]:
        """Return the one request of a body, with its fields in `known` set to these values.

        `body` may hold its `response`; `size`: of its line. Raises BadLine for several prompts.
        """
        requests = self.requests({"response": {}} | body, size)
        if len(requests) > 1:
            raise BadLine(f"several prompts in one call: {len(requests)}")
        for name, value in known.items():
            setattr(requests[0], name, value)
        return requests


def _prompts(prompt: object) -> list[Prompt]:
    """Return the prompts of a completion request: text or token ids, one or several.

    Raises BadLine for anything else.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        kinds = {type(each) for each in prompt}
        if kinds == {int}:
            return [prompt]
        if kinds == {str}:
            return [*prompt]
        if kinds == {list} and all({type(token) for token in each} == {int} for each in prompt):
            return [*prompt]
    if prompt is None:
        raise BadLine("Object missing required field `messages` or `prompt`")
    raise BadLine(f"prompt is neither text nor token ids: {described(prompt)}")


def _links(fields: Mapping[str, Any], answer: LoggedAnswer) -> dict[str, Any]:
    """Return the fields `request_id`, `parent_id` and `states_parent` of a `LoggedRequest`.

    In the Responses API both ids are those of responses: the request's own and the one that it
    continues. Else both are of requests; `request_id` is None unless the line has a parent or null.
    """
    own: Identifier | None = answer.id
    if _RESPONSE in fields or "input" in fields:
        parent = _identifier(fields, (_RESPONSE,))
        stated = parent is not None
    else:
        parent = _identifier(fields, _PARENTS)
        stated = parent is not None or any(name in fields for name in _PARENTS)
        own = _identifier(fields, _REQUESTS) if stated else None
    return {"request_id": own, "parent_id": parent, "states_parent": stated}


def _flattened(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a line and of the request body in it, named as in OpenAI's API."""
    for name in _BODIES:
        if isinstance(body := fields.get(name), dict):
            fields = fields | body
    if isinstance(fields.get("choices"), list) and "response" not in fields:
        fields["response"] = {"choices": fields["choices"]}
    if isinstance(fields.get("lora_request"), dict):
        fields.setdefault("lora_name", fields["lora_request"].get("lora_name"))
    for name in _CHATS:
        if fields.get(name) is not None:
            fields["messages"] = fields[name]
            break
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [x for each in fields["messages"] for x in _messages(each)]
    return fields


def _messages(message: Any) -> Iterable[Any]:
    """Return a message of ShareGPT or with `parts` as OpenAI's messages; others unchanged."""
    if not isinstance(message, dict):
        return [message]
    if "role" not in message and "from" in message:
        role = message["from"]
        role = _ROLES.get(role, role) if isinstance(role, str) else role
        rest = {key: value for key, value in message.items() if key not in {"from", "value"}}
        message = {**rest, "role": role, "content": message.get("value")}
    return from_parts(message, "messages")


def _chat(
    row: _Row,
    fields: Mapping[str, Any],
    messages: Sequence[Message],
    conversation: Sequence[Message] | None = None,
) -> Chat:
    arguments = dict(row.chat_template_kwargs or {})
    for name in _TEMPLATE_ARGUMENTS:
        if fields.get(name) is not None:
            arguments[name] = fields[name]
    return Chat(messages, row.tools, arguments, conversation)


def _answers(row: _Row) -> list[int]:
    """Return the indices of a conversation's answers, the first of assistants in a row; else []."""
    messages = row.messages or []
    if row.continue_final_message or row.response is not None or not messages:
        return []
    roles = [message.get("role") for message in messages]
    if roles[-1] != ASSISTANT:
        return []
    return [
        at for at in range(1, len(roles)) if roles[at] == ASSISTANT and roles[at - 1] != ASSISTANT
    ]


def _conversation(
    row: _Row,
    fields: Mapping[str, Any],
    answers: Sequence[int],
    start_s: float | None,
    common: dict[str, Any],
) -> list[LoggedRequest]:
    """Return a request per answer; it arrives at the time of the message before the answer.

    Without that time, the first request arrives at `start_s`, others at None. `answers` are indices
    of messages. `common` has the fields of `LoggedRequest` that all requests share, but for the
    parent's id, which only the first one gets. The retention directives go to the last request, the
    one that was logged.
    """
    messages = row.messages or []
    if common["session_id"] is None:
        common["session_id"] = randbits(62)  # the conversation has no name
    requests = []
    for number, at in enumerate(answers):
        asked_s = _time(messages[at - 1], _TIMES)
        requests.append(
            LoggedRequest(
                prompt=_chat(row, fields, messages[:at], messages),
                response=messages[at],
                arrival_s=start_s if asked_s is None and number == 0 else asked_s,
                retention=row.retention if at == answers[-1] else None,
                **common,
            )
        )
        common = common | {"parent_id": None}  # later turns follow in their session
    return requests


def _time(fields: Mapping[str, Any], names: Sequence[str]) -> float | None:
    times = (moment(fields.get(name), name) for name in names)
    return next((time_s for time_s in times if time_s is not None), None)


def _identifier(fields: Mapping[str, Any], names: Sequence[str]) -> Identifier | None:
    """Return the first of `names` with an id, in `fields` or else in their `metadata`, or None."""
    metadata = fields.get("metadata")
    for source in (fields, metadata if isinstance(metadata, dict) else {}):
        for name in names:
            if isinstance(value := source.get(name), str | int) and value != "":
                return value
    return None
