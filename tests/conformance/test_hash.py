"""`kvscope hash` of a log gives the blocks that a real vLLM has for the same requests.

Also: chat templates are rendered, and texts tokenized, as transformers does it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from benchmarks.tiny_llama import tiny_llama
from kvscope.app.hash_logs import HashOptions, hash_logs
from kvscope.app.monitor import Monitor
from kvscope.chat_logs.formats.base import Chat, LoggedRequest
from kvscope.chat_logs.messages import rendered_tools
from kvscope.chat_logs.tokenizer import HuggingFaceTokenizer, Text
from kvscope.serving.interpreter import interpreter, with_vllm
from kvscope.serving.server import Launch, VllmServer
from tests.chat_logs.models import TEMPLATE, write_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(interpreter().vllm is None, reason="no vLLM here: make test-engine"),
]

BLOCK, LONGEST = 32, 1024  # CPUs take multiples of 32
ONE_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
SYSTEM = {"role": "system", "content": "You answer questions about caches of prefixes. " * 4}
ASK = {"role": "user", "content": "Which blocks does an engine evict first, and why? <|im_end|>"}
PARTS = {"role": "user", "content": [{"type": "text", "text": x} for x in ("first\n", "second")]}
ANSWER = {"role": "assistant", "content": "Those at the end.", "reasoning_content": "Leaves first."}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "block 3"}]}
DEVELOPER = {"role": "developer", "content": "Be brief."}
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"parameters": SCHEMA, "name": "look"}}
STRICT = {"type": "function", "function": {"name": "é <b>", "description": "d", "strict": True}}
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [SYSTEM, ASK]},
    {"messages": [SYSTEM, ASK, ANSWER, PARTS]},
    {"messages": [SYSTEM, ASK, ANSWER, PARTS], "cache_salt": "tenant"},
    {"messages": [SYSTEM, ASK, CALLING, RESULT], "tools": [TOOL, STRICT], "tool_choice": "none"},
    {"messages": [ASK], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [ASK, ANSWER], "continue_final_message": True, "add_generation_prompt": False},
    {"messages": [DEVELOPER, SYSTEM, ASK]},
)
TEXTS: tuple[dict[str, Any], ...] = ({"prompt": SYSTEM["content"]}, {"prompt": [7] * 40})
PARTS_TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{% for part in message['content'] %}{{ part['text'] }}|{% endfor %}{% endif %}
{% endfor %}{{ eos_token }}"""


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    head = {"Content-Type": "application/json"}
    asked = Request(url, json.dumps(body).encode(), head)  # noqa: S310  (our own server)
    with urlopen(asked, timeout=60) as answered:  # noqa: S310
        document: dict[str, Any] = json.load(answered)
    return document


def renamed(paths: Iterable[list[int]]) -> list[list[int]]:
    """Return the paths with their ids numbered in order of appearance."""
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(each, len(numbers)) for each in path] for path in paths]


def lines_of(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


TEMPLATES = {"text": TEMPLATE, "parts": PARTS_TEMPLATE}


def test_vllm_records_the_blocks_that_the_log_is_hashed_to(tmp_path: Path) -> None:
    """Request by request: the same lengths, and blocks that are equal to the same others."""
    for name, template in TEMPLATES.items():
        write_model(tmp_path / name, template)
    model, recording = tmp_path / "text", tmp_path / "recording"
    (model / "config.json").write_text(json.dumps(tiny_llama(LONGEST, "float32")))
    launch = Launch(
        str(model),
        BLOCK,
        200,
        LONGEST,
        flags=(
            *("--scheduler-cls", "kvscope.vllm_plugin.KvscopeScheduler"),
            "--trust-request-chat-template",
        ),
        environment=ONE_CORE | {"KVSCOPE_RECORD": str(recording)},
    )
    logs: dict[str, list[dict[str, Any]]] = {name: [] for name in TEMPLATES}
    with VllmServer(launch, with_vllm()) as server:
        for name, template in TEMPLATES.items():
            with_template = {"model": str(model), "chat_template": template}
            for path, bodies, more in (
                ("chat/completions", CHATS, with_template),
                ("completions", TEXTS, {"model": str(model)}),
            ):
                for body in bodies:
                    sent = body | {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
                    response = post(f"{server.endpoint.url}/v1/{path}", sent | more)
                    logs[name].append({"request": sent, "response": response})
    recorded = lines_of(*sorted(recording.glob("*.jsonl")))
    assert len(recorded) == 2 * len(logs["text"]) == 2 * len(logs["parts"])
    check_hashes(tmp_path / "text", logs["text"], recorded[: len(recorded) // 2])
    check_hashes(tmp_path / "parts", logs["parts"], recorded[len(recorded) // 2 :])


def check_hashes(model: Path, log: list[Any], recorded: list[dict[str, Any]]) -> None:
    """Compare what `kvscope hash` makes of a log with what vLLM recorded of its requests."""
    (model / "log.jsonl").write_text("\n".join(map(json.dumps, log)))
    trace = model / "trace.jsonl"
    options = HashOptions(tokenizer=str(model), output=str(trace), block_size=BLOCK)
    hash_logs([str(model / "log.jsonl")], options, Monitor())
    hashed = lines_of(trace)
    for name in ("input_length", "output_length"):
        assert [line[name] for line in hashed] == [line[name] for line in recorded]
    salted = [bool(line.get("cache_salt")) for line in hashed]
    assert salted == [line["cache_salt"] is not None for line in recorded] != [False] * len(log)
    # vLLM's hashes differ with the salt; kvscope keeps it aside and separates at ingest.
    one, other = (
        renamed(line["hash_ids"] for line in lines if not line.get("cache_salt"))
        for lines in (hashed, recorded)
    )
    assert one == other
    assert len({tuple(path) for path in one}) < len([x for path in one for x in path])


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_prompts_are_those_of_transformers(tmp_path: Path, template: str) -> None:
    """Rendered with tools, calls and reasoning; plain texts with their special tokens."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    write_model(tmp_path, template)
    reference = AutoTokenizer.from_pretrained(str(tmp_path))
    ours = HuggingFaceTokenizer(tmp_path)
    chats = (
        Chat([SYSTEM, ASK]),
        Chat([SYSTEM, ASK, {"role": "assistant", "content": "é\n"}, ASK], [STRICT]),
        Chat([ASK], arguments={"enable_thinking": False}),
    )
    for chat in chats:
        piece = ours.prompt(LoggedRequest(prompt=chat))
        assert isinstance(piece, Text)
        expected = reference.apply_chat_template(
            [*chat.messages],
            tools=rendered_tools(chat.tools) if chat.tools else None,
            tokenize=False,
            add_generation_prompt=True,
            **chat.arguments,
        )
        if template is TEMPLATE:  # vLLM hands parts to the other one, even for plain texts
            assert piece.text == expected
        expected_ids = reference(piece.text, add_special_tokens=False).input_ids
        assert [*ours.encode([piece])[0].tokens] == expected_ids
    text = str(SYSTEM["content"])
    assert [*ours.encode([Text(text, is_raw=True)])[0].tokens] == reference(text).input_ids
