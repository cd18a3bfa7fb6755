"""Bodies of Anthropic's and of the Responses API give the prompt of the same chat completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

import kvscope
from tests.chat_logs.models import write_model
from tests.chat_logs.test_hash import ANSWER, ASK, MORE, SYSTEM, TOOL, USER, Line, hashed, write


def test_a_response_that_is_continued_is_part_of_the_prompt(model: Path, tmp_path: Path) -> None:
    """Instructions are those of each request; an unknown response costs its line."""

    def responses(asked: str, name: str, before: str | None, said: str) -> Line:
        output = [{"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": said}
        ]}]  # fmt: skip
        body = {"instructions": SYSTEM["content"], "input": asked}
        known = {} if before is None else {"previous_response_id": before}
        return {"request": body | known, "response": {"id": name, "output": output}}

    said, more = ANSWER["content"], MORE["content"]
    lines = hashed(
        model,
        tmp_path,
        {"messages": [SYSTEM, USER]},
        {"messages": [SYSTEM, USER, ANSWER, MORE]},
        responses(ASK, "a", None, said),
        responses(more, "b", "a", said),
        responses(more, "c", "unknown", said),
        max_bad=0.5,
    )
    assert [line["hash_ids"] for line in lines[2:]] == [line["hash_ids"] for line in lines[:2]]
    assert len(lines) == 4
    assert lines[3]["parent_request_id"] == lines[2]["request_id"]


@pytest.mark.parametrize(
    "response",
    [
        {"choices": ["Choices(index=0, message=Message(content='ok'))"]},
        {"choices": [{"message": {"content": {"not": "text"}}}]},
        {"choices": "none"}, ["ok"], 3, {"output": [{"type": "new"}]},
        {"content": [{"type": "server_tool_use"}]}, '{"choices": [', {"usage": "much"},
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_costs_no_more_than_itself(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], response: Any
) -> None:
    counted = {"prompt_tokens": 80, "completion_tokens": 30}
    chat = {"request": {"messages": [USER]}, "response": response}
    lines = hashed(model, tmp_path, chat | counted, chat)
    assert lines[0]["output_length"] == 30
    assert lines[0]["hash_ids"] == lines[1]["hash_ids"] != []


@pytest.mark.parametrize(
    ("usage", "inputs", "cached"),
    [
        ({"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 16}}, 50, 16),
        ({"input_tokens": 50, "input_tokens_details": {"cached_tokens": 16}}, 50, 16),
        ({"input_tokens": 4, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 16},
         50, 30),
    ],
)  # fmt: skip
def test_token_counts_of_each_api_are_read(usage: Line, inputs: int, cached: int) -> None:
    """Anthropic's input tokens exclude cached ones, the others' include them."""
    from kvscope.chat_logs.formats.openai import OpenAI

    line = {"request": {"messages": [USER]}, "response": {"usage": usage | {"output_tokens": 7}}}
    (request,) = OpenAI().parse(json.dumps(line).encode())
    found = request.input_tokens, request.output_tokens, request.cached_tokens
    assert found == (inputs, 7, cached)


def test_messages_show_which_request_each_one_continues(model: Path, tmp_path: Path) -> None:
    """By the answer where it is in the history; else by the messages before any answer."""
    other = {"role": "assistant", "content": "As many as fit.", "reasoning": "Hm."}
    deeper = [SYSTEM, USER, ANSWER, MORE, other, USER]

    def logged(messages: list[Line], answer: Line) -> Line:
        return {"request": {"messages": messages}, "response": {"choices": [{"message": answer}]}}

    lines = hashed(
        model,
        tmp_path,
        logged([SYSTEM, USER], ANSWER),
        logged([SYSTEM, USER], other),
        logged([SYSTEM, USER, ANSWER, MORE], other),
        logged([SYSTEM, USER, {"role": "assistant", "content": "Cut."}, MORE], ANSWER),
        logged(deeper, ANSWER),
        logged([SYSTEM, MORE], ANSWER),
    )
    ids = [line["request_id"] for line in lines]
    assert len({*ids}) == 6
    parents = [None, None, ids[0], ids[1], ids[2], None]
    assert [line.get("parent_request_id") for line in lines] == parents
    with kvscope.open_trace(tmp_path / "trace.jsonl") as trace:
        assert trace.facts.lineage == "given"
        analysis = kvscope.analyze(trace)
    assert analysis is not None


MOVING = """\
{%- for message in messages %}
    {%- if message.role == 'user' and loop.last %}
        {{- '<|im_start|>' + messages[0].content }}
    {%- endif %}
    {%- if message.role != 'system' %}
        {{- '<|im_start|>' + message.role + message.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
"""
"""As Mistral's V3 does: the system prompt comes before the last message of the user."""


@pytest.mark.parametrize(
    ("template", "change", "broken"),
    [
        (MOVING, {}, 2),
        (None, {}, 0),
        (MOVING, {"tools": [TOOL]}, 0),
        (MOVING, {"chat_template_kwargs": {"x": 1}}, 0),
        (MOVING, {"messages": [SYSTEM | {"content": "Another. " * 40}, USER, ANSWER, MORE]}, 1),
    ],
)
def test_a_template_that_breaks_prefixes_is_said_with_its_cost(
    tmp_path: Path, template: str | None, change: Line, broken: int
) -> None:
    """Only where the messages begin alike, with the same tools and arguments."""
    from kvscope.chat_logs.convert import Converter
    from kvscope.chat_logs.hashing import Hasher
    from kvscope.chat_logs.tokenizer import HuggingFaceTokenizer
    from kvscope.ingest.formats.base import Rejects

    write_model(tmp_path / "model", template) if template else write_model(tmp_path / "model")
    long = SYSTEM | {"content": " ".join([SYSTEM["content"]] * 9)}
    chats: list[Line] = [
        {"messages": [long, USER]},
        {"messages": [long, USER, ANSWER, MORE]} | change,
        {"messages": [long, USER, ANSWER, MORE, ANSWER, USER]} | change,
    ]
    if "messages" in change:
        chats[2]["messages"] = [*change["messages"], ANSWER, USER]
    log = write(tmp_path / "log.jsonl", *chats)
    converter = Converter(HuggingFaceTokenizer(tmp_path / "model"), Hasher(bytes(32), 4), 4)
    lines = [json.loads(x) for x in converter.lines(str(log), None, Rejects(str(log)))]
    breaks = converter.counts.breaks
    found = breaks.broken
    if change and "messages" not in change:  # the first turn has other tools, the next the same
        assert breaks.compared == 1
        found -= 1
    assert found == broken
    ids = [line["hash_ids"] for line in lines]
    if broken == 2:
        ends = [len(each) - 1 - 32 // 4 for each in ids]
        shared = [
            next((k for k in range(end) if a[k] != b[k]), end)
            for a, b, end in zip(ids, ids[1:], ends, strict=False)
        ]
        lost = sum(end - kept for end, kept in zip(ends, shared, strict=False))
        assert breaks.lost == 4 * lost > 0


def test_the_cost_of_a_template_is_noted_from_one_percent(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvscope.cli.app import run

    long = SYSTEM | {"content": " ".join([SYSTEM["content"]] * 9)}
    chats = [{"messages": [long, USER]}, {"messages": [long, USER, ANSWER, MORE]}]
    log = write(tmp_path / "log.jsonl", *chats)
    write_model(tmp_path / "moving", MOVING)
    for folder in (tmp_path / "moving", model):
        assert (
            run(
                ["hash", str(log), "--tokenizer", str(folder), "-o", str(tmp_path / "t"), "--force"]
            )
            == 0
        )
    noted = [line for line in capsys.readouterr().err.splitlines() if "breaks prefixes" in line]
    assert len(noted) == 1
    assert "1 of 1 follow-up turns" in noted[0]


def test_items_that_are_sent_again_continue_the_response_before(
    model: Path, tmp_path: Path
) -> None:
    """Without `previous_response_id`, or with it: the same conversation."""
    items: list[Line] = []
    log = []
    for turn, text in enumerate(("first", "second", "third")):
        items = [*items, {"role": "user", "content": text}]
        said = {"type": "message", "role": "assistant", "content": [{"text": f"{text}!"}]}
        said["content"][0]["type"] = "output_text"
        response = {"id": f"r{turn}", "output": [said]}
        body = {"input": items, "previous_response_id": None}
        log.append({"request": body, "response": response})
        items = [*items, said]
    body = {"input": "fourth", "previous_response_id": "r2"}
    log.append({"request": body, "response": {"id": "r3", "output": []}})
    lines = hashed(model, tmp_path, *log)
    parents = [line.get("parent_request_id") for line in lines]
    assert parents == [None, *(line["request_id"] for line in lines[:-1])]


def test_parents_that_a_log_states_are_not_overruled(model: Path, tmp_path: Path) -> None:
    lines = hashed(
        model,
        tmp_path,
        {"messages": [SYSTEM, USER], "id": "a", "parent_id": None},
        {"messages": [SYSTEM, USER, ANSWER, MORE], "id": "b", "parent_id": "c"},
    )
    assert lines[1]["parent_request_id"] != lines[0]["request_id"]


def test_the_same_log_hashed_again_has_the_same_names(model: Path, tmp_path: Path) -> None:
    log = [{"messages": [SYSTEM, USER]}, {"messages": [SYSTEM, USER, ANSWER, MORE]}]
    first = hashed(model, tmp_path, *log, salt_file=tmp_path / "salt")
    assert hashed(model, tmp_path, *log, salt_file=tmp_path / "salt") == first
