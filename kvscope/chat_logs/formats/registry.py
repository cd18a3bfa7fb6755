"""Every log format; a new one is a file here and a line below."""

from __future__ import annotations

from kvscope.chat_logs.formats.base import LogFormat
from kvscope.chat_logs.formats.litellm import LiteLLM
from kvscope.chat_logs.formats.openai import OpenAI
from kvscope.chat_logs.formats.otlp import Otlp
from kvscope.core.errors import InputError
from kvscope.ingest.formats.json_lines import common_keys

FORMATS: dict[str, type[LogFormat]] = {known.name: known for known in (LiteLLM, Otlp, OpenAI)}
"""In the order in which they are tried: LiteLLM's lines have `messages` too."""


def detect(head: bytes, path: str) -> type[LogFormat]:
    """Return the format of the log at `path` that begins with `head`. Raises InputError if none."""
    if not head.strip():
        raise InputError("the log is empty", where=path)
    keys = common_keys(head)
    for known in FORMATS.values():
        if known.recognizes(keys):
            return known
    if head.lstrip().startswith(b"["):
        remedy = "write its objects one per line, for example with `jq -c '.[]'`"
        raise InputError("one JSON array, not JSON lines", where=path, remedy=remedy)
    if not keys:
        what = "no JSON lines; an object over several lines becomes one with `jq -c .`"
        raise InputError(what, where=path)
    names = ", ".join(sorted(keys)[:6])
    raise InputError(
        f"no prompts in lines with {names}",
        where=path,
        remedy="give them `messages` or `prompt`, or name the format with --from",
    )
