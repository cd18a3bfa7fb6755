"""What tokenizers and templates do costs a line: dates, pieces, failures, and no text in a word."""

from __future__ import annotations

import stat
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from kvscope.chat_logs import isolated
from kvscope.chat_logs.hashing import Hasher, salt, tokens_of
from kvscope.chat_logs.template import ChatTemplate
from kvscope.chat_logs.tokenizer import HuggingFaceTokenizer, Text
from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import BadLine
from tests.chat_logs.models import SPECIAL, TEMPLATE, write_model
from tests.chat_logs.test_hash import ANSWER, MORE, SYSTEM, USER, Line, hashed, tokens, write
from tests.long import long

DATED = "{{ '<|im_start|>' + strftime_now('%d %b %Y') }}" + TEMPLATE
FRUIT = "pomegranate"


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dated")
    write_model(folder, DATED)
    return folder


def test_the_date_of_a_template_is_that_of_the_request(
    dated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In UTC, whatever the machine's zone and today are; 1970 where a line has no time."""
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    times = [1_600_000_000, 1_600_000_000 + 86_400, None]
    prompts = ["13 Sep 2020", "14 Sep 2020", "01 Jan 1970"]
    asked = [{"messages": [USER]} | ({"timestamp": at} if at else {}) for at in times]
    lines = hashed(dated, tmp_path, *asked)
    body = f"<|im_start|>user\n{USER['content']}<|im_end|>\n<|im_start|>assistant\n"
    ids = [tokens(dated, f"<|im_start|>{date}{body}") for date in prompts]
    assert [line["input_length"] for line in lines] == [*map(len, ids)]
    kept = tmp_path / "salt"
    first = hashed(dated, tmp_path, asked[0], salt_file=kept)
    hasher = Hasher(bytes.fromhex(kept.read_text()), 4)
    assert first[0]["hash_ids"] == hasher.blocks(tokens_of(ids[0]))


def test_a_conversation_has_one_date(dated: Path, tmp_path: Path) -> None:
    """Its later turns have no time of their own, and go on with the first one's prompt."""
    chat = [SYSTEM, USER, ANSWER, MORE, ANSWER]
    first, second = hashed(dated, tmp_path, {"messages": chat, "timestamp": 1_600_000_000})
    count = len(first["hash_ids"])
    assert second["hash_ids"][:count] == first["hash_ids"]


def test_a_note_states_the_zone_and_lines_without_a_time(
    dated: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvscope.cli.app import run

    log = write(tmp_path / "log.jsonl", {"messages": [USER]})
    for folder in (dated, model):
        assert (
            run(
                ["hash", str(log), "--tokenizer", str(folder), "-o", str(tmp_path / "t"), "--force"]
            )
            == 0
        )
    noted = [line for line in capsys.readouterr().err.splitlines() if "date" in line]
    assert len(noted) == 1
    assert "in UTC, 1970-01-01 where a line has no time" in noted[0]


def test_pieces_have_the_tokens_of_the_whole(model: Path) -> None:
    """Special tokens anywhere, also without text between, and blanks around them."""
    random = Random(5)
    words = [*SPECIAL, "<|im", "|>", " ", "  \n", "How many", "blocks", "é", "\u200b", "12", "<s"]
    texts = ["".join(random.choice(words) for _ in range(random.randrange(30))) for _ in range(500)]
    tokenizer = HuggingFaceTokenizer(model)
    assert tokenizer._special is not None
    expected = [tokens(model, text) for text in texts]
    for _ in range(2):  # also from what is kept
        assert [[*x.tokens] for x in tokenizer.encode([Text(text) for text in texts])] == expected


@pytest.mark.parametrize(
    "added",
    [
        AddedToken("<x>", special=True, lstrip=True, normalized=False),
        AddedToken("<x>", special=True, single_word=True, normalized=False),
        AddedToken("<x>", special=True, normalized=True),
        AddedToken("a<s>", special=True, normalized=False),
        AddedToken("x><", special=True, normalized=False),
    ],
)
def test_prompts_are_not_cut_where_pieces_would_differ(tmp_path: Path, added: AddedToken) -> None:
    """Special tokens that take what is before them, contain others, or overlap them."""
    write_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens([added])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "how many <x><s> blocks a<s>a <x>"
    (encoded,) = HuggingFaceTokenizer(tmp_path).encode([Text(text)])
    assert [*encoded.tokens] == tokens(tmp_path, text)


def test_a_text_that_breaks_the_tokenizer_costs_its_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception or a panic: the other lines of the batch are hashed."""

    class PanicException(BaseException):  # as pyo3 has it
        pass

    whole = HuggingFaceTokenizer.encode

    def breaking(self: HuggingFaceTokenizer, texts: Any) -> Any:
        for text in texts:
            if FRUIT in text.text:
                raise PanicException(text.text)
        return whole(self, texts)

    monkeypatch.setattr(HuggingFaceTokenizer, "encode", breaking)
    asked = [{"messages": [USER | {"content": text}]} for text in ("a b", FRUIT, "c d")]
    assert len(hashed(model, tmp_path, *asked, max_bad=0.5)) == 2
    with pytest.raises(InputError, match="the tokenizer fails: PanicException"):
        hashed(model, tmp_path, *asked)
    assert FRUIT not in capsys.readouterr().err


def test_a_tokenizer_without_an_unknown_token_costs_a_line_each(tmp_path: Path) -> None:
    """WordLevel, which knows two words."""
    write_model(tmp_path / "model")
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1}))
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    lines = hashed(
        tmp_path / "model", tmp_path, {"prompt": "hello"}, {"prompt": "other"}, max_bad=0.5
    )
    assert [line["input_length"] for line in lines] == [1]


@pytest.mark.parametrize(
    "source",
    ["{% if 1 %}" * 3000 + "{% endif %}" * 3000, "{{", "{% unknown %}", "{{ 1 }}{% for %}"],
)
def test_a_template_that_cannot_be_compiled_is_named(source: str) -> None:
    with pytest.raises(BadLine, match="not a chat template: "):
        ChatTemplate({"default": source}, {})


ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ (messages | length * 10) ** (10 ** 9) }}",
)


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_never_ends_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Loops without output, and arithmetic that no signal interrupts."""
    monkeypatch.setattr(isolated, "LIMIT_S", 0.5)
    write_model(
        tmp_path / "model", "{% if messages|length > 1 %}fine{% else %}" + source + "{% endif %}"
    )
    bad, good = {"messages": [USER]}, {"messages": [SYSTEM, USER]}
    assert len(hashed(tmp_path / "model", tmp_path, bad, good, max_bad=0.5)) == 1
    with pytest.raises(InputError, match="the chat template fails: TimeoutError"):
        hashed(tmp_path / "model", tmp_path, bad)


HARMFUL = (
    "{{ raise_exception('No: ' + messages[0].content) }}",
    "{% for a in range(99999) %}{{ messages[0].content * 9999 }}{% endfor %}",
    "{{ messages[0].content.nothing.at_all }}",
    "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(messages[0].content) }}",
    "{{ 1 / 0 }}",
)


@pytest.mark.parametrize("source", HARMFUL)
def test_what_a_template_does_costs_a_line_and_repeats_no_text(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(
        tmp_path / "model", "{% if messages|length > 1 %}fine{% else %}" + source + "{% endif %}"
    )
    bad, good = {"messages": [USER | {"content": FRUIT}]}, {"messages": [SYSTEM, USER]}
    assert len(hashed(tmp_path / "model", tmp_path, bad, good, max_bad=0.5)) == 1
    with pytest.raises(InputError, match="the chat template") as caught:
        hashed(tmp_path / "model", tmp_path, bad)
    assert FRUIT not in f"{caught.value}{capsys.readouterr().err}"


@pytest.mark.parametrize("lines", [1_000, long(100_000)])
def test_of_a_large_log_the_lines_are_lost_that_break_a_library(
    tmp_path: Path, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One in a hundred, in each of these ways and by a word that the tokenizer has no token for."""
    branches = [
        f"{{% if messages[0].content == '{FRUIT} {at}' %}}{source}{{% endif %}}"
        for at, source in enumerate(HARMFUL)
    ]
    write_model(tmp_path / "model", "".join(branches) + "{{ messages[0].content }}")
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    said = [
        f"{FRUIT} {at // 100 % (len(HARMFUL) + 1)}" if at % 100 == 50 else "hello world " * 8
        for at in range(lines)
    ]
    log = ({"messages": [{"role": "user", "content": each}]} for each in said)
    made = hashed(tmp_path / "model", tmp_path, *log, max_bad=0.01)
    assert [line["input_length"] for line in made] == [16] * (lines - lines // 100)
    assert FRUIT not in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        {"messages": FRUIT}, {"messages": [FRUIT]},
        {"messages": [{"role": 3, "content": FRUIT}]},
        {"messages": [USER | {"content": {"text": FRUIT}}]},
        {"messages": [USER | {"content": [{"type": FRUIT}]}]},
        {"messages": [USER | {"content": [{"type": "text", "text": [FRUIT]}]}]},
        {"messages": [USER], "timestamp": FRUIT}, {"messages": [USER], "tools": [{FRUIT: 1}]},
        {"messages": [{"role": "assistant", "tool_calls": FRUIT}, USER]},
        {"prompt": {"text": FRUIT}}, {"prompt": [FRUIT, 3]}, {"input": [{"type": FRUIT}]},
        {"messages": [USER], "model": [FRUIT]}, {"messages": [USER], "session_id": [FRUIT]} | {
            "worker": {"a": FRUIT}
        },
        {"system": {"text": FRUIT}, "messages": [FRUIT]},
        {"input": "x", "previous_response_id": FRUIT},
    ],
)  # fmt: skip
def test_no_message_holds_text_of_a_log(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: Line
) -> None:
    with pytest.raises(InputError) as caught:
        hashed(model, tmp_path, line, log_format="openai")
    assert FRUIT not in f"{caught.value}{caught.value.remedy}{capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("meta-llama/Llama-3.1-8B", True), ("gpt-4o-2024-08-06", True), ("worker-3", True),
        ("claude-3-5-sonnet-20241022", True), ("alice@example.com", False),
        ("+49-151-23456789", False), ("078-05-1120", False), ("10.21.103.144:8000", False),
        ("10.1.2.3", False), ("worker-192-168-0-1", False), ("fe80::1", False), ("555-1234", False),
        ("2001:db8::ff00:42:8329", False), ("00:1a:2b:3c:4d:5e", False), ("1234567", False),
        ("https://example.com/alice", False), ("alice_at_example.com", False),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", True), ("engine-12", True), ("0", True),
        ("ft:gpt-3.5-turbo-0125:acme::abc123", True), ("20250514", True), ("v1.2.3", True),
    ],
)  # fmt: skip
def test_names_that_may_be_a_persons_are_hashed(
    model: Path, tmp_path: Path, word: str, plain: bool
) -> None:
    (line,) = hashed(model, tmp_path, {"messages": [USER], "model": word, "type": word})
    assert (line["model"] == line["type"] == word) is plain
    assert (word in (tmp_path / "trace.jsonl").read_text()) is plain


def test_a_salt_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "salt"
    with salt(str(path)) as first:
        pass
    for mode in (0o640, 0o604, 0o660, 0o777):
        path.chmod(mode)
        with pytest.raises(InputError, match="other users can read it"), salt(str(path)):
            pass
    path.chmod(0o600)
    with salt(str(path)) as second:
        assert second == first


def test_a_salt_that_another_run_has_read_is_kept(tmp_path: Path) -> None:
    """The run that made it fails; the other one's trace was hashed under it."""
    path = tmp_path / "salt"
    read = []

    def fail_after_another_run() -> None:
        with salt(str(path)) as first:
            with salt(str(path)) as second:
                read.extend([first, second])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_after_another_run()
    with salt(str(path)) as third:
        assert [third] * 2 == read
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(KeyboardInterrupt), salt(str(tmp_path / "alone")):
        raise KeyboardInterrupt
    assert not (tmp_path / "alone").exists()


def test_memory_and_time_of_a_conversation_are_those_of_its_pieces(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each distinct piece is tokenized once, each message digested once."""
    encoded: list[str] = []
    from kvscope.chat_logs import lineage

    whole, digest = HuggingFaceTokenizer._encoded, lineage._digest

    def counting(self: HuggingFaceTokenizer, texts: Any, **options: Any) -> Any:
        encoded.extend(texts)
        return whole(self, texts, **options)

    digests: list[object] = []

    def digesting(before: bytes, message: Any) -> bytes:
        digests.append(message)
        return digest(before, message)

    monkeypatch.setattr(HuggingFaceTokenizer, "_encoded", counting)
    monkeypatch.setattr(lineage, "_digest", digesting)
    turns = [
        {"role": role, "content": f"{role} {turn}"}
        for turn in range(100)
        for role in ("user", "assistant")
    ]
    lines = hashed(model, tmp_path, {"messages": turns})
    assert len(lines) == 100
    assert len(encoded) < 1_000  # 20,200 pieces in all prompts together
    assert len(digests) < 1_000
