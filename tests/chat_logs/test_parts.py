"""Parts of prompts: where hash finds them, that the trace keeps them, and what explain makes of it.

Logs are drawn: conversations with a system prompt and six tools, with what breaks prefixes put into
one of their parts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

import kvscope
from kvscope.chat_logs import parts, tokenizer
from kvscope.chat_logs.formats.base import Chat, LoggedRequest, Message
from kvscope.chat_logs.parts import PartFinder
from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.store import traces
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_parts
from tests.chat_logs.models import write_model
from tests.chat_logs.test_hash import BLOCK, CALL, SYSTEM, TOOL, USER, Line, chatml, hashed, write
from tests.chat_logs.test_round_trip import _TEKKEN, _TEMPLATES, _WORDS, _said, drawn_log

Part = list[Any]
LOOKUP: Line = {"name": "lookup", "description": "Looks up é.", "parameters": {}}
TOOLS = [TOOL, {"type": "function", "function": LOOKUP}]


def tekken(name: str) -> Path:
    common = pytest.importorskip("mistral_common")
    return Path(common.__file__).parent / "data" / f"{name}.json"


library = cache(Library.from_file)


def cut(model: Path, chat: Chat) -> list[tuple[str, str]]:
    """Return the parts of a chat's prompt, with the text of their tokens."""
    made = tokenizer.load(str(model))
    made.marks_parts = True
    piece = made.prompt(LoggedRequest(prompt=chat))
    whole = made.encode([piece])[0] if isinstance(piece, tokenizer.Text) else piece
    cut, at = [], 0
    for kind, end in whole.parts:
        ids = [*whole.tokens[at:end]]
        if isinstance(made, tokenizer.TekkenTokenizer):
            text = b"".join(made._bytes(each, made._no_special) for each in ids).decode()
        else:
            assert isinstance(made, tokenizer.HuggingFaceTokenizer)
            text = library(f"{model}/tokenizer.json").decode(ids, skip_special_tokens=False)
        cut.append((kind, text))
        at = end
    assert at == len(whole.tokens)
    return cut


@pytest.mark.parametrize("name", [*_TEMPLATES, *_TEKKEN])
def test_each_message_is_in_the_part_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All that the prompt has of them, whatever the template moves; nothing else has their kind."""
    monkeypatch.setattr(tokenizer, "load", cache(tokenizer.load))  # takes half a second
    model = tekken(name) if name in _TEKKEN else tmp_path / "model"
    if name in _TEMPLATES:
        write_model(model, _TEMPLATES[name])
    for seed in range(6):
        for line in drawn_log(seed)[0]:
            body = line["request"]
            parts = cut(model, Chat(body["messages"], body.get("tools")))
            whole = "".join(text for _, text in parts)
            said: dict[str, list[str]] = {}
            for message in body["messages"]:
                kind = {"tool": "tool result"}.get(message["role"], message["role"])
                if (text := message["content"]) and text in whole:
                    said.setdefault(kind, []).append(text)
            for kind, texts in said.items():
                own = [text for of, text in parts if of == kind]
                # But for its first token, which may begin in the part before.
                assert all(any(text[8:] in each for each in own) for text in texts)
            assert ("tool 1" in dict(parts)) == ('"parameters"' in whole)


def test_parts_end_where_their_texts_do(model: Path, tmp_path: Path) -> None:
    """With the tokens in between; tools one by one, calls by their arguments; names on request."""
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "three"}]}
    chat = Chat([SYSTEM, USER, calling, result, {"role": "user", "content": "é?"}], TOOLS)
    begin = "<|im_end|>\n<|im_start|>"
    parts = cut(model, chat)
    kinds = ["tool 1", "tool 2", "system", "user", "assistant", "tool result", "user", "template"]
    assert [kind for kind, _ in parts] == kinds
    assert parts[0][1].startswith("<|im_start|>system\n{")
    assert parts[1][1].startswith('{"type": "function", "function": {"name": "lookup"')
    assert parts[3:] == [
        ("user", f"{begin}user\n{USER['content']}"),
        ("assistant", f'{begin}assistant\nsearch {{"q": 3}}'),
        ("tool result", f"{begin}tool\nthree"),
        ("user", f"{begin}user\né?"),
        ("template", f"{begin}assistant\n"),
    ]
    log = {"messages": chat.messages, "tools": chat.tools}
    (plain,) = hashed(model, tmp_path, log)
    (named,) = hashed(model, tmp_path, log, parts="names")
    (bare,) = hashed(model, tmp_path, log, parts="none")
    assert [kind for kind, _ in plain["parts"]] == kinds
    assert [kind for kind, _ in named["parts"]][:2] == ["tool 1 search", "tool 2 lookup"]
    assert [end for _, end in plain["parts"]] == [end for _, end in named["parts"]]
    assert plain["parts"][-1][1] == plain["input_length"]
    assert plain.keys() - bare.keys() == {"parts"}
    assert not hashed(model, tmp_path, {"prompt": "no chat"})[0].get("parts")


def test_a_tool_whose_name_may_be_a_persons_is_hashed(model: Path, tmp_path: Path) -> None:
    """As other names in a trace are."""
    tool = {"type": "function", "function": {"name": "call +49 170 1234567", "parameters": {}}}
    (line,) = hashed(model, tmp_path, {"messages": [USER], "tools": [tool]}, parts="names")
    assert line["parts"][0][0].startswith("tool 1 ")
    assert line["parts"][0][0].removeprefix("tool 1 ").isdecimal()


def test_what_a_template_rewrites_is_found_by_its_end_or_is_the_templates() -> None:
    """Tools that are no JSON go from name to name; long text of the template is a part itself."""
    said = "all that was not thought, and longer than its last words are"
    answer = {"role": "assistant", "content": f"<think>no {said}</think>first {said}"}
    chat = Chat([SYSTEM, USER, answer, {"role": "user", "content": "lookup"}], TOOLS)
    rules = "Rules that only the template has, long enough to be told apart from its marks. "
    tools = "search: nothing\nlookup: Looks up é.\n"
    text = f"{rules}{SYSTEM['content']}{tools}[{USER['content']}][{said}][lookup]"
    parts, at = [], 0
    for kind, end in PartFinder().parts_of(text, chat):
        parts.append((kind, text[at:end]))
        at = end
    assert [kind for kind, _ in parts][:4] == ["template", "system", "tool 1", "tool 2"]
    assert parts[0][1] == rules
    assert parts[2][1] == "search: nothing\n"
    assert [kind for kind, _ in parts][4:] == ["user", "assistant", "user", "template"]
    assert parts[4][1].endswith(f"[{USER['content']}")
    assert parts[5][1].endswith(said)
    lost = PartFinder().parts_of(
        text, Chat([SYSTEM, USER, {"role": "assistant", "content": "else"}])
    )
    assert [kind for kind, _ in lost] == ["template", "system", "user", "template"]


def test_messages_that_a_template_rewrites_are_not_looked_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each search reads the whole prompt."""
    looked_for = list[Line]()
    find = parts._find

    def counted(text: str, message: Line, at: int, needle: Any) -> Any:
        looked_for.append(message)
        return find(text, message, at, needle)

    monkeypatch.setattr(parts, "_find", counted)
    chat = Chat([{"role": "user", "content": f"message {k}"} for k in range(1000)])
    assert [kind for kind, _ in PartFinder().parts_of("MESSAGES", chat)] == ["template"]
    assert len(looked_for) < 100


def test_a_prompt_without_a_text_is_the_templates() -> None:
    """Of special tokens alone, which stand for no bytes."""
    empty = {"role": "user", "content": ""}
    assert [kind for kind, _ in cut(tekken(_TEKKEN[0]), Chat([empty]))] == ["template"]
    assert PartFinder().parts_of("", Chat([empty])) == []


def test_prompts_that_cannot_be_cut_have_parts_too(tmp_path: Path) -> None:
    """By the characters behind each token of the whole text."""
    write_model(tmp_path)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    library.add_special_tokens([AddedToken("<x>", special=True, lstrip=True, normalized=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    parts = cut(tmp_path, Chat([SYSTEM, USER]))
    assert "".join(text for _, text in parts) == chatml(SYSTEM, USER)
    assert [kind for kind, _ in parts] == ["system", "user", "template"]
    assert parts[0][1].endswith(SYSTEM["content"])


def conversations(
    change: Callable[[int, list[Message], list[Line]], None], tools: int = 6
) -> list[Line]:
    """Return a log of 300 requests in 20 hours; `change` breaks their heads, given the minute."""
    rng = random.Random(3)
    system = _said(rng, "system", 150)
    functions = [
        {"name": f"tool_{k}", "description": " ".join(rng.choices(_WORDS, k=60)), "parameters": {}}
        for k in range(tools)
    ]
    lines, going = [], list[list[Message]]()
    for number in range(300):
        if not going or rng.random() < 0.4:
            going.append([system | {"begun": number}, _said(rng, "user", 30)])
        messages = rng.choice(going[-4:])
        own = json.loads(json.dumps([messages, functions]))
        change(4 * number, *own)
        own[0][0].pop("begun")
        answer = _said(rng, "assistant", 25)
        body = {"messages": own[0]} | (
            {"tools": [{"type": "function", "function": each} for each in own[1]]} if tools else {}
        )
        line = {"request": body, "timestamp": 1_770_000_000 + 240 * number}
        lines.append(line | {"response": {"choices": [{"message": answer}]}})
        messages += [answer, _said(rng, "user", 30)]
    return lines


def dated(minute: int, _: list[Message], tools: list[Line]) -> None:
    """Put the hour into the third tool's schema."""
    tools[2]["description"] = f"At {minute // 60} o'clock. {tools[2]['description']}"


def named(_: int, messages: list[Message], __: list[Line]) -> None:
    """Put the name of a user into the system prompt, another one in each conversation."""
    words = messages[0]["content"].split()
    number = messages[0]["begun"]
    words.insert(60, f"Of {'Ann' if number % 3 else 'Bartholomew of Brünn'}, {number}.")
    messages[0]["content"] = " ".join(words)


def plain(_: int, __: list[Message], ___: list[Line]) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("model_of", "change", "tools", "part", "cause", "words"),
    [
        ("chatml", dated, 6, "tool 3", "periodic", "in the definition of tool 3 change hourly"),
        ("chatml", named, 6, "system", "growth", "at most -"),
        ("tekken_240911", plain, 0, "system", "template", "in the system prompt from token"),
        ("tekken_240911", plain, 2, "tool 1", "template", "in the definition of tool 1 from token"),
        ("chatml", plain, 6, None, "", ""),
    ],
)
def test_explain_names_the_part_in_which_prefixes_break(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    model_of: str,
    change: Callable[[int, list[Message], list[Line]], None],
    tools: int,
    part: str | None,
    cause: str,
    words: str,
) -> None:
    """In the finding, in the table, in JSON and of the request that lost most; else in none."""
    log, trace = write(tmp_path / "log.jsonl", *conversations(change, tools)), tmp_path / "trace"
    kvscope.hash_logs(log, trace, tokenizer=model if model_of == "chatml" else tekken(model_of))
    command = ["explain", str(trace), "--db", str(tmp_path / "store.duckdb")]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["cause"] for each in found["findings"] if each["part"]} == {cause} - {""} or (
        change is dated
    )
    if part is None:
        assert found["parts"] == []
        return
    first, total = found["findings"][0], found["parts"][0]
    assert (first["cause"], first["part"]) == (cause, part)
    assert (total["part"], total["causes"][0]) == (part, cause)
    assert total["tokens"] >= first["tokens"] > 0.02 * found["input_tokens"]
    assert len(found["parts"]) == 1
    assert run(command) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert words in out
    assert "Parts of prompts in which prefixes break" in out
    if cause != "growth":
        worst = found["requests"][0]
        assert worst["part"] == part
        assert run([*command, "--request", str(worst["request"])]) == 0
        where = {"system": "system prompt"}.get(part, f"definition of {part}")
        assert f"Its prefix breaks in the {where}." in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def trace(model: Path, tmp_path: Path) -> Path:
    """Return a hashed log with the names of tools, and a request without parts."""
    lines = [{**each, "timestamp": at} for at, each in enumerate(drawn_log(2)[0])]
    hashed(model, tmp_path, *lines, {"prompt": "no chat", "timestamp": 999}, parts="names")
    return tmp_path / "trace.jsonl"


def kept(path: Path | str, db: str) -> list[list[Part] | None]:
    """Return the parts of each request of an ingested trace."""
    with kvscope.open_trace(path, db=db) as opened, opened.store.reading() as store:
        parts = load_parts(store, opened.facts)
        assert parts is not None
        every = [parts.of(request) for request in range(opened.facts.requests)]
    return [each and [[*part] for part in each] for each in every]


@pytest.mark.parametrize("to", ["bailian", "parquet"])
def test_parts_survive_ingest_export_and_ingest(trace: Path, tmp_path: Path, to: str) -> None:
    """Each request's own; and those of a range of time, of a dataset, of a store that is saved."""
    expected = [json.loads(line).get("parts") for line in trace.read_text().splitlines()]
    assert expected[-1] is None
    assert any(kind.startswith("tool 1 ") for kind, _ in expected[0])
    db, back = str(tmp_path / "store.duckdb"), str(tmp_path / f"back.{to}")
    assert kept(trace, db) == expected
    assert run(["export", "trace", "--db", db, "--to", to, "-o", back]) == 0
    assert kept(back, db) == expected
    lines = trace.read_text().splitlines(keepends=True)
    halves = [tmp_path / f"{half}.jsonl" for half in (1, 2)]
    for half, own in zip(halves, (lines[:7], lines[7:]), strict=True):
        half.write_text("".join(own))
    folder = str(tmp_path / "dataset")
    assert run(["ingest", *map(str, halves), "--into", folder, "--workers", "1"]) == 0
    assert kept(folder, MEMORY) == expected
    assert run(["analyze", "trace", "--db", db, "--from", "3s", "--json"]) == 0
    saved = str(tmp_path / "saved.duckdb")
    assert run(["doctor", "--db", db, "--save-to", saved]) == 0
    with open_store(saved) as store:
        for name in ("trace", "trace@3-s"):
            (each,) = [x for x in traces.all_traces(store) if x.name == name]
            parts = load_parts(store, each)
            assert parts is not None
            own = [parts.of(request) for request in range(each.requests)]
            assert [x and [[*y] for y in x] for x in own] == expected[-each.requests :]
        for each in traces.all_traces(store):
            traces.remove(store, each)
        assert store.connection.execute("SELECT count(*) FROM parts").fetchone() == (0,)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([["system", 0]], "parts must end one after another, within the 40 tokens"),
        ([["system", 41]], "parts must end one after another, within the 40 tokens"),
        ([["system", 9], ["user", 9]], "parts must end one after another"),
        ([["system", -1]], "parts must end one after another"),
        ([["system", 2**63]], "parts"),
        ([["system", 2**70]], "parts"),
        ([["system", 1.5]], "parts[0][1]"),
        ([["secret", 9]], "no part of a prompt: 'secret'"),
        ([["tool 0", 9]], "no part of a prompt: 'tool 0'"),
        ([["tool 1 a\nb", 9]], "no part of a prompt"),
        ([["tool 1 " + "x" * 129, 9]], "no part of a prompt"),
        ([["user"]], "parts[0]"),
        ([["user", 9, 9]], "parts[0]"),
        ("user", "parts"),
    ],
)
@pytest.mark.parametrize("of", ["mooncake", "bailian", "parquet"])
def test_parts_that_cannot_be_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of: str, parts: object, reason: str
) -> None:
    """By the readers of all formats that keep them, before a kernel indexes by them."""
    path = tmp_path / "trace"
    if of == "parquet":
        polars = pytest.importorskip("polars")
        row = {"input_tokens": 40, "output_tokens": 1, "parts": json.dumps(parts)}
        polars.DataFrame([row]).write_parquet(path)
    else:
        line = {"input_length": 40, "output_length": 1, "timestamp": 1, "parts": parts}
        path.write_text(json.dumps(line | ({"chat_id": 1} if of == "bailian" else {})) + "\n")
    assert run(["ingest", str(path), "--db", ":memory:", "--strict"]) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert (reason if of != "parquet" else reason.partition("[")[0]) in said


def test_a_trace_without_parts_has_none(tmp_path: Path) -> None:
    """Nothing is stored of them."""
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"timestamp": 1, "input_length": BLOCK, "output_length": 1}) + "\n")
    with kvscope.open_trace(path) as opened, opened.store.reading() as store:
        assert load_parts(store, opened.facts) is None
