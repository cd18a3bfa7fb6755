"""Conversations from messages: a request continues one whose messages and answer begin its own.

A request's name is a digest of its messages and its answer, so it is the same in every run. If no
answer equals the one in a request's history (clients drop reasoning and add calls), the request
continues the latest one whose messages begin its own.
"""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from kvscope.chat_logs.formats.base import ASSISTANT, Chat, LoggedRequest, Message
from kvscope.chat_logs.messages import parsed_arguments
from kvscope.ingest.formats.base import Identifier

_MOST = 1_000_000  # requests that can be continued
_MOST_BLOCKS = 1 << 23  # of prompts that later ones are compared with
_ENDING_TOKENS = 32
"""More tokens than a template writes behind the messages to tell the model to answer."""


class MessageLineage:
    """Finds the request that each request continues, among the earlier ones in the log."""

    def __init__(self) -> None:
        self._latest: OrderedDict[bytes, str] = OrderedDict()  # by what was asked, the last name
        self._ids: OrderedDict[str, Identifier] = OrderedDict()  # by the name of a request
        self._last: tuple[list[Message], list[bytes]] = [], [b""]

    def link(self, request: LoggedRequest) -> None:
        """Set `name` and `continues` of a chat.

        Unless the log states its parent, set `request_id`, if None, to `name`, and `parent_id` to
        the id of the request that it continues (None: none).
        """
        chat = request.prompt
        if not isinstance(chat, Chat):
            return
        digests = self._digests(chat.messages)
        answer = request.response
        said = {"content": answer} if isinstance(answer, str) else answer
        name = _name(digests[-1], said)
        parent = self._parent(chat.messages, digests, answered=said is not None)
        request.name, request.continues = name, parent
        if not request.states_parent:
            request.request_id = name if request.request_id is None else request.request_id
            request.parent_id = None if parent is None else self._ids.get(parent, parent)
        self._latest[digests[-1]] = name
        self._ids[name] = name if request.request_id is None else request.request_id
        if len(self._ids) > _MOST:
            self._ids.popitem(last=False)
        if len(self._latest) > _MOST:
            self._latest.popitem(last=False)

    def _digests(self, messages: Sequence[Message]) -> list[bytes]:
        """Return digests of the first 0, 1, ... all messages; reuse the last call's beginning."""
        before, digests = self._last
        if list(messages[: len(before)]) != before:
            before, digests = [], [b""]
        digests = digests[:]
        for message in messages[len(before) :]:
            digests.append(_digest(digests[-1], message))
        self._last = [*messages], digests
        return digests

    def _parent(
        self, messages: Sequence[Message], digests: Sequence[bytes], *, answered: bool
    ) -> str | None:
        """Return the name of the request that wrote the latest known answer in the history.

        An answer is known if an earlier request had exactly the messages before it. If none is
        known, the requests may be in another log: return the name that the last answer's request
        would have. Names cover an answer only where the log has answers, as it does if `answered`.
        None: no answer.
        """
        guess = None
        for at in range(len(messages) - 2, 0, -1):
            if messages[at].get("role") != ASSISTANT:
                continue
            exact = _name(digests[at], messages[at])
            if exact in self._ids:
                return exact
            if (latest := self._latest.get(digests[at])) is not None:
                return latest
            guess = guess or (exact if answered else _name(digests[at], None))
        return guess


class _Prompt(Struct, frozen=True):
    """The block hashes of a prompt; `context` is a digest of its tools and template arguments."""

    context: bytes
    ids: array[int]


class TemplateBreaks:
    """Finds prompts in which the chat template moved or changed the previous prompt's messages.

    Of the `compared` turns, `broken` do not begin with the previous prompt's tokens, and `lost`
    counts the tokens that they do not share. The ending of the previous prompt, which tells the
    model to answer, does not count.
    """

    def __init__(self, block_size: int) -> None:
        self.compared = self.broken = self.lost = 0
        self._block_size = block_size
        self._ending = 1 + _ENDING_TOKENS // block_size
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self._kept = 0

    def compare(self, request: LoggedRequest, ids: Sequence[int]) -> int | None:
        """Return the tokens of the previous prompt's messages, which the request's messages repeat.

        In whole blocks; None without a previous prompt, or if tools or arguments differ. Stores the
        block hashes, `ids`, of this one.
        """
        chat = request.prompt
        if not isinstance(chat, Chat):
            return None
        repeated_tokens = None
        setting = json.dumps([chat.tools, dict(chat.arguments)], sort_keys=True, default=str)
        prompt = _Prompt(blake2b(setting.encode(), digest_size=16).digest(), array("Q", ids))
        before = self._prompts.get(request.continues or "")
        if before is not None and before.context == prompt.context:
            known = before.ids[: max(len(before.ids) - self._ending, 0)]
            shared = len(known)
            if prompt.ids[:shared] != known:
                pairs = zip(known, prompt.ids, strict=False)
                equal = (k for k, (known_id, own_id) in enumerate(pairs) if known_id != own_id)
                shared = next(equal, min(len(known), len(prompt.ids)))
            repeated_tokens = len(known) * self._block_size
            self.compared += 1
            self.broken += shared < len(known)
            self.lost += (len(known) - shared) * self._block_size
        if (twin := self._prompts.pop(request.name, None)) is not None:
            self._kept -= len(twin.ids)
        self._prompts[request.name] = prompt
        self._kept += len(prompt.ids)
        while self._kept > _MOST_BLOCKS:
            self._kept -= len(self._prompts.popitem(last=False)[1].ids)
        return repeated_tokens


def _name(asked: bytes, answer: Mapping[str, Any] | None) -> str:
    said = b"" if answer is None else _digest(asked, {**answer, "role": ASSISTANT})
    return f"{asked.hex()}/{said.hex()}"


def _digest(before: bytes, message: Mapping[str, Any]) -> bytes:
    """Return the digest of a message's role, texts and tool calls (without ids), after `before`."""
    calls = message.get("tool_calls")
    functions = [
        [function.get("name"), parsed_arguments(function.get("arguments"))]
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict)
    ]
    said = [message.get("role"), _text(message.get("content")), functions]
    text = json.dumps(said, sort_keys=True)
    return blake2b(before + text.encode(), digest_size=16).digest()


def _text(content: Any) -> Any:
    """Return content as one text, joined if it is a list of parts."""
    if not isinstance(content, list):
        return content or ""
    return "\n".join(
        str(part.get("text")) if isinstance(part, dict) else str(part) for part in content
    )
