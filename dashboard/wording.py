"""Messages in the words of the pages, and text as it is where Streamlit reads Markdown."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

CONTROLS = {  # by the option that a message names
    "--block-size": "Tokens per block",
    "--dram-price": "Price of CPU memory",
    "--format": "Format",
    "--gpu": "GPU in the sidebar",
    "--gpu-hour": "Price per GPU hour in the sidebar",
    "--hbm": "HBM in the sidebar",
    "--latency": "Latency profile in the sidebar",
    "--max-bad": "Bad lines allowed",
    "--model": "Model in the sidebar",
    "--offload": "Ways to offload",
    "--param": "Parameters",
    "--replicas": "Replicas in the sidebar",
    "--slo": "SLO",
    "--ssd-price": "Price of an SSD",
    "--tier-size": "Sizes",
    "--tiers": "tiers",
    "--traffic": "Traffic in the sidebar",
}
_UPLOAD = "kvscope-upload-"
_OPTIONS = re.compile("|".join(rf"{option}(?![\w-])" for option in CONTROLS))

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:])")
_COMMAND = re.compile(r"(`kvscope [a-z0-9 .=-]+`)")


def in_page_words(text: str) -> str:
    """Return a message with the page's controls for options, and uploads by their names alone."""
    folder = re.escape(str(Path(tempfile.gettempdir()) / _UPLOAD))
    text = re.sub(rf"{folder}[^/]+/", "", text)
    return _OPTIONS.sub(lambda option: CONTROLS[option[0]], text)


def local_time(utc: datetime) -> str:
    """Return a moment of the store (UTC) as this machine's clock shows it."""
    return utc.replace(tzinfo=UTC).astimezone().strftime("%Y-%m-%d %H:%M")


@contextmanager
def uploaded(name: str, content: bytes) -> Iterator[str]:
    """Yield the path of an uploaded file, which lasts for the block."""
    with tempfile.TemporaryDirectory(prefix=_UPLOAD) as folder:
        copy = Path(folder) / Path(name).name
        copy.write_bytes(content)
        yield str(copy)


def escape(text: str) -> str:
    """Return text, which a trace may have supplied, without a meaning in Markdown."""
    return _MARKDOWN.sub(r"\\\1", text)


def escape_around_commands(text: str) -> str:
    """Return text as `escape` does, with kvscope's own commands as code."""
    parts = _COMMAND.split(text)
    return "".join(part if at % 2 else escape(part) for at, part in enumerate(parts))
