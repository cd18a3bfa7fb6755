"""Show text as it is where Streamlit reads Markdown."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:])")
_COMMAND = re.compile(r"(`kvscope [a-z0-9 .=-]+`)")


def escape(text: str) -> str:
    """Return text, which a trace may have supplied, without a meaning in Markdown."""
    return _MARKDOWN.sub(r"\\\1", text)


def escape_around_commands(text: str) -> str:
    """Return text as `escape` does, with kvscope's own commands as code."""
    parts = _COMMAND.split(text)
    return "".join(part if at % 2 else escape(part) for at, part in enumerate(parts))
