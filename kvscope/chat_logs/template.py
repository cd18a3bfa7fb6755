"""A model's chat template, rendered as transformers renders it.

Templates come with models, so they run in Jinja's sandbox. Source: transformers 5.19.0,
utils/chat_template_utils.py (render_jinja_template).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from kvscope.chat_logs.formats.base import Chat, Message, Rendered
from kvscope.chat_logs.growing import ReadInOrder, least_messages
from kvscope.chat_logs.messages import rendered_messages, rendered_tools, without_developers
from kvscope.ingest.formats.base import BadLine
from kvscope.ingest.limits import MAX_LINE_BYTES

_LONGEST_REASON = 120


_Answer = Callable[[tuple[Chat, float | None, Message | None]], Rendered]


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}` around the model's own text: only its content is rendered."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without Jinja's escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """A model's chat templates by name, with its special tokens.

    `templates` has "default" and, for tools, maybe "tool_use". Raises BadLine if one is invalid.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self._special_tokens = dict(special_tokens)
        self._compiled = {}
        self._takes_parts = {}
        self._grows_from = {}
        self._knows_developers = {}
        self._last: tuple[list[Message], list[Message]] = [], []
        self.is_dated = False  # the last prompt
        self.ends: dict[int, int] = {}  # of its beginnings, by their messages; empty if none is one
        for name, text in templates.items():
            try:
                self._compiled[name] = environment.from_string(text)
                parsed = environment.parse(text)
                self._takes_parts[name] = takes_parts(parsed)
                self._grows_from[name] = least_messages(parsed)
            except Exception as error:  # RecursionError and SyntaxError of what Jinja writes, too
                reason = str(error) if isinstance(error, jinja2.TemplateError) else None
                what = f"not a chat template: {reason or type(error).__name__}"
                raise BadLine(what) from error
            self._knows_developers[name] = '"developer"' in text or "'developer'" in text
        self._sources = "\n".join(templates.values())

    def render(
        self, chat: Chat, *, date_s: float | None = None, answer: Message | None = None
    ) -> str:
        """Return the prompt of a chat; with `answer`, the chat up to the end of that answer.

        The template's date is the day of `date_s` (s since 1970) in UTC. Raises BadLine if the
        template refuses the messages.
        """
        self.is_dated, self.ends = False, {}
        name = "tool_use" if chat.tools and "tool_use" in self._compiled else "default"
        given = chat.messages if answer is None else [*chat.messages, answer]
        messages = self._rendered(given, as_parts=self._takes_parts[name])
        if not self._knows_developers[name] and any(x["role"] == "developer" for x in messages):
            messages = without_developers(messages)
        arguments = {"add_generation_prompt": True, "documents": None} | dict(chat.arguments)
        if arguments.get("reasoning_effort") is not None:
            arguments.setdefault("enable_thinking", arguments["reasoning_effort"] != "none")
        ending = None
        if answer is not None:
            arguments["add_generation_prompt"] = False
        elif arguments.pop("continue_final_message", None):
            arguments["add_generation_prompt"] = False
            ending = messages[-1]["content"]
        try:
            template = self._compiled[name]
            output, least = _Written(), self._grows_from[name]
            grows = least is not None and ending is None and len(messages) == len(given)
            values = {
                "messages": ReadInOrder(messages, output.size, self.ends) if grows else messages,
                "tools": rendered_tools(chat.tools) if chat.tools else None,
                "strftime_now": partial(self._strftime, date_s),
            }
            context = template.new_context({**self._special_tokens, **arguments, **values})
            text = output.of(template.root_render_func(context))
            if len(messages) not in self.ends:  # the loop has ended before
                self.ends = {}
            self.ends = {at: end for at, end in self.ends.items() if at >= (least or 0)}
        except BadLine:
            raise
        except Exception as error:  # whatever a template's code meets in messages of any shape
            # Not its text, which may repeat the prompt.
            raise BadLine(
                f"the chat template refuses the messages: {self._reason(error)}"
            ) from error
        return text if ending is None else _cut_behind(text, ending)

    def _reason(self, error: Exception) -> str:
        """Return an error's message if it is the template's, not a prompt's; else its class."""
        text = str(error)
        own = type(error) is jinja2.TemplateError and text in self._sources
        return text[:_LONGEST_REASON] if own else type(error).__name__

    def _strftime(self, date_s: float | None, form: str) -> str:
        """Return the day `date_s` (None: 1970-01-01) as `form`; mark the prompt as dated."""
        self.is_dated = True
        try:
            today = datetime.fromtimestamp(date_s or 0.0, UTC)
        except (OverflowError, OSError, ValueError):
            today = datetime.fromtimestamp(0, UTC)
        return today.strftime(form)

    def _rendered(self, given: Sequence[Message], *, as_parts: bool) -> list[Message]:
        """Return messages as templates expect them; as text, reuse the last chat's if a prefix."""
        if as_parts:
            return rendered_messages(given, as_parts=True)
        before, rendered = self._last
        if [*given[: len(before)]] != before:
            before, rendered = [], []
        more = given[len(before) :]
        if more or not given:  # no messages at all are refused
            rendered = [*rendered, *rendered_messages(more, as_parts=False)]
        self._last = [*given], rendered
        return rendered


def service(settings: tuple[Mapping[str, str], Mapping[str, str]]) -> tuple[None, _Answer]:
    """Return None (no facts), and a function that renders chats.

    `settings` are the arguments of `ChatTemplate`: texts of templates and special tokens, by name.
    """
    template = ChatTemplate(*settings)

    def render(request: tuple[Chat, float | None, Message | None]) -> Rendered:
        """Return the prompt of a chat, or with an answer, the chat up to the answer's end.

        `request`: the chat, the template's date in s since 1970 (None: 0) and the answer, or None.
        """
        chat, date_s, answer = request
        text = template.render(chat, date_s=date_s, answer=answer)
        return Rendered(text, template.is_dated, template.ends)

    return None, render


class _Written:
    """A counter of the characters that a template has written so far."""

    def __init__(self) -> None:
        self._size = 0

    def size(self) -> int:
        """Return the number of characters written."""
        return self._size

    def of(self, parts: Iterator[str]) -> str:
        """Return the parts as one text. Raises BadLine beyond MAX_LINE_BYTES characters."""
        texts = []
        for text in parts:
            texts.append(text)
            self._size += len(text)
            if self._size > MAX_LINE_BYTES:
                raise BadLine("the chat template writes too much")
        return "".join(texts)


def _cut_behind(text: str, ending: Any) -> str:
    """Return a prompt up to the end of its final message, which the model continues.

    `ending` is the content of that message: a text, or parts of which the last one counts. Raises
    BadLine if `text` does not contain it, or it is blank.
    """
    if isinstance(ending, list):
        ending = ending[-1]["text"] if ending else ""
    at = text.rfind(ending.strip())
    if at < 0 or not ending.strip():
        raise BadLine("the final message to continue is not in the prompt")
    kept = at + len(ending.strip())
    whole = text.rfind(ending)
    return text[: whole + len(ending)] if whole >= 0 and whole <= at else text[:kept]


def takes_parts(template: nodes.Template) -> bool:
    """Return whether a template loops over a message's content: it expects parts, not text.

    Source: vLLM 0.32.0, vllm/renderers/hf.py (_detect_content_format), in a shorter form.
    """
    names = {"content"}
    for assign in template.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, set()):
            names.add(assign.target.name)
    in_macros: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        bound = {
            parameter.name
            for call in template.find_all(nodes.Call)
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name
            for parameter, argument in zip(macro.args, call.args, strict=False)
            if _is_content(argument, set())
        }
        in_macros |= {id(loop): bound for loop in macro.find_all(nodes.For)}
    return any(
        _is_content(loop.iter, in_macros.get(id(loop), names))
        for loop in template.find_all(nodes.For)
    )


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Return whether a node is a message's content or one of `names`, maybe filtered or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name in names
