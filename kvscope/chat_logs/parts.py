"""The ends of the parts of a rendered prompt: template, system prompt, tools, messages.

Templates do not mark parts, so each part is searched by its text: messages in order, system prompt
and tools anywhere, since templates move them. A text that a template rewrites is found by its last
characters, or not at all: then it counts as part of the template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from kvscope.chat_logs.formats.base import Chat, Message, Tool
from kvscope.chat_logs.messages import parsed_arguments, rendered_tools
from kvscope.core.trace import Part

_KINDS = {"system": "system", "developer": "system", "assistant": "assistant"} | dict.fromkeys(
    ("tool", "function", "ipython"), "tool result"
)
_TAIL = 48  # characters of a text by which its end is known
_MOST_MISSING = 32  # messages one after another
_LONGEST_MARK = 64  # characters of a template around messages; longer text is a part of its own

_Needle = Callable[[str], str]


class _Located(NamedTuple):
    """A part of a prompt: characters `begin` to `end` (excluded)."""

    end: int
    begin: int
    kind: str


class PartFinder:
    """Finds the parts of prompts; messages of the previous prompt are not searched again.

    `as_bytes`: in the prompts to search, each character stands for a byte of UTF-8.
    """

    def __init__(self, *, as_bytes: bool = False) -> None:
        self._needle: _Needle = _bytes_of if as_bytes else str
        self._text = ""  # of the prompt before, up to the end of its last message
        self._head: list[_Located] = []
        self._messages: Sequence[Message] = ()
        self._said: list[_Located] = []
        self._parts: list[Part] = []

    def parts_of(self, text: str, chat: Chat) -> list[Part]:
        """Return the parts of a chat's prompt, each with the index behind its last character."""
        needle = self._needle
        system = [*takewhile(lambda message: _kind(message) == "system", chat.messages)]
        head = [part for each in system if (part := _find(text, each, 0, needle))]
        head += _tools(text, chat.tools or (), max((part.end for part in head), default=0), needle)
        begin = max((part.end for part in head), default=0)
        messages = chat.messages[len(system) :]
        if (
            self._head == head
            and messages[: len(self._messages)] == self._messages
            and text.startswith(self._text)
        ):
            said, parts = self._said, self._parts
        else:
            said, parts = [], [*_in_order(sorted(head), 0)]
        at = said[-1].end if said else begin
        more = _messages(text, messages[len(said) :], at, needle)
        if len(said) + len(more) == len(messages):
            parts = [*parts, *_in_order(more, parts[-1].end if parts else 0)]
            self._text, self._head, self._messages = (
                text[: parts[-1].end if parts else 0],
                head,
                messages,
            )
            self._said, self._parts = [*said, *more], parts
            return [*parts, *_rest(parts, text)]
        more = [*said, *more]
        if head:  # the template may have moved the head
            more = max(more, _messages(text, messages, 0, needle), key=len)
        parts = [*_in_order(sorted([*head, *more]), 0)]
        return [*parts, *_rest(parts, text)]


def _messages(text: str, messages: Iterable[Message], at: int, needle: _Needle) -> list[_Located]:
    """Return the messages found in `text` in their order, from character `at` on.

    `needle` returns a message's text in the form in which `text` has it (maybe as bytes). Stop
    after many missing ones in a row (rewritten by the template): each search reads the whole text.
    """
    parts, missing = [], 0
    for message in messages:
        if part := _find(text, message, at, needle):
            parts.append(part)
            at, missing = part.end, 0
        elif (missing := missing + 1) > _MOST_MISSING:
            break
    return parts


def _find(text: str, message: Message, at: int, needle: _Needle) -> _Located | None:
    """Return the first place of a message's texts and calls from `at` on, None if not found.

    `needle` is as in `_messages`.
    """
    begin = None
    for said in map(needle, _said(message)):
        places = ((text.find(known, at), len(known)) for known in (said, said[-_TAIL:]))
        place, length = next((each for each in places if each[0] >= 0), (at, 0))
        if length:
            begin = place if begin is None else begin
            at = place + length
    return None if begin is None else _Located(at, begin, _kind(message))


def _said(message: Message) -> Iterator[str]:
    """Yield the texts by which a message is found: content, and names and arguments of calls."""
    content, calls = message.get("content"), message.get("tool_calls")
    for part in content if isinstance(content, list) else (content,):
        said = part.get("text") if isinstance(part, dict) else part
        if isinstance(said, str) and said.strip():
            yield said.strip()
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            if isinstance(name := function.get("name"), str) and name.strip():
                yield name.strip()
            given = parsed_arguments(function.get("arguments"))
            yield json.dumps(given or {}, ensure_ascii=False)


def _tools(text: str, tools: Sequence[Tool], behind: int, needle: _Needle) -> list[_Located]:
    """Return the places of tool definitions: of their JSON if all are found, else name to name.

    Names are searched from `behind` (the end of the system prompt) on, else anywhere. `needle` is
    as in `_messages`.
    """
    rendered = rendered_tools(tools) if tools else []
    functions = [tool["function"] for tool in rendered]
    for indent in (None, 4, 2):
        for form in (rendered, functions, tools):
            texts = (json.dumps(each, ensure_ascii=False, indent=indent) for each in form)
            if parts := _in_sequence(text, map(needle, texts), 0):
                return parts
    names = [needle(str(each["name"])) for each in functions]
    parts = _in_sequence(text, names, behind) or _in_sequence(text, names, 0)
    ends = [*(part.begin for part in parts[1:]), *(part.end for part in parts[-1:])]
    return [part._replace(end=end) for part, end in zip(parts, ends, strict=True)]


def _in_sequence(text: str, tools: Iterable[str], at: int) -> list[_Located]:
    """Return the places of the `tools` texts, one after another; empty if one is missing."""
    parts = []
    for number, tool in enumerate(tools, 1):
        if (begin := text.find(tool, at)) < 0:
            return []
        at = begin + len(tool)
        parts.append(_Located(at, begin, f"tool {number}"))
    return parts


def _in_order(parts: Sequence[_Located], at: int) -> Iterator[Part]:
    """Yield the parts behind character `at` with their ends.

    Text in front of a part belongs to it, or if it has 64 characters or more to a part "template".
    """
    for part in parts:
        if part.begin - at >= _LONGEST_MARK:
            yield Part("template", part.begin)
        if part.end > at:
            yield Part(part.kind, part.end)
            at = part.end


def _rest(parts: Sequence[Part], text: str) -> list[Part]:
    """Return the text behind all parts as a template part; [] if there is none."""
    end = parts[-1].end if parts else 0
    return [Part("template", len(text))] if end < len(text) else []


def _kind(message: Message) -> str:
    return _KINDS.get(str(message.get("role")), "user")


def _bytes_of(text: str) -> str:
    """Return a text as a character for each byte of its UTF-8."""
    return text.encode(errors="replace").decode("latin-1")
