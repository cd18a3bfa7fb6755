"""Logs of each kind are the chat that they log: the samples are in samples/, as producers write."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

import kvscope
from kvscope.chat_logs.convert import detect
from kvscope.cli.app import run
from tests.chat_logs.test_hash import ANSWER, BLOCK, MORE, USER, Line, hashed

FILES = sorted((Path(__file__).parent / "samples").glob("*.toml"))


def rows(name: str) -> list[Line]:
    """Return the lines of a sample's log."""
    sample = tomllib.loads((FILES[0].parent / f"{name}.toml").read_text(encoding="utf-8"))
    return [json.loads(line) for line in sample["log"].splitlines()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_log_has_the_blocks_of_its_chat(model: Path, tmp_path: Path, file: Path) -> None:
    """And what else a line says; what is no request is left out and counted by reason."""
    sample, salt = tomllib.loads(file.read_text(encoding="utf-8")), tmp_path / "salt"
    (chat,) = hashed(model, tmp_path, json.loads(sample["chat"]), salt_file=salt)
    lines = hashed(model, tmp_path, *rows(file.stem), salt_file=salt)
    for line, stated in zip(lines, sample["trace"], strict=True):
        same = {name: chat[name] for name in ("hash_ids", "input_length")}
        assert line | same | stated == line
        assert line.keys() >= {*sample.get("names", ())}
    log = sample["log"].encode()
    reader = detect(log, "")()
    for line in log.splitlines():
        reader.parse(line)
    assert [*reader.left_out] == sample.get("left_out", [])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"0.message.content": "__REDACTED__"}, "the prompt is redacted"),
        ({"0.message.contents.0.message_content.type": "image"}, "a part of a message that is no"),
        ({"0.message.content": 7}, "message.content is no text"),
        ({"x.message.role": "user"}, "llm.input_messages without an index"),
    ],
)
def test_openinference_prompts_that_are_no_text(
    model: Path, tmp_path: Path, values: Line, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is a bad line with its reason."""
    stated = {f"llm.input_messages.{name}": value for name, value in values.items()}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"span_kind": "LLM", "context": {}, "attributes": stated}))
    command = ["hash", str(log), "--tokenizer", str(model), "-o", str(tmp_path / "out.jsonl")]
    assert run(command) == 3
    assert reason in capsys.readouterr().err


def test_a_gateways_request_that_ends_with_an_answer_is_no_conversation(
    model: Path, tmp_path: Path
) -> None:
    """Its answer was not logged."""
    messages = [USER, ANSWER, MORE, ANSWER]
    row = {"traceId": "t", "type": "GENERATION", "startTime": 3, "input": messages, "output": None}
    helicone = {
        "request_created_at": "2026-05-01T10:00:00Z",
        "request_body": {"messages": messages},
    }
    assert len(hashed(model, tmp_path, row)) == len(hashed(model, tmp_path, helicone)) == 1


def test_answers_of_spans_that_are_no_text_cost_no_more_than_themselves(
    model: Path, tmp_path: Path
) -> None:
    (span,) = rows("openinference-tools")
    del span["attributes"]["llm.output_messages.0.message.content"]
    image = "llm.output_messages.0.message.contents.0.message_content.type"
    span["attributes"][image] = "image"
    assert hashed(model, tmp_path, span)[0]["input_length"] > 0
    (export,) = rows("otlp-genai")
    attributes = export["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    for said in ("[no JSON: [", json.dumps([{"role": "assistant", "parts": [{"type": "blob"}]}])):
        attributes += [{"key": "gen_ai.output.messages", "value": {"stringValue": said}}]
        assert hashed(model, tmp_path, export)[0]["input_length"] > 0


def test_a_span_of_a_call_that_failed_is_left_out(model: Path, tmp_path: Path) -> None:
    """It has the prompt that it was made with, and no number of tokens."""
    (export,) = rows("otlp-genai")
    failed = json.loads(json.dumps(export))
    failed["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["status"] = {"code": 2}
    assert len(hashed(model, tmp_path, export, failed)) == 1


def test_a_log_with_the_time_before_each_line_is_read(model: Path, tmp_path: Path) -> None:
    """As SGLang's loggers write it, to a file and to a terminal."""
    finished, received = rows("sglang-log")
    plain = hashed(model, tmp_path, received, finished, salt_file=tmp_path / "salt")
    log = tmp_path / "dated.jsonl"
    log.write_text(
        "".join(f"[2026-11-29 01:20:13] {json.dumps(x)}\n" for x in (received, finished))
    )
    trace, options = tmp_path / "dated-trace.jsonl", {"salt_file": tmp_path / "salt"}
    kvscope.hash_logs(log, trace, tokenizer=model, block_size=BLOCK, **options)
    assert [json.loads(line) for line in trace.read_bytes().splitlines()] == plain
