"""Conversion of logs to lines of a trace: batches are tokenized while others are read and hashed.

Lines are those of the Mooncake format with `session_id`, `block_size`, model, LoRA adapter, cache
salt, worker and measured times, as kvscope ingests them. They contain no text and no token ids:
ids of requests, sessions and users, cache salts and names that are no plain words are hashed.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import msgspec
from msgspec import Struct, field

from kvscope.chat_logs.formats.base import Chat, LogFormat, LoggedRequest
from kvscope.chat_logs.formats.helicone import Helicone
from kvscope.chat_logs.formats.langfuse import Langfuse
from kvscope.chat_logs.formats.litellm import LiteLLM
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.chat_logs.formats.openinference import OpenInference
from kvscope.chat_logs.formats.otlp import Otlp
from kvscope.chat_logs.formats.sglang import SGLang
from kvscope.chat_logs.hashing import Hasher
from kvscope.chat_logs.lineage import MessageLineage, TemplateBreaks
from kvscope.chat_logs.tokenizer import Encoded, Piece, Text, Tokenizer
from kvscope.core.background import in_background
from kvscope.core.errors import InputError
from kvscope.core.trace import Part
from kvscope.ingest.columns import LONGEST_S
from kvscope.ingest.formats.base import (
    TOO_LONG,
    UNUSABLE,
    BadLine,
    Identifier,
    Rejects,
    common_keys,
    field_names,
    reason_of,
)
from kvscope.ingest.formats.exporter import milliseconds, stated
from kvscope.ingest.limits import MAX_TOKENS
from kvscope.ingest.pipeline import UnusableLinesError
from kvscope.ingest.source import Source

FORMATS: dict[str, type[LogFormat]] = {
    known.name: known
    for known in (Helicone, Langfuse, LiteLLM, Otlp, OpenInference, SGLang, OpenAI)
}
"""Formats by name, in the order in which they are tried: LiteLLM's lines have `messages` too."""

_BATCH_CHARACTERS = 1 << 18
_BATCHES = 3
_MOST_CHARACTERS = 1 << 31  # of the prompts of one line, each of which repeats those before
_PLAIN = re.compile(r"[\w.:/+-]{1,128}", re.ASCII)
_DATE = re.compile(r"(?<!\d)20\d\d([-.]?)(0[1-9]|1[0-2])\1(0[1-9]|[12]\d|3[01])(?!\d)")
_PERSONAL = re.compile(
    r"(\d[-.:/+]?){9}"  # the number of a telephone, a card, an account
    r"|^[^a-z]*(\d[^a-z]*){7}$"
    r"|(?<!\d)\d{1,3}([.-]\d{1,3}){3}(?!\d)"  # an address of IPv4, IPv6 or MAC, of the web, of mail
    r"|^[\da-f]*:[\da-f:]*:[\da-f:.]*$"
    r"|://|[._-]at[._-].*\.[a-z]{2}",
    re.ASCII | re.IGNORECASE,
)
"""Matches what may be a person's number or address, in a name without its dates."""
_LOGGED_AT = re.compile(rb"\[[\d :,.-]{19,30}\] (?=\{)")
"""Matches the time that a logger, such as SGLang's, writes before a message that is JSON."""
_FAILS = "the tokenizer fails"
_LANGFUSE_TRACE = b'"observations":'


class HashCounts(Struct):
    """Counts over a log: converted `requests`, their input `tokens`, and requests by model.

    Of `compared` requests the log states the number of input tokens; for `different` ones the
    tokenizer counts another. `unread_answers` cannot be tokenized, and have no stated output
    tokens. `left_out` counts, by reason, lines and spans skipped, such as failed calls. `breaks`
    counts turns whose chat template changes the previous prompt's messages.
    """

    breaks: TemplateBreaks
    requests: int = 0
    tokens: int = 0
    compared: int = 0
    different: int = 0
    unread_answers: int = 0
    models: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


class _Record(Struct):
    """A request of a log line, with its prompt and answer; `is_last` marks the line's last one."""

    line: int
    is_last: bool
    request: LoggedRequest
    prompt: Piece
    answer: Piece | None

    @property
    def texts(self) -> list[Text]:
        """The texts to tokenize, in order."""
        return [piece for piece in (self.prompt, self.answer) if isinstance(piece, Text)]


class Converter:
    """Converts logs to lines of one trace, hashed with one salt."""

    def __init__(
        self, tokenizer: Tokenizer, hasher: Hasher, block_size: int, *, keeps_names: bool = False
    ) -> None:
        self._keeps_names = keeps_names  # of tools
        self.counts = HashCounts(breaks=TemplateBreaks(block_size))
        self._tokenizer, self._hasher, self._block_size = tokenizer, hasher, block_size
        self._lineage = MessageLineage()
        self._refused = 0  # the last line with a request that cannot be used
        self._encode = msgspec.json.Encoder().encode

    def lines(
        self,
        path: str,
        format_name: str | None,
        rejects: Rejects,
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[bytes]:
        """Yield the trace's lines for the log at `path`; add unusable log lines to `rejects`.

        `format_name` is in FORMATS (None: detected); `advance` is called with the bytes read.
        Raises InputError if the log cannot be read.
        """
        with closing(Source(path, advance)) as source:
            rejects.place = source.place
            kind = FORMATS[format_name] if format_name else None
            reader = (kind or detect(source.head, path))()
            self._refused = 0
            waiting: deque[tuple[list[_Record], Future[list[Encoded]]]] = deque()
            for batch in self._batches(source, reader, rejects):
                texts = [text for record in batch for text in record.texts]
                waiting.append((batch, in_background(self._tokenizer.encode, texts)))
                if len(waiting) == _BATCHES:
                    yield from self._hashed(*waiting.popleft(), rejects)
            while waiting:
                yield from self._hashed(*waiting.popleft(), rejects)
            self.counts.left_out += reader.left_out

    def _batches(
        self, source: Source, reader: LogFormat, rejects: Rejects
    ) -> Iterator[list[_Record]]:
        """Yield batches of records, each but the last of _BATCH_CHARACTERS, counting 1 a record."""
        batch: list[_Record] = []
        size = 0
        for line, text in _numbered_lines(source, rejects):
            for record in self._records(line, text, reader, rejects):
                batch.append(record)
                size += 1 + sum(len(piece.text) for piece in record.texts)
                if size >= _BATCH_CHARACTERS:
                    yield batch
                    batch, size = [], 0
            if rejects.is_hopeless:
                return
        if batch:
            yield batch

    def _records(
        self, line: int, text: bytes, reader: LogFormat, rejects: Rejects
    ) -> Iterator[_Record]:
        """Yield the requests of a line one by one: a conversation may have many turns.

        Stop at an unusable request and reject the line; those before it stay.
        """
        try:
            requests = reader.parse(text)
            date_s = None  # of the line, where a later request of it has no time
            characters = 0
            for k, request in enumerate(requests, 1):
                request.date_s = date_s = date_s if request.arrival_s is None else request.arrival_s
                prompt = self._tokenizer.prompt(request)
                characters += len(prompt.text) if isinstance(prompt, Text) else 0
                _require_few(characters)
                answer = self._answer(request, prompt)
                self._lineage.link(request)
                yield _Record(line, k == len(requests), request, prompt, answer)
        except UNUSABLE as error:
            private = error.private if isinstance(error, BadLine) else reason_of(error)
            rejects.reject(line, private)
        except (InputError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  (others are raised again)
            _require_library_error(error)
            rejects.reject(line, f"{_FAILS}: {type(error).__name__}")

    def _answer(self, request: LoggedRequest, prompt: Piece) -> Piece | None:
        """Return an answer to tokenize; None if missing, unreadable, or its tokens are stated."""
        if request.output_tokens is not None or request.response is None:
            return None
        try:
            return self._tokenizer.answer(request, prompt)
        except BadLine:
            self.counts.unread_answers += 1
            return None

    def _hashed(
        self, batch: list[_Record], encoded: Future[list[Encoded]], rejects: Rejects
    ) -> Iterator[bytes]:
        """Yield the trace's lines of a batch once it is tokenized."""
        try:
            tokens: Iterator[Encoded | BadLine] = iter(encoded.result())
        except BaseException as error:  # noqa: BLE001  (others are raised again)
            _require_library_error(error)
            tokens = map(self._encoded_alone, (text for record in batch for text in record.texts))

        def encoded_piece(piece: Piece) -> Encoded | BadLine:
            return next(tokens) if isinstance(piece, Text) else piece

        for record in batch:
            prompt = encoded_piece(record.prompt)
            answer = None if record.answer is None else encoded_piece(record.answer)
            if record.line == self._refused:  # an earlier turn of the same conversation
                continue
            try:
                line = self._line(record.request, _tokens(prompt), self._readable(answer))
            except BadLine as error:
                rejects.reject(record.line, error.private)
                self._refused = record.line
                continue
            line["repeated_tokens"] = self.counts.breaks.compare(record.request, line["hash_ids"])
            rejects.accepted += record.is_last
            self._count(record.request, line)
            yield self._encode(stated(line)) + b"\n"

    def _readable(self, answer: Encoded | BadLine | None) -> Encoded | None:
        """Return an answer's tokens; None, counted as unread, if the tokenizer failed."""
        if isinstance(answer, BadLine):
            self.counts.unread_answers += 1
            return None
        return answer

    def _encoded_alone(self, text: Text) -> Encoded | BadLine:
        """Return the tokens of a text of a failed batch, or BadLine if the library fails on it."""
        try:
            return self._tokenizer.encode([text])[0]
        except BaseException as error:  # noqa: BLE001  (others are raised again)
            _require_library_error(error)
            return BadLine(f"{_FAILS}: {type(error).__name__}")

    def _line(
        self, request: LoggedRequest, prompt: Encoded, answer: Encoded | None
    ) -> dict[str, Any]:
        """Return the fields of a request's line in the trace; None for fields to leave out."""
        tokens = prompt.tokens
        outputs = request.output_tokens if answer is None else len(answer.tokens)
        total = len(tokens) + (outputs or 0)
        if not len(tokens) or total > MAX_TOKENS or (outputs or 0) < 0:
            raise BadLine(f"tokens must be 1 to {MAX_TOKENS:,} with the answer's: {total}")
        salt = request.cache_salt
        return {
            "timestamp": milliseconds(request.arrival_s),
            "input_length": len(tokens),
            "output_length": outputs,
            "request_id": self._name("request", request.request_id),
            "parent_request_id": self._name("request", request.parent_id),
            "session_id": self._name("session", request.session_id),
            "user_id": self._name("user", request.user_id),
            "type": self._plain("type", request.type),
            "hash_ids": self._hasher.blocks(tokens),
            "block_size": self._block_size,
            "model": self._plain("model", request.model),
            "lora_name": self._plain("adapter", request.adapter or None),
            "cache_salt": str(self._hasher.name("salt", salt)) if salt else None,
            "worker": self._plain("worker", request.worker),
            "ttft_ms": _possible_ms(request.ttft_s),
            "queue_ms": _possible_ms(request.queue_s),
            "duration_ms": _possible_ms(request.duration_s),
            "cached_tokens": request.cached_tokens,
            "retention": request.retention,
            "parts": self._parts(request, prompt.parts) or None,
        }

    def _parts(self, request: LoggedRequest, parts: Sequence[Part]) -> list[Part]:
        """Return the prompt parts with tokens, with tools' names if the converter keeps these."""
        tools = request.prompt.tools if isinstance(request.prompt, Chat) else None
        kept, at = list[Part](), 0
        for kind, end in parts:
            name = None
            if self._keeps_names and kind.startswith("tool ") and tools and kind[5:].isdecimal():
                name = self._plain("tool", tools[int(kind[5:]) - 1]["function"]["name"])
            if end > at:
                kept.append(Part(kind if name is None else f"{kind} {name}", end))
                at = end
        return kept

    def _name(self, kind: str, identifier: Identifier | None) -> int | None:
        return None if identifier is None else self._hasher.name(kind, identifier)

    def _plain(self, kind: str, text: object) -> str | None:
        """Return a name unchanged if it is a plain word, else its hash; None if empty.

        The `kind` of name, such as "model", is hashed with it: equal names of two kinds differ.
        """
        if text is None or text == "":
            return None
        word = str(text)
        return word if _is_plain(word) else str(self._hasher.name(kind, word))

    def _count(self, request: LoggedRequest, line: dict[str, Any]) -> None:
        counts = self.counts
        counts.requests += 1
        counts.tokens += line["input_length"]
        counts.models[line["model"] or ""] += 1
        if request.input_tokens is not None:
            counts.compared += 1
            counts.different += request.input_tokens != line["input_length"]


def _is_plain(word: str) -> bool:
    """Return whether a trace may contain a word: short, no address or long number."""
    return bool(_PLAIN.fullmatch(word)) and not _PERSONAL.search(_DATE.sub("", word))


def _require_few(characters: int) -> None:
    """Raise BadLine if the prompts of one line have more than _MOST_CHARACTERS."""
    if characters > _MOST_CHARACTERS:
        raise BadLine(f"the prompts of its turns have more than {_MOST_CHARACTERS:,} characters")


def _require_library_error(error: BaseException) -> None:
    """Raise `error` again unless a library can have caused it: an Exception or a panic of Rust's.

    A MemoryError is raised again.
    """
    panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError) or not (panic or isinstance(error, Exception)):
        raise error


def _tokens(piece: Encoded | BadLine) -> Encoded:
    if isinstance(piece, BadLine):
        raise piece
    return piece


def _possible_ms(measured_s: float | None) -> int | float | None:
    """Return a measured time in ms, None if missing, negative or longer than LONGEST_S."""
    possible = measured_s is not None and 0 <= measured_s <= LONGEST_S
    return milliseconds(measured_s) if possible else None


def refuse_if_too_bad(rejects: Rejects, max_bad: float) -> None:
    """Raise UnusableLinesError if all lines are unusable, or a share above `max_bad`."""
    lines = rejects.accepted + rejects.count
    if not rejects.count or (rejects.accepted and rejects.count <= max_bad * lines):
        return
    line, reason = rejects.lines[0]
    share = f"more than {100 * max_bad:.3g}% of them" if rejects.accepted else "all of them"
    what = f"{rejects.count:,} of {lines:,} lines cannot be used, {share}"
    raise UnusableLinesError(
        f"{what}; the first: {rejects.where(line)}: {reason}",
        rejects,
        "correct them, or allow more with --max-bad; nothing was written",
    )


def detect(head: bytes, path: str) -> type[LogFormat]:
    """Return the format of the log at `path` that begins with `head`. Raises InputError if none."""
    if not head.strip():
        raise InputError("the log is empty", where=path)
    keys = common_keys(b"\n".join(map(_message, head.split(b"\n"))))
    for known in FORMATS.values():
        if known.recognizes(keys):
            return known
    if head.lstrip().startswith(b"["):
        remedy = "write its objects one per line, for example with `jq -c '.[]'`"
        raise InputError("one JSON array, not JSON lines", where=path, remedy=remedy)
    what, remedy = "no JSON lines", "an object over several lines becomes one with `jq -c .`"
    if keys:
        what = f"no prompts in lines with {field_names(sorted(keys))}"
        remedy = "give them `messages` or `prompt`, or name the format with --format"
    if _LANGFUSE_TRACE in head:
        remedy = "write the observations of Langfuse's traces as lines: `jq -c '.observations[]'`"
    raise InputError(what, where=path, remedy=remedy)


def _message(line: bytes) -> bytes:
    """Return a line without a logger's time in brackets before its JSON."""
    time = _LOGGED_AT.match(line)
    return line[time.end() :] if time else line


def _numbered_lines(source: Source, rejects: Rejects) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of lines with text; reject long ones. Raises InputError if truncated."""
    for first, text in source.lines():
        if text is None:
            rejects.reject(first, TOO_LONG)
            continue
        for number, line in enumerate(text.split(b"\n"), first):
            if line and not line.isspace():
                yield number, _message(line)
    if source.is_cut:
        raise InputError(
            "the compressed data is cut", where=source.path, remedy="copy the file again"
        )
