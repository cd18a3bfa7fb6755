"""The contract of a log format, and what all of them share: one file in this folder a format.

A format recognizes its logs by the keys of their lines and turns each line into requests with their
prompts. Tokens, hashes and the trace are made elsewhere, the same way for all formats.
"""

from __future__ import annotations

import math
import reprlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from kvscope.ingest.formats.base import BadLine, Identifier

Message = dict[str, Any]
Tool = dict[str, Any]

_NANOSECONDS, _MICROSECONDS, _MILLISECONDS = 1e17, 1e14, 1e11  # since 1970, from 1973 on
_LATEST_S = 1e11


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages that the model's chat template makes a prompt of.

    `arguments` go to the template under their names: those of `chat_template_kwargs`, `documents`,
    `reasoning_effort`, `add_generation_prompt` and `continue_final_message`.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


Prompt = Chat | str | list[int]
"""Messages, text or token ids."""


@dataclass(slots=True, kw_only=True)
class LoggedRequest:
    """One request as a log has it; everything but the prompt may be missing.

    `input_tokens`, `output_tokens` and `cached_tokens` are those that the log states. Without
    output tokens, `response` is tokenized to count them. `arrival_s` counts from 1970 or from any
    other zero, the times measured from the arrival. `adapter` is a LoRA adapter.
    """

    prompt: Prompt
    response: Message | str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    arrival_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    session: Identifier | None = None
    user: Identifier | None = None
    type: str | None = None
    model: str | None = None
    adapter: Identifier | None = None
    cache_salt: str | None = None
    worker: str | None = None


class LogFormat(ABC):
    """One log format: how it is recognized, how its lines are read.

    Each log gets a new reader, which may keep state; `left_out` counts, by reason, what is no
    request to a model.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()

    @classmethod
    @abstractmethod
    def recognizes(cls, keys: frozenset[str]) -> bool:
        """Return True if a log whose lines mostly have these keys is of this format."""

    @abstractmethod
    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the requests of a line, none where it logs something else.

        Raises BadLine, or any of msgspec's errors, with the reason.
        """


class TokenDetails(msgspec.Struct, gc=False):
    """The part of a prompt that the server found in its cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """The `usage` object of OpenAI's responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """The prompt tokens found in the server's cache."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Choice(msgspec.Struct, gc=False):
    message: Message | None = None
    text: str | None = None


class Response(msgspec.Struct, gc=False):
    """A response of OpenAI's chat completions or completions."""

    choices: list[_Choice] = []
    usage: Usage | None = None

    @property
    def answer(self) -> Message | str | None:
        """The first choice."""
        if not self.choices:
            return None
        return self.choices[0].message or self.choices[0].text


def seconds(value: object, name: str) -> float | None:
    """Return a time in s, None where there is none; raise BadLine where it is no time.

    Numbers that would lie after the year 5138 in seconds are taken for milli-, micro- or
    nanoseconds since 1970. Texts are numbers or ISO 8601, UTC unless they name a zone.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise BadLine(f"{name} is neither a number nor an ISO 8601 time: {reprlib.repr(value)}")
    for least, divisor in ((_NANOSECONDS, 1e9), (_MICROSECONDS, 1e6), (_MILLISECONDS, 1e3)):
        if abs(number) >= least:
            number /= divisor
            break
    if abs(number) > _LATEST_S:
        raise BadLine(f"{name} is no time: {reprlib.repr(value)}")
    return number


def difference(start_s: float | None, end_s: float | None) -> float | None:
    """Return the time between two moments, None where one is missing or they are reversed."""
    return None if start_s is None or end_s is None or end_s < start_s else end_s - start_s
