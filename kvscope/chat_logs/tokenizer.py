"""A model's tokenizer and chat template, from the files that ship with the model."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate, chain
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from msgspec import Struct, field

from kvscope.chat_logs.formats.base import Chat, LoggedRequest, Message, Rendered
from kvscope.chat_logs.hashing import Tokens, tokens_of
from kvscope.chat_logs.isolated import LibraryProcess
from kvscope.chat_logs.messages import for_mistral, plain_text
from kvscope.chat_logs.parts import PartFinder
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import content_of, json_object
from kvscope.core.trace import Part
from kvscope.ingest.formats.base import BadLine
from kvscope.ingest.limits import MAX_TOKENS

_EXTRA = "pip install 'kvscope[hash]'"
_SPECIAL = "_token"
_TEMPLATES = "kvscope.chat_logs.template"
_MOST_CHARACTERS = 1 << 25  # of pieces of prompts whose tokens are kept
_PIECES_AT_ONCE = 1024  # encodings take some hundred bytes a token
_MOST_NEW_PIECES = 8  # at the end of a prompt that a turn goes on with


class Text(Struct, frozen=True):
    """Text to tokenize; `is_raw`: no template wrote its special tokens, so the tokenizer adds them.

    `parts` end at character indices. An answer (`is_answer`) is not compared with earlier prompts.
    """

    text: str
    is_raw: bool = False
    is_answer: bool = False
    parts: Sequence[Part] = ()


class Encoded(Struct, frozen=True):
    """Tokens, and the parts of the prompt, each with the index behind its last token."""

    tokens: Tokens
    parts: Sequence[Part] = ()


Piece: TypeAlias = "Text | Encoded"


class Tokenizer(ABC):
    """Turns prompts into tokens as the engine does; with `marks_parts`, chats have parts."""

    marks_parts: bool = False

    @abstractmethod
    def prompt(self, request: LoggedRequest) -> Piece:
        """Return a request's prompt, as text to encode or as tokens. Raises BadLine if unusable."""

    @abstractmethod
    def answer(self, request: LoggedRequest, prompt: Piece) -> Piece:
        """Return the model's answer, with its end token. Raises BadLine if unusable."""

    @property
    def notes(self) -> list[str]:
        """Notes to the user on the prompts so far."""
        return []

    @abstractmethod
    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return the tokens of each text, in order; may run in a background thread."""


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer from a model's folder: tokenizer.json, its configuration, chat_template.jinja.

    `template` names another chat template. Source: transformers 5.19.0, tokenization_utils_base.py
    (apply_chat_template, from_pretrained) and tokenization_utils_tokenizers.py.
    """

    def __init__(self, folder: Path, template: str | None = None) -> None:
        for library in ("jinja2", "tokenizers"):
            if find_spec(library) is None:
                raise UsageError(f"needs {library}", where="kvscope hash", remedy=_EXTRA)
        path = folder / "tokenizer.json"
        special_map, config = (
            json_object(file) if (file := folder / name).is_file() else {}
            for name in ("special_tokens_map.json", "tokenizer_config.json")
        )
        special = _special_tokens(special_map | config)
        self._process = LibraryProcess(__name__, (str(path), special))
        facts = _begun(self._process, f"not a tokenizer: {path.name}", str(path))
        self._special = None if facts.boundaries is None else re.compile(facts.boundaries)
        self._encoding = Lock()
        self._longest_special = facts.longest
        self._finder, self._last = PartFinder(), _Cut("", [0])
        self._pieces: dict[str, Tokens] = {}
        self._piece_characters = 0
        self._token_ends: dict[str, Tokens] = {}  # of pieces in which parts end
        self._ends: tuple[list[int], list[int]] | None = None
        if "add_bos_token" in config or "add_eos_token" in config:
            first, last = (
                [facts.special[f"{end}{_SPECIAL}"]]
                if config.get(f"add_{end}_token") and f"{end}{_SPECIAL}" in facts.special
                else []
                for end in ("bos", "eos")
            )
            self._ends = first, last
        templates = _templates(folder, config, template)
        self._where = template or str(folder)
        self._template: LibraryProcess | None = None
        self._notes: set[str] = set()
        self._whole: Sequence[Message] = ()
        self._rendered_whole: dict[bool, tuple[Rendered, float | None]] = {}  # by whether it ends
        if templates:
            self._template = LibraryProcess(_TEMPLATES, (templates, special))
            _begun(self._template, "not a chat template", self._where)

    def prompt(self, request: LoggedRequest) -> Piece:
        """Return a chat as rendered text, or the request's own text or tokens."""
        prompt = request.prompt
        if isinstance(prompt, Chat):
            if self._template is None:
                raise InputError(
                    "no chat template, and the log has messages",
                    where=self._where,
                    remedy="name the template's file with --chat-template",
                )
            text = self._render(prompt, request.date_s)
            return _sound(
                Text(text, parts=self._finder.parts_of(text, prompt) if self.marks_parts else ())
            )
        if isinstance(prompt, str):
            return _sound(Text(prompt, is_raw=True))
        return Encoded(tokens_of(prompt))

    @property
    def notes(self) -> list[str]:
        """A note on the dates that the template wrote, if it wrote any."""
        if not self._notes:
            return []
        missing = ", 1970-01-01 where a line has no time" if "undated" in self._notes else ""
        return [f"the template writes a date: that of each request, in UTC{missing}"]

    def _render(self, chat: Chat, date_s: float | None, answer: Message | None = None) -> str:
        """Return the prompt of a chat, or the chat up to an answer's end. Raises BadLine."""
        text = self._of_conversation(chat, date_s, answer)
        return self._rendered_chat(chat, date_s, answer).text if text is None else text

    def _rendered_chat(self, chat: Chat, date_s: float | None, answer: Message | None) -> Rendered:
        assert self._template is not None  # noqa: S101  (checked before)
        given = Chat(chat.messages, chat.tools, chat.arguments)
        try:
            rendered: Rendered = self._template.ask(
                (given, date_s, answer), sum(map(_size, chat.messages))
            )
        except RuntimeError as error:
            raise BadLine(f"the chat template fails: {type(error).__name__}") from error
        if rendered.is_dated:
            self._notes.add("undated" if date_s is None else "dated")
        return rendered

    def _of_conversation(
        self, chat: Chat, date_s: float | None, answer: Message | None
    ) -> str | None:
        """Return the prompt, cut out of its conversation's rendering; None: render it alone."""
        whole, ended = chat.conversation, answer is not None
        count = len(chat.messages) + ended
        if whole is None or (ended and answer != whole[count - 1]):
            return None
        if self._whole is not whole:
            self._whole, self._rendered_whole = whole, {}
        if ended not in self._rendered_whole:
            all_ = Chat(whole[: len(whole) - ended], chat.tools, chat.arguments)
            try:
                rendered = self._rendered_chat(all_, date_s, whole[-1] if ended else None)
            except BadLine:  # of a later message
                rendered = Rendered("", is_dated=False, ends={})
            self._rendered_whole[ended] = rendered, date_s
        rendered, of_s = self._rendered_whole[ended]
        return None if rendered.is_dated and date_s != of_s else rendered.of(count)

    def answer(self, request: LoggedRequest, prompt: Piece) -> Piece:
        """Return the text that the template adds for the answer, up to its end token.

        If the chat with the answer does not begin with the prompt (say, the template drops earlier
        reasoning) or no template rendered it, return the answer's own text.
        """
        response = request.response
        assert response is not None  # noqa: S101  (asked only then)
        chat = request.prompt
        if isinstance(chat, Chat) and isinstance(prompt, Text) and self._template is not None:
            message: Message = (
                {"role": "assistant", "content": response}
                if isinstance(response, str)
                else response | {"role": "assistant"}
            )
            whole = self._render(chat, request.date_s, message)
            if whole.startswith(prompt.text):
                return _sound(Text(whole[len(prompt.text) :].rstrip(), is_answer=True))
        return _sound(Text(plain_text(response), is_answer=True))

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return the tokens of each text; raw texts get BOS and EOS as configured."""
        whole: list[Encoded] = [Encoded(tokens_of(()))] * len(texts)
        rendered = [at for at, text in enumerate(texts) if not text.is_raw]
        raw = [at for at, text in enumerate(texts) if text.is_raw]
        with self._encoding:
            prompts = self._rendered([texts[at] for at in rendered])
        for at, encoded in zip(rendered, prompts, strict=True):
            whole[at] = encoded
        first, last = self._ends or ([], [])
        plain = self._encoded([texts[at].text for at in raw], special=self._ends is None)
        for at, ids in zip(raw, plain, strict=True):
            whole[at] = Encoded(tokens_of([*first, *ids, *last]) if first or last else ids)
        return whole

    def _encoded(self, texts: Sequence[str], *, special: bool = False) -> list[Tokens]:
        if not texts:
            return []
        ids = self._process.ask(("ids", [*texts], special), sum(map(len, texts)))
        return [array("I", each) for each in ids]

    def _rendered(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return the tokens of rendered prompts; encode equal pieces between special tokens once.

        Tokenizers split at special tokens first, so the text between two of them has the same
        tokens in every prompt. Turns of a conversation repeat all pieces but the last ones.
        """
        if self._piece_characters > _MOST_CHARACTERS:
            self._pieces, self._token_ends, self._piece_characters = {}, {}, 0
        cuts, last = [], self._last
        for text in texts:
            before = _Cut("", [0]) if text.is_answer else last
            cuts.append((before, cut := self._cut(text, before)))
            last = last if text.is_answer else cut
        pieces = dict.fromkeys(chain(*(cut.pieces for _, cut in cuts)))
        new = [each for each in pieces if each not in self._pieces]
        for at in range(0, len(new), _PIECES_AT_ONCE):
            some = new[at : at + _PIECES_AT_ONCE]
            self._pieces |= zip(some, self._encoded(some), strict=True)
        self._piece_characters += sum(map(len, new))
        encoded = [self._of_pieces(text, *cut) for text, cut in zip(texts, cuts, strict=True)]
        self._last = last
        return encoded

    def _cut(self, text: Text, before: _Cut) -> _Cut:
        """Return a prompt cut into pieces, without those that it shares with the prompt `before`.

        Whether a cut lies at a character depends on the text before it, and on as many characters
        behind it as the longest special token has.
        """
        if self._special is None:
            return _Cut(text.text, [0], [text.text])
        shared = 0
        for start in before.starts[-1:-_MOST_NEW_PIECES:-1]:
            if text.text.startswith(before.text[:start]):
                shared = max(bisect_right(before.starts, start - self._longest_special) - 1, 0)
                break
        begin = before.starts[shared]
        pieces = self._special.split(text.text[begin:])
        if shared and not pieces[0]:
            del pieces[0]
        starts = accumulate(map(len, pieces[:-1]), initial=begin)
        return _Cut(text.text, [*before.starts[:shared], *starts], pieces, shared)

    def _of_pieces(self, text: Text, last: _Cut, cut: _Cut) -> Encoded:
        """Return a text's tokens: those of the pieces shared with `last`, then those of its own."""
        shared, begin = cut.shared, cut.starts[cut.shared]
        own = [self._pieces[piece] for piece in cut.pieces]
        tokens = last.counts[shared]
        counts = accumulate(map(len, own), initial=tokens)
        cut.counts = [*last.counts[:shared], *counts]
        cut.tokens = last.tokens[:tokens] + array("I", b"".join(each.tobytes() for each in own))
        known = bisect_right(text.parts, begin, key=lambda part: part.end)
        if text.parts[:known] == last.parts[:known]:
            rest = self._ending_at_tokens(text.parts[known:], cut.pieces, begin, tokens)
            cut.ended = [*last.ended[:known], *rest]
        else:
            pieces = [text.text] if self._special is None else self._special.split(text.text)
            cut.ended = [*self._ending_at_tokens(text.parts, pieces, 0, 0)]
        cut.parts = text.parts
        return Encoded(cut.tokens, cut.ended)

    def _ending_at_tokens(
        self, parts: Sequence[Part], pieces: Sequence[str], characters: int, tokens: int
    ) -> Iterator[Part]:
        """Yield `parts` with their ends counted in tokens instead of characters.

        Both are the index in the whole prompt behind a part's last character or token. `pieces` are
        the prompt from character `characters` and token `tokens` on. A token of two parts belongs
        to the first, as do blanks behind a part's last word.
        """
        at = 0
        for kind, end in parts:
            while at < len(pieces) and characters + len(pieces[at]) <= end:
                characters += len(pieces[at])
                tokens += len(self._pieces[pieces[at]])
                at += 1
            inner, piece = end - characters, pieces[at] if at < len(pieces) else ""
            if inner and not piece[inner:].isspace():
                yield Part(kind, tokens + bisect_left(self._ends_in(piece), inner) + 1)
            else:
                yield Part(kind, tokens + (len(self._pieces[piece]) if inner else 0))

    def _ends_in(self, piece: str) -> array[int]:
        """Return the character index behind each token of a piece."""
        if (ends := self._token_ends.get(piece)) is None:
            (as_bytes,) = self._process.ask(("ends", [piece], False), len(piece))
            ends = self._token_ends[piece] = array("I", as_bytes)
        return ends


class TekkenTokenizer(Tokenizer):
    """A tokenizer from a Mistral model's tekken.json, by mistral-common."""

    def __init__(self, path: Path) -> None:
        try:
            from mistral_common.protocol.instruct.request import ChatCompletionRequest
            from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
        except ImportError as error:
            raise UsageError(
                "needs mistral-common", where=str(path), remedy="pip install mistral-common"
            ) from error
        self._request = ChatCompletionRequest
        try:
            self._tokenizer = MistralTokenizer.from_file(str(path))
        except Exception as error:  # whatever a damaged file makes it raise
            raise InputError(f"not a tekken.json: {error}", where=str(path)) from error
        tekken = self._tokenizer.instruct_tokenizer.tokenizer
        self._encode, self._bytes = tekken.encode, tekken.id_to_byte_piece
        self._no_special = SpecialTokenPolicy.IGNORE
        self._finder = PartFinder(as_bytes=True)

    def prompt(self, request: LoggedRequest) -> Piece:
        """Return a chat as tokens, or the request's own text or tokens."""
        prompt = request.prompt
        if isinstance(prompt, str):
            return Text(prompt, is_raw=True)
        if not isinstance(prompt, Chat):
            return Encoded(tokens_of(prompt))
        try:
            asked = self._request.from_openai(
                messages=for_mistral(prompt.messages),
                tools=[*prompt.tools] if prompt.tools else None,
                continue_final_message=bool(prompt.arguments.get("continue_final_message")),
            )
            tokens = tokens_of(self._tokenizer.encode_chat_completion(asked).tokens)
        except BadLine:
            raise
        except Exception as error:  # mistral-common's own, pydantic's and assertions
            raise BadLine(f"mistral-common refuses the messages: {type(error).__name__}") from error
        return Encoded(tokens, self._parts(tokens, prompt) if self.marks_parts else ())

    def _parts(self, tokens: Tokens, chat: Chat) -> list[Part]:
        """Return the parts of a chat, found in the tokens' bytes; each ends at a token index."""
        texts = [self._bytes(token, self._no_special) for token in tokens]
        ends = [*accumulate(map(len, texts))]
        text = b"".join(texts).decode("latin-1")
        *parts, last = self._finder.parts_of(text, chat) or [Part("template", 0)]
        marked = [Part(kind, bisect_left(ends, end) + 1) for kind, end in parts]
        return [*marked, Part(last.kind, len(tokens))]  # with what has no bytes

    def answer(self, request: LoggedRequest, prompt: Piece) -> Piece:
        """Return the text of the answer, without the template's marks."""
        assert request.response is not None  # noqa: S101  (asked only then)
        return Text(plain_text(request.response))

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Return the tokens of each text: raw prompts begin with BOS, answers end with EOS."""
        return [
            Encoded(tokens_of(self._encode(text.text, bos=text.is_raw, eos=not text.is_raw)))
            for text in texts
        ]


def load(path: str, template: str | None = None) -> Tokenizer:
    """Return the tokenizer at `path`: a model's folder, a tokenizer.json in it, or a tekken.json.

    `template`: path of a chat template (UsageError with a tekken.json). InputError: a missing file.
    """
    place = Path(path)
    if place.is_dir():
        if (place / "tokenizer.json").is_file():
            return HuggingFaceTokenizer(place, template)
        tekken = next((p for p in (place / "tekken.json",) if p.is_file()), None)
        if tekken is None:
            raise InputError(
                "neither tokenizer.json nor tekken.json is in this folder",
                where=path,
                remedy="name the folder of a model as Hugging Face has it",
            )
        place = tekken
    if not place.is_file():
        raise InputError("no such file", where=path, remedy="name a model's folder")
    if place.name == "tokenizer.json":
        return HuggingFaceTokenizer(place.parent, template)
    if template is not None:
        raise UsageError("a tekken.json brings its own template", where="--chat-template")
    return TekkenTokenizer(place)


class _Cut(Struct):
    """A prompt cut into pieces; `pieces` omits the first `shared`, which the prompt before has too.

    Of all pieces, number i starts at character `starts[i]`, behind `counts[i]` tokens. `parts` end
    at characters; `ended` are the same parts by tokens.
    """

    text: str
    starts: list[int]
    pieces: list[str] = []
    shared: int = 0
    counts: list[int] = field(default_factory=lambda: [0])
    tokens: Tokens = field(default_factory=lambda: tokens_of(()))
    parts: Sequence[Part] = ()
    ended: list[Part] = []


class _Facts(Struct, frozen=True):
    """Facts of a tokenizer: ids of its `special` tokens by name, and where prompts can be cut.

    The regular expression `boundaries` matches where, None if no cut is safe. `longest` is the
    length of the longest added token in characters.
    """

    boundaries: str | None
    longest: int
    special: Mapping[str, int]


def _begun(process: LibraryProcess, what: str, where: str) -> Any:
    """Start a library's process and return its facts. Raises InputError if that fails.

    The error says `what` is wrong ("not a tokenizer: ...") and `where` (a path).
    """
    try:
        return process.start()
    except BadLine as error:
        raise InputError(str(error), where=where) from error
    except RuntimeError as error:
        raise InputError(f"{what} ({type(error).__name__})", where=where) from error


def service(settings: tuple[str, Mapping[str, str]]) -> tuple[_Facts, Callable[[Any], Any]]:
    """Return the facts of a tokenizer file, and a function that encodes texts.

    `settings` are the path of the file, a tokenizer.json, and special tokens by name, added if
    missing. The library may raise anything, panic or abort: see `LibraryProcess`.
    """
    import tokenizers

    path, special = settings
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises Exception itself
        raise BadLine(f"not a tokenizer: {error}") from error
    missing = [text for text in special.values() if tokenizer.token_to_id(text) is None]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in missing]
    )
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(request: tuple[str, list[str], bool]) -> list[bytes]:
        """Return the token ids of texts, or the character index behind each token, as uint32 bytes.

        `request` is ("ids", texts, whether to add special tokens) or ("ends", [one text], False).
        """
        what, texts, adds_special = request
        if what == "ends":
            offsets = tokenizer.encode(texts[0], add_special_tokens=False).offsets
            return [array("I", (end for _, end in offsets)).tobytes()]
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=adds_special)
        if any(len(each) > MAX_TOKENS for each in encodings):
            raise OverflowError
        return [array("I", each.ids).tobytes() for each in encodings]

    ids = {name: tokenizer.token_to_id(text) for name, text in special.items()}
    known = {name: token for name, token in ids.items() if token is not None}
    added = tokenizer.get_added_tokens_decoder().values()
    longest = max((len(each.content) for each in added), default=0)
    return _Facts(_boundaries(tokenizer), longest, known), encode


def _boundaries(tokenizer: Any) -> str | None:
    """Return a pattern of places before special tokens where prompts can be cut; None if unsafe.

    Unsafe: none, or special tokens absorb blanks before, are normalized, whole-word or can overlap.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    special = [each for each in added if each.special]
    words = [each.content for each in special]
    if not special or any(each.lstrip or each.single_word or each.normalized for each in special):
        return None
    if any(word in other for word in words for other in words if word != other):
        return None
    begins = {word[:size] for word in words for size in range(1, len(word))}
    if any(word[-size:] in begins for word in words for size in range(1, len(word))):
        return None  # two may overlap
    longest_first = sorted((re.escape(each.content) for each in special), key=len, reverse=True)
    return f"(?={'|'.join(longest_first)})"


def _size(message: Message) -> int:
    content = message.get("content")
    return len(content) if isinstance(content, str | list) else 0


def _sound(text: Text) -> Text:
    """Return the text unchanged; raise BadLine if it is no UTF-8 (half a surrogate pair)."""
    try:
        text.text.encode()
    except UnicodeEncodeError as error:
        raise BadLine("text with half a surrogate pair") from error
    return text


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a configuration, by their names in templates: bos_token."""
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith(_SPECIAL) and isinstance(text, str):
            tokens[name] = text
    return tokens


def _templates(folder: Path, config: Mapping[str, Any], chosen: str | None) -> dict[str, str]:
    """Return chat templates by name: of the file `chosen`, of the folder, else of `config`."""
    if chosen is not None:
        return {"default": _text(Path(chosen))}
    templates = {}
    stated = config.get("chat_template")
    if isinstance(stated, str):
        templates["default"] = stated
    elif isinstance(stated, list):
        for each in stated:
            if isinstance(each, dict):
                templates[str(each.get("name"))] = str(each.get("template"))
    if (file := folder / "chat_template.jinja").is_file():
        templates = {"default": _text(file)}
        for more in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            templates[more.stem] = _text(more)
    if templates and "default" not in templates:
        templates["default"] = next(iter(templates.values()))
    return templates


def _text(path: Path) -> str:
    try:
        return content_of(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
