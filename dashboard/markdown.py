"""Show text as it is where Streamlit reads Markdown."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:])")


def escape(text: str) -> str:
    """Return text, which a trace may have supplied, without a meaning in Markdown."""
    return _MARKDOWN.sub(r"\\\1", text)
