"""Text as it stands, where Streamlit would read Markdown."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:])")


def plain(text: str) -> str:
    """Text that a trace may have supplied, with nothing in it that Markdown would read."""
    return _MARKDOWN.sub(r"\\\1", text)
