"""`kvscope hash`: logs with prompts become the trace that the engine's blocks make."""

from __future__ import annotations

import gzip
import json
import stat
from io import BytesIO, TextIOWrapper
from itertools import combinations
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from tokenizers import Tokenizer

import kvscope
from kvscope.app.hash_logs import HashOptions
from kvscope.chat_logs.convert import FORMATS
from kvscope.cli.app import run
from kvscope.core.errors import ExitCode

Line = dict[str, Any]
BLOCK = 4
ASK = "How many blocks does a prompt of three thousand tokens have, and which of them are cached?"
SYSTEM = {"role": "system", "content": "Answer as an engineer of a serving team would answer."}
USER = {"role": "user", "content": ASK}
ANSWER = {"role": "assistant", "content": "As many as its tokens fill."}
MORE = {"role": "user", "content": "And with blocks of 32 tokens?"}
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = {"type": "function", "id": "1", "function": {"name": "search", "arguments": '{"q": 3}'}}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def hashed(model: Path, tmp_path: Path, *lines: object, **options: Any) -> list[Line]:
    """Return the trace of a log with these lines."""
    log, trace = write(tmp_path / "log.jsonl", *lines), tmp_path / "trace.jsonl"
    kvscope.hash_logs(log, trace, tokenizer=model, block_size=BLOCK, force=True, **options)
    return [json.loads(line) for line in trace.read_bytes().splitlines()]


def chatml(*messages: Line, ends: bool = False) -> str:
    texts = [f"<|im_start|>{x['role']}\n{x['content']}<|im_end|>\n" for x in messages]
    return "".join(texts) + ("" if ends else "<|im_start|>assistant\n")


def tokens(model: Path, text: str, **options: Any) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=False, **options).ids)


def shared(one: list[int], other: list[int]) -> int:
    """Return in how many leading elements two lists agree; later ones must all differ."""
    count = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    assert not set(one[count:]) & set(other[count:])
    return count


def test_requests_share_the_full_blocks_in_which_their_tokens_agree(
    model: Path, tmp_path: Path
) -> None:
    """Chats, a text and token ids: prefixes of whole blocks, lengths, and nothing of the text."""
    chats = [[SYSTEM, USER], [SYSTEM, USER, ANSWER, MORE], [SYSTEM, MORE], [USER]]
    prompts = [tokens(model, chatml(*messages)) for messages in chats]
    prompts += [[2, *tokens(model, ASK)], [7] * 9]
    lines = hashed(
        model,
        tmp_path,
        *({"messages": messages, "timestamp": 5.5} for messages in chats),
        {"prompt": ASK, "created": "2026-01-01T00:00:01Z"},
        {"prompt": [7] * 9},
    )
    assert [line["input_length"] for line in lines] == [*map(len, prompts)]
    assert [len(line["hash_ids"]) for line in lines] == [len(p) // BLOCK for p in prompts]
    for one, other in combinations(range(len(lines)), 2):
        agreeing = [a == b for a, b in zip(prompts[one], prompts[other], strict=False)]
        full = min(len(prompts[one]), len(prompts[other])) // BLOCK
        common = (agreeing.index(False) if False in agreeing else len(agreeing)) // BLOCK
        got = shared(lines[one]["hash_ids"], lines[other]["hash_ids"])
        assert got == min(common, full)
    assert lines[0]["timestamp"] == 5500
    assert lines[4]["timestamp"] == 1767225601000
    assert len({*lines[5]["hash_ids"]}) == 2  # equal blocks at different depths differ
    text = json.dumps([[*line.values()] for line in lines])
    assert not any(
        word in text for word in (*ASK.split(), *SYSTEM["content"].split()) if len(word) > 4
    )


def test_a_trace_is_ingested_with_what_the_log_says(model: Path, tmp_path: Path) -> None:
    """Sessions, users, types, models, salts and measured times; answers are counted."""
    body = {"messages": [SYSTEM, USER], "model": "m/8b", "user": "me@example.org"}
    response = {"choices": [{"message": ANSWER}]}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    lines = hashed(
        model,
        tmp_path,
        {
            "request": body,
            "response": response,
            "timestamp": 1.7e9,
            "session_id": "s",
            "type": "chat",
        },
        {"request": body | {"messages": [SYSTEM, USER, ANSWER, MORE], "cache_salt": "secret"}}
        | {"response": response | {"usage": usage}, "timestamp": 1.7e12 + 9e3, "session_id": "s"},
        {"messages": [USER], "lora_name": "a name with blanks", "ttft_ms": 12.5},
    )
    assert lines[0]["output_length"] == len(tokens(model, ANSWER["content"] + "<|im_end|>"))
    assert (lines[1]["output_length"], lines[1]["cached_tokens"]) == (3, 4)
    assert lines[0]["session_id"] == lines[1]["session_id"]
    assert (lines[0]["model"], lines[0]["type"], lines[2]["ttft_ms"]) == ("m/8b", "chat", 12.5)
    text = (tmp_path / "trace.jsonl").read_text(encoding="utf-8")
    assert not any(name in text for name in ("secret", "example", "blanks"))
    with kvscope.open_trace(tmp_path / "trace.jsonl") as trace:
        assert trace.facts.requests == 3
        assert trace.facts.block_size == BLOCK
        assert trace.facts.lineage == "given"


def test_directives_stay_with_their_request(model: Path, tmp_path: Path) -> None:
    """Of a line or of the body in it; of a conversation with the last request, which was logged."""
    stated = {"retain": [{"to": 9, "priority": 80, "ttl_s": 300.0}], "pause": True}
    chat = [SYSTEM, USER]
    lines = hashed(
        model,
        tmp_path,
        {"messages": chat, "retention": stated},
        {"messages": chat},
        {"request": {"prompt": [ASK, SYSTEM["content"]], "retention": {"ends": True}}},
        {"messages": [*chat, ANSWER, MORE, ANSWER], "retention": stated},
    )
    ends = {"ends": True}
    assert [x.get("retention") for x in lines] == [stated, None, ends, ends, None, stated]
    with kvscope.open_trace(tmp_path / "trace.jsonl") as trace:
        assert trace.facts.requests == len(lines)


def test_a_conversation_is_a_request_per_answer(model: Path, tmp_path: Path) -> None:
    """Those of ShareGPT too; earlier turns are prefixes of later ones."""
    chat = [SYSTEM, USER, ANSWER, MORE, ANSWER]
    sharegpt = [
        {"from": "human" if x["role"] == "user" else "gpt", "value": x["content"]} for x in chat[1:]
    ]
    lines = hashed(model, tmp_path, {"messages": chat, "timestamp": 0}, {"conversations": sharegpt})
    ends = len(tokens(model, ANSWER["content"] + "<|im_end|>"))
    assert [line["output_length"] for line in lines] == [ends] * 4
    assert [line.get("timestamp") for line in lines] == [0, None, None, None]
    first, second = lines[0]["hash_ids"], lines[1]["hash_ids"]
    assert shared(first, second) == len(first)
    assert lines[1]["input_length"] == len(tokens(model, chatml(*chat[:4])))
    assert len({line["session_id"] for line in lines}) == 2


def test_the_template_gets_tools_calls_reasoning_and_arguments(model: Path, tmp_path: Path) -> None:
    """As vLLM hands them over."""
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "three"}]}
    chat = [USER, calling, result]
    lines = hashed(
        model,
        tmp_path,
        {"messages": chat, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [USER, ANSWER | {"reasoning_content": "Hm."}], "continue_final_message": True},
    )
    function = {"name": "search", "description": None, "parameters": {"type": "object"}}
    tool = json.dumps({"type": "function", "function": function})
    told = {"role": "assistant", "content": 'search {"q": 3}'}
    prompt = chatml({"role": "system", "content": tool}, USER, told, result | {"content": "three"})
    assert lines[0]["input_length"] == len(tokens(model, prompt + "<think></think>"))
    begun = chatml(USER) + "<think>Hm.</think>" + ANSWER["content"]
    assert lines[1]["input_length"] == len(tokens(model, begun))


def test_parents_that_a_log_names_are_kept(model: Path, tmp_path: Path) -> None:
    """As requests or as their responses; hashed, and followed before sessions."""
    chats = [[SYSTEM, USER], [SYSTEM, USER, ANSWER, MORE], [SYSTEM, USER, ANSWER, USER]]
    parents = [None, "first", "first"]
    rows = [
        {"messages": chat, "session_id": "s", "timestamp": at + 1} for at, chat in enumerate(chats)
    ]
    names = ["first", "second", "third"]
    by_request = [
        row | {"id": name, "parent_id": parent}
        for row, name, parent in zip(rows, names, parents, strict=True)
    ]
    by_response = [
        {"request": row | {"previous_response_id": parent}, "timestamp": row["timestamp"]}
        | {"response": {"id": name, "choices": [{"message": ANSWER}]}}
        for row, name, parent in zip(rows, names, parents, strict=True)
    ]
    for log in (by_request, by_response):
        lines = hashed(model, tmp_path, *log)
        assert "first" not in (tmp_path / "trace.jsonl").read_text(encoding="utf-8")
        assert {line.get("parent_request_id") for line in lines} == {None, lines[0]["request_id"]}
        back = tmp_path / "back.jsonl"
        command = ["export", str(tmp_path / "trace.jsonl"), "--to", "bailian", "-o", str(back)]
        assert run([*command, "--db", ":memory:", "--force"]) == 0
        exported = [json.loads(line) for line in back.read_text(encoding="utf-8").splitlines()]
        first = exported[0]["chat_id"]
        assert [line["parent_chat_id"] for line in exported] == [-1, first, first]


def test_later_logs_are_appended_under_the_same_salt(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from standard input: the traces of two days are one, as if hashed at once.

    But for `repeated_tokens`: messages are compared with those that are read in the same run.
    """
    first = {"messages": [SYSTEM, USER], "timestamp": 1}
    second = {"messages": [SYSTEM, USER, ANSWER, MORE], "timestamp": 2}
    command = ["hash", "-", "--tokenizer", str(model), "--block-size", str(BLOCK)]
    command += ["--salt-file", str(tmp_path / "salt"), "-o"]
    for name, lines in (("mon", [first]), ("tue", [second]), ("both", [first, second])):
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text)))
        assert run([*command, str(tmp_path / name)]) == 0
    days = [(tmp_path / name).read_bytes() for name in ("mon", "tue", "both")]
    apart, at_once = ([*map(json.loads, day.splitlines())] for day in (days[0] + days[1], days[2]))
    assert [line.pop("repeated_tokens", 0) for line in apart] == [0, 0]
    assert at_once[1].pop("repeated_tokens") > 0
    assert apart == at_once
    with kvscope.open_trace([tmp_path / "tue", tmp_path / "mon"]) as trace:
        blocks = [len(json.loads(day)["hash_ids"]) for day in days[:2]]
        assert (trace.facts.requests, trace.facts.distinct_blocks) == (2, max(blocks))


def test_the_salt_decides_the_hashes_and_is_kept_only_on_request(
    model: Path, tmp_path: Path
) -> None:
    """Each run has its own; a kept one is private, and no file is left by a run that fails."""
    salt, chat = tmp_path / "salt", {"messages": [USER], "session_id": 1}
    one, other = (hashed(model, tmp_path, chat) for _ in range(2))
    assert shared(one[0]["hash_ids"], other[0]["hash_ids"]) == 0
    one, other = (hashed(model, tmp_path, chat, salt_file=salt) for _ in range(2))
    assert one == other
    assert stat.S_IMODE(salt.stat().st_mode) == 0o600
    with pytest.raises(kvscope.InputError):
        hashed(model, tmp_path, {"messages": []}, salt_file=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    salt.write_text("not a salt", encoding="utf-8")
    with pytest.raises(kvscope.InputError, match="holds no salt"):
        hashed(model, tmp_path, chat, salt_file=salt)


def test_several_files_compressed_or_not_are_one_trace(model: Path, tmp_path: Path) -> None:
    """In the order in which they are named."""
    plain = write(tmp_path / "a.jsonl", {"messages": [USER]})
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps({"prompt": ASK}).encode()))
    trace = tmp_path / "t.jsonl.zst"
    assert kvscope.hash_logs([packed, plain], trace, tokenizer=model) == 2
    with kvscope.open_trace(trace) as opened:
        assert opened.facts.requests == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"messages": "hello"}, "Expected `array | null`, got `str` - at `$.messages`"),
        ({"messages": []}, "messages are empty"),
        ({"messages": [{"content": "x"}]}, "message without a role - at `$.messages[0]`"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "no such role"),
        ({"messages": [{"role": "user", "text": "x"}]}, "without content - at `$.messages[0]`"),
        ({"messages": [{"role": "user", "parts": 3}]}, "parts of messages are no list: a number"),
        ({"messages": [USER | {"content": [{"type": "image_url"}]}]}, "hashed: image_url"),
        ({"messages": [USER], "timestamp": "soon"}, "text of 4 characters"),
        ({"prompt": 3}, "prompt is neither text nor token ids: a number"),
        ({"prompt": [-1]}, "token ids must be integers from 0 to 2^32 - 1"),
        ({"model": "m"}, "missing required field `messages` or `prompt`"),
    ],
)
def test_bad_lines_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: object, reason: str
) -> None:
    """With place and reason; above 1 % nothing is written."""
    log = write(tmp_path / "log.jsonl", {"messages": [USER]}, line)
    trace = tmp_path / "trace.jsonl"
    words = ["hash", str(log), "--tokenizer", str(model), "-o", str(trace)]
    assert run(words) == ExitCode.INPUT
    error = capsys.readouterr().err
    assert f"{log}:2: " in error
    assert reason in error
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    assert run([*words, "--max-bad", "50%"]) == ExitCode.DONE
    assert len(trace.read_bytes().splitlines()) == 1


def test_every_format_can_be_forced() -> None:
    stated = get_args(get_type_hints(HashOptions)["log_format"])
    assert {name for kind in stated for name in get_args(kind)} == FORMATS.keys()


def test_what_cannot_be_read_is_said_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs without prompts, folders without a tokenizer, and a tokenizer of another model."""
    log = write(tmp_path / "log.jsonl", {"text": "x"})
    trace = str(tmp_path / "t")
    assert run(["hash", str(log), "--tokenizer", str(model), "-o", trace]) == ExitCode.INPUT
    assert "no prompts in lines with text" in capsys.readouterr().err
    for text in ('{"trace": {}, "observations": []}', '{\n"trace": {},\n"observations": []\n}'):
        log.write_text(text)
        assert run(["hash", str(log), "--tokenizer", str(model), "-o", trace]) == ExitCode.INPUT
        assert "`jq -c '.observations[]'`" in capsys.readouterr().err
    log = write(log, {"messages": [USER], "usage": {"prompt_tokens": 1}})
    assert run(["hash", str(log), "--tokenizer", str(tmp_path), "-o", trace]) == ExitCode.INPUT
    assert "neither tokenizer.json nor tekken.json" in capsys.readouterr().err
    assert run(["hash", str(log), "--tokenizer", str(model), "-o", trace]) == ExitCode.DONE
    assert "another prompt length for 1 of 1 requests" in capsys.readouterr().err


def test_a_tekken_json_gives_the_tokens_of_mistral_common(tmp_path: Path) -> None:
    """Of chats with tools, plain texts and ShareGPT's chats: a tokenizer as it ships."""
    common = pytest.importorskip("mistral_common")
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tekken = Path(common.__file__).parent / "data" / "tekken_240911.json"
    chat = [SYSTEM, USER, ANSWER, MORE]
    sharegpt = [{"from": "human", "value": ASK}]
    lines = hashed(
        tekken,
        tmp_path,
        {"messages": chat, "tools": [TOOL]},
        {"prompt": ASK},
        {"conversations": sharegpt},
        log_format="openai",
    )
    reference = MistralTokenizer.from_file(str(tekken))
    request = ChatCompletionRequest.from_openai(messages=chat, tools=[TOOL])
    expected = [
        reference.encode_chat_completion(request).tokens,
        reference.instruct_tokenizer.tokenizer.encode(ASK, bos=True, eos=False),
        reference.encode_chat_completion(ChatCompletionRequest.from_openai(messages=[USER])).tokens,
    ]
    assert [line["input_length"] for line in lines] == [*map(len, expected)]
    assert [len(line["hash_ids"]) for line in lines] == [len(ids) // BLOCK for ids in expected]


def test_ctrl_c_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a part of the trace nor the salt."""

    def interrupted(self: object, texts: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvscope.chat_logs.tokenizer.HuggingFaceTokenizer.encode", interrupted)
    log, salt = write(tmp_path / "log.jsonl", {"messages": [USER]}), tmp_path / "salt"
    words = ["hash", str(log), "--tokenizer", str(model), "-o", str(tmp_path / "t.jsonl")]
    assert run([*words, "--salt-file", str(salt)]) == ExitCode.INTERRUPTED
    assert [*tmp_path.iterdir()] == [log]
