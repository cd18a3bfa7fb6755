"""The interface of log formats, one file each in this folder, and the types that they share.

A format recognizes its logs by the keys of their lines, and returns the requests of each line, with
prompts. Tokenizing and hashing are the same for all formats, and not done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct, field

from kvscope.core.trace import Directives
from kvscope.ingest.formats.base import Identifier, is_marked

ASSISTANT = "assistant"
Message = dict[str, Any]
Tool = dict[str, Any]


class Chat(Struct, frozen=True):
    """Messages from which the model's chat template renders a prompt.

    `arguments` are passed to the template by name: those of `chat_template_kwargs`, `documents`,
    `reasoning_effort`, `add_generation_prompt` and `continue_final_message`. `conversation` is the
    whole logged conversation: it begins with `messages` and ends with an answer.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    conversation: Sequence[Message] | None = None


class Rendered(NamedTuple):
    """A rendered prompt, and whether its template read the current date (`is_dated`).

    `ends[n]` is the index behind the text of the first n messages. The prompt of these alone is the
    text up to `ends[n]`, and the ending: the text behind the last message.
    """

    text: str
    is_dated: bool
    ends: dict[int, int]

    def of(self, messages: int) -> str | None:
        """Return the prompt of the first `messages` messages, None if it has no entry in `ends`."""
        if not self.ends or messages not in self.ends:
            return None
        return self.text[: self.ends[messages]] + self.text[self.ends[max(self.ends)] :]


Prompt = Chat | str | list[int]
"""Messages, text or token ids."""


class LoggedRequest(Struct, kw_only=True):
    """One request as logged; all fields but the prompt may be missing.

    The log states `input_tokens`, `output_tokens` and `cached_tokens`. Without `output_tokens`,
    `response` is tokenized to count them. `arrival_s` counts from 1970 or from any other zero,
    measured times from the arrival. `date_s` is the current time for the chat template. `adapter`
    is a LoRA adapter, `retention` the client's directives for its blocks. If the log
    `states_parent`, `parent_id` is the id of the request that this one continues (None: no parent).
    `MessageLineage` sets `name`, made from the messages, and `continues`, the name of the request
    that this one continues.
    """

    prompt: Prompt
    response: Message | str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    arrival_s: float | None = None
    date_s: float | None = None
    ttft_s: float | None = None
    queue_s: float | None = None
    duration_s: float | None = None
    name: str = ""
    continues: str | None = None
    request_id: Identifier | None = None
    parent_id: Identifier | None = None
    states_parent: bool = False
    session_id: Identifier | None = None
    user_id: Identifier | None = None
    type: str | None = None
    model: str | None = None
    adapter: Identifier | None = None
    cache_salt: str | None = None
    worker: Identifier | None = None
    retention: Directives | None = None


class LogFormat(ABC):
    """A log format: recognizes logs by their keys, and reads their lines.

    Lines with all keys of one of `marks` ("event obj out") are of it. Each log gets a new instance,
    which may have state; `left_out` counts lines and spans skipped (as failed calls) by reason.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()

    @classmethod
    def recognizes(cls, keys: frozenset[str]) -> bool:
        """Return whether a log is of this format, by the keys that most of its lines have."""
        return is_marked(cls.marks, keys)

    @abstractmethod
    def parse(self, line: bytes) -> Sequence[LoggedRequest]:
        """Return the requests of a line, () if it is skipped, as `left_out` counts.

        Raises BadLine, or any of msgspec's errors, with the reason.
        """
