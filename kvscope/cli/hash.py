"""`kvscope hash`: logs with prompts become a trace without them."""

from __future__ import annotations

from typing import Annotated

import typer

from kvscope.app import values
from kvscope.app.hash_logs import HashOptions
from kvscope.cli.diagnostics import note
from kvscope.cli.options import parsed_by
from kvscope.cli.terminal import Terminal

Logs = Annotated[
    list[str],
    typer.Argument(
        metavar="LOGS",
        parser=parsed_by(values.called),
        help="Log files, plain, .gz or .zst; - is standard input.",
        show_default=False,
    ),
]


def hash_(*, logs: Logs, options: HashOptions) -> None:
    """Turn logs with prompts into a trace: salted hashes, lengths and times, never content.

    Reads OpenAI chats, conversations and completions, LiteLLM's payloads and OpenTelemetry spans.
    """
    from kvscope.app.hash_logs import hash_logs

    counts = hash_logs(logs, options, Terminal())
    if options.output != values.STANDARD_STREAM:
        note(f"{options.output}: {counts.requests:,} requests, {counts.tokens:,} input tokens")
