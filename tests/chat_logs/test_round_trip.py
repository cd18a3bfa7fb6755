"""Conversations of a log of messages are those that the trace of their blocks has.

Logs are drawn: conversations that run at once, share a system prompt, branch where an answer is
generated again, call tools, and are logged with or without their answers.
"""

from __future__ import annotations

import ast
import json
import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

import kvscope
from kvscope.chat_logs import tokenizer
from tests.chat_logs.models import TEMPLATE, write_model
from tests.chat_logs.test_bodies import MOVING
from tests.chat_logs.test_hash import TOOL, Line, write

_WORDS = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8").split()
_IN_FIRST_MESSAGE = """\
{%- set first = messages[0].content if messages[0].role == 'system' else '' %}
{%- for message in messages if message.role != 'system' %}
    {{- '<|im_start|>' + message.role + '\\n' + (first if loop.first else '') + message.content }}
    {{- '<|im_end|>' }}
{%- endfor %}
"""
_DATED = "{{- '<|im_start|>system today ' + strftime_now('%Y-%m-%d') + '<|im_end|>' }}" + TEMPLATE
_ONLY_LAST_TURN = """\
{%- for message in messages %}
    {%- if message.role != 'tool' or loop.index0 > loop.length - 3 %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
"""
_TEMPLATES = {
    "chatml": TEMPLATE,
    "system-in-first-message": _IN_FIRST_MESSAGE,
    "system-before-last-message": MOVING,
    "dated": _DATED,
    "drops-results-of-tools": _ONLY_LAST_TURN,
}
_TEKKEN = ("tekken_240718", "tekken_240911")  # all of mistral-common: V3
_BREAK = {"system-before-last-message", "drops-results-of-tools", *_TEKKEN}


def _said(rng: random.Random, role: str, words: int) -> Line:
    return {"role": role, "content": " ".join(rng.choices(_WORDS, k=words))}


def _conversation(rng: random.Random, system: list[Line], *, tools: bool) -> list[tuple[Any, Any]]:
    """Return (messages, answer) of each request of a conversation, in order."""
    history, asked = [*system, _said(rng, "user", rng.randint(3, 60))], []
    for _ in range(rng.randint(1, 6)):
        answer = _said(rng, "assistant", rng.randint(4, 40))
        if tools and rng.random() < 0.4:
            arguments = json.dumps({"q": rng.randint(0, 9)})
            call = {"id": "abcdefghi", "function": {"name": "search", "arguments": arguments}}
            answer |= {"content": None, "tool_calls": [{"type": "function"} | call]}
            reply = _said(rng, "tool", rng.randint(2, 80))
            reply |= {"tool_call_id": "abcdefghi", "name": "search"}
        else:
            reply = _said(rng, "user", rng.randint(2, 60))
        asked.append(([*history], answer))
        if rng.random() < 0.15 and reply["role"] == "user":  # once more, and go on with that one
            answer = _said(rng, "assistant", 12)
            asked.append(([*history], answer))
        history += [answer, reply]
    return asked


def drawn_log(
    seed: int, *, can_call: bool = True, begin: int = 0
) -> tuple[list[Line], list[int | None]]:
    """Return the lines of a log, and the line that each one continues: its history's answer is.

    `begin` lines are before it in the same file.
    """
    rng = random.Random(seed)
    system = [_said(rng, "system", rng.randint(20, 120))] * rng.randint(0, 1)
    tools, answers = rng.random() < 0.5 and can_call, rng.random() < 0.7
    waiting = [_conversation(rng, system, tools=tools) for _ in range(rng.randint(2, 6))]
    lines: list[Line] = []
    parents: list[int | None] = []
    by_answer: dict[str, int] = {}
    latest: dict[str, int] = {}
    while waiting := [each for each in waiting if each]:
        messages, answer = rng.choice(waiting).pop(0)
        prefix = json.dumps(messages[:-2])
        known = by_answer if answers else latest
        key = json.dumps(messages[:-1]) if answers else prefix
        parents.append(known.get(key) if len(messages) > 2 else None)
        number = begin + len(lines)
        by_answer[json.dumps([*messages, answer])] = latest[json.dumps(messages)] = number
        body: Line = {"messages": messages} | ({"tools": [TOOL]} if tools else {})
        line = {"request": body, "timestamp": 1_770_000_000 + 7 * number}
        said = {"response": {"choices": [{"message": answer}]}} if answers else {}
        lines.append(line | said)
    return lines, parents


def found_parents(folder: Path, model: Path, lines: list[Line]) -> tuple[list[int | None], int]:
    """Return the parents in the stored trace of a log, and the tokens that its template costs."""
    log, trace = write(folder / "log.jsonl", *lines), folder / "trace.jsonl"
    kvscope.hash_logs(log, trace, tokenizer=model, force=True)
    with kvscope.open_trace(trace) as opened:
        causes = kvscope.analyze(opened).causes
        with opened.store.reading() as store:
            order = "SELECT parent FROM requests ORDER BY request"
            rows = store.connection.execute(order).fetchall()
    assert opened.facts.lineage == "given"
    costs = sum(each.tokens for each in causes if each.cause == "template")
    return [parent for (parent,) in rows], costs


@pytest.mark.parametrize("name", [*_TEMPLATES, *_TEKKEN])
def test_hashed_messages_keep_their_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever the template; only those that change earlier messages cost tokens."""
    monkeypatch.setattr(tokenizer, "load", cache(tokenizer.load))  # takes half a second
    if name in _TEMPLATES:
        write_model(tmp_path / "model", _TEMPLATES[name])
        model = tmp_path / "model"
    else:
        common = pytest.importorskip("mistral_common")
        model = Path(common.__file__).parent / "data" / f"{name}.json"
    costs = 0
    for seed in range(6):
        lines, expected = drawn_log(seed)
        found, cost = found_parents(tmp_path, model, lines)
        assert found == expected
        costs += cost
    assert (costs > 0) == (name in _BREAK)


_LOGS_AT_ONCE = 10
_WITHOUT_TOOLS = {"mistral v1", "mistral v1 spm", "smolvlm"}
_MISTRAL = ("v1", "v1 spm", "v2", "v2 spm", "v3", "v3 spm", "v7", "v7 spm", "v11", "v13", "v15")
_TRANSFORMERS = ("llama4", "smolvlm", "qwen2_audio")


def shipped_templates() -> dict[str, str]:
    """Return the chat templates in mistral-common 1.13 (of each version) and transformers 5.19."""
    pytest.importorskip("transformers", reason="make test-engine")
    from mistral_common.integrations.chat_templates import template_generator as mistral
    from mistral_common.tokens.tokenizers.base import TokenizerVersion

    templates = {}
    for name in _MISTRAL:
        version, _, spm = name.partition(" ")
        effort: Line = {"reasoning_effort_values": ("none", "high")}
        effort |= {"reasoning_effort_default": "none"}
        config = mistral.TemplateConfig(
            TokenizerVersion(version), spm=bool(spm), **(effort if version == "v15" else {})
        )
        templates[f"mistral {name}"] = mistral.build_chat_template(config)
    models = Path(cast(Any, find_spec("transformers")).origin).parent / "models"
    for model in _TRANSFORMERS:
        source = ast.parse((models / model / f"processing_{model}.py").read_text("utf-8"))
        values = [
            node.value for node in ast.walk(source) if isinstance(node, ast.Assign | ast.Return)
        ]
        texts = [ast.literal_eval(value) for value in values if isinstance(value, ast.Constant)]
        (templates[model],) = [x for x in texts if isinstance(x, str) and "in messages" in x]
    return templates


@pytest.mark.engine  # transformers, and a mistral-common that has templates, are vLLM's
@pytest.mark.parametrize("logs", [10, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name",
    [*(f"mistral {x}" for x in sorted(_MISTRAL)), "llama4", "smolvlm", "qwen2_audio", *_TEKKEN],
)
def test_templates_that_libraries_ship_keep_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, logs: int
) -> None:
    """Mistral's to v11 cost tokens: they move the system prompt or the tools."""
    monkeypatch.setattr(tokenizer, "load", cache(tokenizer.load))
    if name in _TEKKEN:
        model = Path(pytest.importorskip("mistral_common").__file__).parent / f"data/{name}.json"
    else:
        write_model(model := tmp_path / "model", shipped_templates()[name])
    for first in range(0, logs, _LOGS_AT_ONCE):
        lines: list[Line] = []
        expected: list[int | None] = []
        for seed in range(first, first + _LOGS_AT_ONCE):
            more, parents = drawn_log(seed, can_call=name not in _WITHOUT_TOOLS, begin=len(lines))
            lines, expected = lines + more, expected + parents
        assert found_parents(tmp_path, model, lines)[0] == expected
