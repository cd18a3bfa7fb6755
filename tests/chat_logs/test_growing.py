"""Prompts of a conversation, cut out of one rendering: equal to each one's own, or not cut out."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="make setup installs it")

from kvscope.chat_logs.formats.base import Chat, LoggedRequest, Message, Rendered
from kvscope.chat_logs.template import ChatTemplate
from kvscope.chat_logs.tokenizer import HuggingFaceTokenizer, Text
from kvscope.ingest.formats.base import BadLine
from tests.chat_logs.models import SPECIAL, write_model

SYSTEM = "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}"
HEADS = (
    "",
    f"{{% set rest = messages %}}{SYSTEM}{{{{ messages[0].content }}}}",
    "{% set rest = messages %}{% set ns = namespace(n=0, s='') %}",
    "{% set messages = messages[2:] %}{{ messages[0]['content'] }}",
)
BODIES = (
    "<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>\n",
    "{{ loop.index0 }}{% if loop.first %}first{% endif %}{{ loop['index'] }}{{ m.content }}",
    "{% if loop.previtem is defined %}{{ loop.previtem.role }}{% endif %}{{ m.role }}",
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{% set ns.s = m.content %}",
    "{% for a in m.content %}{{ a }}{% if not loop.last %}-{% endif %}{% endfor %}",
    "{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content }}",
    "{% if loop.changed(m.role) %}!{% endif %}{{ messages[0].role }}",
)
ENDS = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{{ thinking }}{% macro x(a) %}<{{ a }}>{% endmacro %}{{ x(1) }}",
)
AHEAD = (
    ("", "{% if loop.last %}last{% endif %}", ""),
    ("", "{{ loop.length }}", ""),
    ("", "{{ loop['revindex'] }}", ""),
    ("", "{{ loop.nextitem }}", ""),
    ("", "{% set l = loop %}{{ l.last }}", ""),
    ("", "{{ messages[loop.index0 + 1] }}", ""),
    ("", "{{ messages[-1].role }}", ""),
    ("{{ messages | length }}", "{{ m.role }}", ""),
    ("{{ messages[:2] }}", "{{ m.role }}", ""),
    ("{{ messages[1:] | length }}", "{{ m.role }}", ""),
    ("{% set rest = messages[1:] | list %}", "{{ m.role }}", ""),
    ("{% for x in messages %}{{ x.role }}{% endfor %}", "{{ m.role }}", ""),
    ("{% set c = messages | list %}", "{{ m.role }}", "{{ c }}"),
    ("{% set ns = namespace(n=0) %}", "{% set ns.n = ns.n + 1 %}", "{{ ns.n }}"),
    ("{% set ns = namespace(n=0) %}{% set k = [ns] %}", "{% set ns.n = 1 %}", "{{ k[0].n }}"),
    ("{% macro x(a) %}{{ a.n }}{% endmacro %}{% set n = namespace(n=0) %}", "", "{{ x(n) }}"),
    ("{% set c = cycler('a', 'b') %}", "{{ c.next() }}", "{{ c.current }}"),
    ("{% macro x() %}{{ messages }}{% endmacro %}", "{{ m.role }}", "{{ x() }}"),
    ("{% filter upper %}", "{{ m.role }}", "{% endfilter %}"),
)


def whole(head: str, body: str, end: str, loop: str = "for m in rest") -> str:
    """Return a template; where nothing sets `rest`, its loop is over the messages."""
    loop = loop if "set rest" in head else loop.replace("rest", "messages")
    return f"{head}{{% {loop} %}}{body}{{% endfor %}}{end}"


def conversation(random: Random) -> list[Message]:
    """Return messages of few words, special tokens and blanks among them."""
    words = [*SPECIAL, "a", " ", "how many", "\n", "é", "<|im", ""]
    roles = ("system", "user", "assistant", "tool")
    return [
        {"role": random.choice(roles), "content": "".join(random.choices(words, k=4))}
        for _ in range(random.randrange(1, 9))
    ]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("end", ENDS)
def test_beginnings_are_what_their_messages_become(head: str, body: str, end: str) -> None:
    """From so many messages on as the head reads; those before are rendered by themselves."""
    random, known = Random(f"{head}{body}{end}"), 0
    for loop in ("for m in rest", "for m in rest if m.role != 'system'"):
        template = ChatTemplate({"default": whole(head, body, end, loop)}, {})
        for _ in range(6):
            messages = conversation(random)
            try:
                rendered = _rendered(template, messages)
            except BadLine:  # no namespace, or no first message
                continue
            assert rendered.ends or len(messages) < 4
            for count in range(1, len(messages) + 1):
                if (cut := rendered.of(count)) is not None:
                    known += 1
                    assert cut == _rendered(template, messages[:count]).text
    assert known or "ns.n" in body


@pytest.mark.parametrize(("head", "body", "end"), AHEAD)
def test_templates_that_look_ahead_are_known(head: str, body: str, end: str) -> None:
    """Or that say something of what the loop has seen, or of all messages."""
    template = ChatTemplate({"default": whole(head, body, end)}, {})
    messages = [{"role": "user", "content": f"{at}"} for at in range(6)]
    assert _rendered(template, messages).ends == {}


@pytest.mark.parametrize(
    "template", [whole("", BODIES[0], ENDS[0]), whole(HEADS[1], *AHEAD[0][1:])]
)
def test_turns_have_the_tokens_and_parts_that_they_have_alone(
    tmp_path: Path, template: str
) -> None:
    """Answers among them, conversations one after another, and one that was seen before."""
    write_model(tmp_path, template)
    random, made = Random(4), HuggingFaceTokenizer(tmp_path)
    made.marks_parts = True
    talks = [conversation(random) for _ in range(12)]
    for messages in [*talks, *talks[-3:]]:
        texts, alone = [], []
        messages[1::2] = [each | {"role": "assistant"} for each in messages[1::2]]
        for count in range(1, len(messages), 2):
            answer = messages[count]
            for given, into in ((messages, texts), (None, alone)):
                chat = Chat(
                    messages[:count], conversation=given and given[: len(messages) // 2 * 2]
                )
                request = LoggedRequest(prompt=chat, response=answer)
                prompt = made.prompt(request)
                into += [prompt, made.answer(request, prompt)]
        assert texts == alone
        fresh = HuggingFaceTokenizer(tmp_path)
        apart = [fresh.encode([text])[0] for text in alone if isinstance(text, Text)]
        for _ in range(2):
            assert made.encode([text for text in texts if isinstance(text, Text)]) == apart


def _rendered(template: ChatTemplate, messages: list[Message]) -> Rendered:
    arguments: dict[str, Any] = {"thinking": "hm"}
    text = template.render(Chat(messages, arguments=arguments))
    return Rendered(text, template.is_dated, template.ends)


def test_a_template_of_parts_leaves_none_to_one_of_texts() -> None:
    """A chat that gets tools changes its template; `render` reuses messages of the last chat."""
    parts = (
        "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}|{% endfor %}{% endfor %}"
    )
    text = "{% for m in messages %}{{ m['content'] }};{% endfor %}"
    template = ChatTemplate({"default": parts, "tool_use": text}, {})
    first = [{"role": "user", "content": "hello"}]
    more = [*first, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "look"}]
    tools = [{"type": "function", "function": {"name": "search"}}]
    assert template.render(Chat(first)) == "hello|"
    assert template.render(Chat(more, tools=tools)) == "hello;hi;look;"
    assert template.render(Chat(more)) == "hello|hi|look|"
