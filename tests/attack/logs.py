"""Attacks on logs with prompts: mutated lines, and lines that break template or tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvscope.chat_logs import isolated
from kvscope.chat_logs.convert import FORMATS, Converter
from kvscope.chat_logs.hashing import SALT_BYTES, Hasher
from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import ReadOptions, Rejects
from tests.attack.attack import Attack, Case, Harm
from tests.attack.commands import DONE, INPUT, command
from tests.attack.mutations import as_json, mutated_bytes, mutated_document
from tests.attack.parsers import read
from tests.chat_logs.models import write_model

MARK = "sekrit@pomegranate"
"""Text of a log that no message and no trace may hold: no plain word."""
_USER = {"role": "user", "content": [{"type": "text", "text": "Hello there"}]}
_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
_ASSISTANT = {"role": "assistant", "content": "Hm", "tool_calls": [_CALL], "reasoning": "Why"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_TEXT = {"type": "text", "text": "Hello there", "cache_control": {"type": "ephemeral"}}
_USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
_USES = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Why"}, _TEXT, _USE]}
_RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [_TEXT]}
_RESULTS = {"role": "user", "content": [_RESULT, _TEXT]}
_ITEMS: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "1", "output": "3"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Why"}]},
]
_PARTS: list[Any] = [
    {"role": "user", "parts": [{"type": "text", "content": "Hello"}, "there"]},
    {"role": "assistant", "parts": [{"type": "tool_call", "name": "f", "arguments": {"a": 1}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": {"b": 2}}]},
]
_ATTRIBUTES = [
    {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps(_PARTS)}},
    {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}},
]
_IDS = {"arrayValue": {"values": [{"intValue": str(each)} for each in range(20)]}}
_SPANS: list[Any] = [
    {"startTimeUnixNano": "1700000000500000000", "attributes": _ATTRIBUTES},
    {"endTimeUnixNano": 1, "attributes": [{"key": "lmcache.input_ids", "value": _IDS}]},
]
_PARAMETERS = {"input_ids": [5] * 40, "lora_path": "l", "session_id": "s", "routed_dp_rank": 1}
_META = {"prompt_tokens": 40, "completion_tokens": 3, "cached_tokens": 16, "e2e_latency": 1.5}
_DOTTED = {
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.contents.0.message_content.type": "text",
    "llm.input_messages.0.message.contents.0.message_content.text": "Hello",
    "llm.output_messages.0.message.content": "Hm",
    "llm.tools.0.tool.json_schema": json.dumps(_TOOL),
    "llm.token_count.prompt": 40,
    "session.id": "s",
}
_NESTED = {"llm": {"input_messages": [{"message": {"role": "user", "content": "Hello"}}]}}
_PHOENIX = {"context": {"span_id": "1"}, "span_kind": "LLM", "start_time": "2026-01-01T00:00:00Z"}
LINES: dict[str, list[Any]] = {
    "openinference": [
        _PHOENIX | {"attributes": _DOTTED},
        _PHOENIX | {"attributes": _NESTED},
        {f"attributes.{name}": value for name, value in _DOTTED.items()} | {"end_time": 3.5},
    ],
    "openai": [
        {"messages": [_USER, _ASSISTANT, _USER], "tools": [_TOOL], "timestamp": 1.5, "user": "u"},
        {"messages": [_USER, _ASSISTANT], "session_id": 3, "chat_template_kwargs": {"x": 1}},
        {"request": {"prompt": "Hello"}, "response": {"usage": {"completion_tokens": 3}}},
        {"system": [_TEXT], "messages": [{"role": "user", "content": [_TEXT]}, _USES, _RESULTS]}
        | {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "max_tokens": 9}
        | {"response": {"content": [_TEXT], "usage": {"input_tokens": 3}}},
        {"request": {"instructions": "Be brief", "input": _ITEMS, "previous_response_id": None}}
        | {"response": {"id": "r", "output": _ITEMS[1:2], "usage": {"input_tokens": 3}}},
        {"input": "And then?", "previous_response_id": "r", "response": {"id": "s"}},
        {"messages": _PARTS, "response": {"choices": [{"message": {"content": "Hm"}}]}},
        {"prompt": [3] * 40, "created": "2026-01-01T00:00:00Z", "lora_name": "l", "worker": 1},
    ],
    "litellm": [
        {"messages": [_USER], "startTime": 1.0, "completionStartTime": 1.5, "endTime": 2.0}
        | {"model": "m", "prompt_tokens": 3, "response": "Hm", "model_parameters": {"tools": []}},
        {"messages": _ITEMS, "startTime": "2026-01-01T00:00:00Z", "completionStartTime": 1.5}
        | {"call_type": "aresponses", "cache_hit": "None", "metadata": '{"usage_object": {}}'},
    ],
    "helicone": [
        {"request_created_at": "2026-01-01T00:00:00Z", "request_body": {"messages": [_USER]}}
        | {"response_body": {"content": [_TEXT]}, "response_status": 200, "delay_ms": 9}
        | {"request_properties": {"Helicone-Session-Id": "s"}, "time_to_first_token": 3},
    ],
    "langfuse": [
        {"traceId": "t", "startTime": "2026-01-01T00:00:00Z", "type": "GENERATION"}
        | {"input": {"messages": [_USER], "tools": [_TOOL]}, "output": _ASSISTANT}
        | {"usageDetails": {"input": 3, "input_cached_tokens": 8, "output": 1}, "sessionId": "s"},
        {"trace_id": "t", "start_time": "2026-01-01 00:00:00.5", "type": "GENERATION"}
        | {"input": json.dumps([_USER]), "output": "Hm", "usage_details": '{"input": 3}'},
        {"traceId": "t", "startTime": 3, "type": "GENERATION", "metadata": {"attributes": _DOTTED}}
        | {"output": _PARTS, "usageDetails": {"input": 3, "prompt_details.cache_read": 2}},
        {"traceId": "t", "startTime": 3, "type": "GENERATION", "output": {"output": _ITEMS}}
        | {"input": [*_PARTS, {"role": "tool", "content": _TOOL}]},
    ],
    "sglang": [
        {"request_parameters": json.dumps(_PARAMETERS), "request_received_ts": 1.5} | _META,
        {"event": "request.finished", "timestamp": "2026-01-01T00:00:00", "rid": "r"}
        | {"obj": {"text": "Hello"}, "out": {"meta_info": _META}},
    ],
    "otlp": [{"resourceSpans": [{"scopeSpans": [{"spans": _SPANS}]}]}, _SPANS[0]],
}


class Logs(Attack):
    """A line is hashed or refused with a reason that repeats nothing that somebody wrote.

    The trace is one that kvscope reads.
    """

    name = "logs"
    target = "readers of logs with prompts: mutated lines"
    share = 0.1
    short = 40

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        pytest.importorskip("tokenizers")
        from kvscope.chat_logs.tokenizer import HuggingFaceTokenizer

        write_model(home / "model")
        self.tokenizer = HuggingFaceTokenizer(home / "model")
        self.tokenizer.marks_parts = True

    def attempt(self, case: Case) -> int:
        """Mutate lines of one format, hash them, and read the trace."""
        random = case.random
        name = random.choice([*LINES])
        inputs = random.choice((1, 20, 60))
        log, trace = case.folder / "log", case.folder / "trace"
        log.write_bytes(b"\n".join(_mutated(random, name) for _ in range(inputs)))
        converter = Converter(self.tokenizer, Hasher(bytes(SALT_BYTES), 16), 16, keeps_names=True)
        rejects = Rejects(str(log))
        try:
            lines = [*converter.lines(str(log), random.choice((None, name)), rejects)]
        except InputError as refusal:
            if not str(refusal).strip() or MARK in str(refusal):
                raise Harm(f"a refusal without a word, or with text: {refusal}") from refusal
            return inputs
        for line, reason in rejects.lines:
            if not reason or len(reason) > 400 or MARK in reason:
                raise Harm(f"line {line}: the reason is {reason[:400]!r}")
        trace.write_bytes(b"".join(lines))
        left_out = " ".join(converter.counts.left_out)
        if MARK in left_out or MARK.encode() in trace.read_bytes():
            raise Harm(f"text of the log in the trace, or in {left_out!r}")
        if lines and (refused := read(trace, "mooncake", ReadOptions())).count:
            raise Harm(f"kvscope does not read its own trace: {refused.lines[0]}")
        return inputs


def _marked(random: Random, document: Any, share: float) -> Any:
    """Return the document with MARK in a share of its texts, as texts, lists or names too."""
    if isinstance(document, dict):
        return {
            f"{name} {MARK}" if random.random() < share / 10 else name: _marked(
                random, value, share
            )
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [_marked(random, each, share) for each in document]
    if isinstance(document, str) and document[:1] in {"[", "{"} and random.random() < 0.5:
        return json.dumps(_marked(random, json.loads(document), share))
    if random.random() > (share if isinstance(document, str) else share / 4):
        return document
    return random.choice((f"{MARK} ", f"{document} {MARK}", [f"a {MARK}"], {MARK: 1}))


def _mutated(random: Random, name: str) -> bytes:
    document = random.choice(LINES[name])
    if random.random() < 0.5:
        document = _marked(random, document, random.choice((0.1, 0.5)))
    if random.random() < 0.1:
        return json.dumps(document).encode()
    if random.random() < 0.7:
        return as_json(random, mutated_document(random, document))
    return mutated_bytes(random, json.dumps(document).encode())


class Libraries(Attack):
    """What breaks a template or a tokenizer costs its line, in bounded time, without its text."""

    name = "libraries"
    target = "`kvscope hash` of lines that break template or tokenizer"
    share = 0.05
    short = 2

    def attempt(self, case: Case) -> int:
        """Hash a log of which some lines break a library in one of these ways."""
        random = case.random
        breaks = random.choice(TEMPLATES)
        template = (
            f"{{% if messages|length > 1 %}}{breaks}{{% endif %}}{{{{ messages[0].content }}}}"
        )
        write_model(case.folder / "model", template)
        path = case.folder / "model" / "tokenizer.json"
        document = json.loads(path.read_bytes())
        document |= random.choice(TOKENIZERS)
        path.write_text(json.dumps(document))
        user = {"role": "user", "content": f"{MARK} hello"}
        broken = {"role": "user", "content": f"{MARK} {'!?' * random.choice((1, 40, 9_000))}"}
        said = [random.choice(([user], [user, user], [broken])) for _ in range(6)]
        log = "\n".join(json.dumps({"messages": each}) for each in [*said, [user]])
        (case.folder / "log").write_text(log)
        into = case.folder / "trace.jsonl"
        words = ("--tokenizer", str(path.parent), "-o", str(into), "--max-bad", "1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(isolated, "LIMIT_S", 1.0)
            patch.setattr(isolated, "_START_S", 20.0)
            patch.setattr(isolated, "_LEAST_BYTES", MOST_BYTES)
            patch.setattr(isolated, "_SHARE", 0.0)
            outcome = command("hash", str(case.folder / "log"), *words).check(DONE, INPUT)
        if MARK in outcome.out + outcome.err:
            raise Harm(f"text of the log: {outcome.err}")
        return len(said) + 1


TEMPLATES = (
    "",
    "{{ raise_exception(messages[0].content) }}",
    "{{ messages[0].content.nothing.at_all }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ messages[0].content * 9999 }}{% endfor %}",
    "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(messages[0].content) }}",
    "{{ (messages | length * 10) ** (10 ** 9) }}",
    "{{ messages[0].content * (10 ** 10) }}",
    "{{ messages[0].content | center(10 ** 10) }}",
    "{% set n = namespace(s='a') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{{ messages[0].__class__.__mro__ }}",
)
"""What a template does with a chat of two messages."""
_SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
TOKENIZERS: tuple[dict[str, Any], ...] = (
    {},
    {"model": {"type": "WordLevel", "vocab": {"hello": 0}, "unk_token": "[none]"}},
    {"model": {"type": "WordPiece", "vocab": {"hello": 0}, "unk_token": "[none]"}},
    {"pre_tokenizer": _SPLIT | {"pattern": {"Regex": "([!?]+)+(a|$)\\1"}}},
    {"normalizer": {"type": "Replace", "pattern": {"Regex": "[!?]"}, "content": "?" * 10_000}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    {
        "truncation": {
            "direction": "Right",
            "max_length": 1,
            "strategy": "LongestFirst",
            "stride": 9,
        }
    },
    {"model": {"type": "Unigram", "unk_id": None, "vocab": [["hello", 0.0]]}},
    {"post_processor": {"type": "Sequence", "processors": []}, "added_tokens": [{"id": -1}]},
)
"""What a tokenizer.json has instead of what it had."""
MOST_BYTES = 1 << 30


assert LINES.keys() == FORMATS.keys()
