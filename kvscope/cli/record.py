"""`kvscope record`: a running vLLM as a trace, from outside."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.cli.diagnostics import note
from kvscope.cli.values import parsed_by, positive, target
from kvscope.core import units
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.vllm_plugin.kv_events import Batch, Chains

_FROM_INSIDE = (
    "name vLLM's endpoint; or start vLLM with KVSCOPE_RECORD=FOLDER and --scheduler-cls"
    " kvscope.vllm_plugin.KvscopeScheduler, which records whole requests"
)

Endpoint = Annotated[
    str | None,
    typer.Option(
        "--kv-events",
        metavar="ENDPOINT",
        help="Where vLLM publishes its KV-cache events, for example tcp://localhost:5557.",
        show_default=False,
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        parser=parsed_by(target),
        help="Where to; lines are added to what is there.",
        show_default=False,
    ),
]
Length = Annotated[
    float | None,
    typer.Option(
        "--for",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="How long to listen, for example 1h.",
        show_default="until Ctrl-C",
    ),
]
Quiet = Annotated[
    float | None,
    typer.Option(
        "--quiet",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="A chain of blocks that has not grown for so long is a whole request.",
        show_default="5s",
    ),
]


def record(
    path: Output, endpoint: Endpoint = None, length: Length = None, quiet: Quiet = None
) -> None:
    """Write what a running vLLM serves as a trace: salted hashes and lengths, never content.

    From outside, through vLLM's KV-cache events, requests are known in whole blocks only. The
    plugin for vLLM records them exactly: docs/record.md.
    """
    if endpoint is None:
        raise UsageError("what is to be recorded?", where="--kv-events", remedy=_FROM_INSIDE)
    import json
    from itertools import chain
    from pathlib import Path

    from kvscope.vllm_plugin.kv_events import QUIET_S, Chains, batches

    chains = Chains(quiet or QUIET_S)
    written = missed = 0
    expected: int | None = None
    until_s = time.monotonic() + length if length is not None else float("inf")
    stream = batches(endpoint)
    first = next(stream)  # which there is none of where nothing can be listened to
    with Path(path).open("a", encoding="utf-8") as file:
        note(f"listening to {endpoint}; Ctrl-C ends the recording")
        try:
            for found in chain([first], stream):
                for line in _lines(chains, found):
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
                    written += 1
                if found is None:
                    file.flush()
                else:
                    number, _ = found
                    missed += max(number - (number if expected is None else expected), 0)
                    expected = number + 1
                if time.monotonic() > until_s:
                    break
        except KeyboardInterrupt:  # the usual end
            pass
        for line in chains.ended(float("inf")):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            written += 1
    note(
        f"{path}: {written:,} requests; {missed:,} batches of events missed,"
        f" {chains.unknown:,} blocks behind ones that were stored before"
    )


def _lines(chains: Chains, found: tuple[int, Batch] | None) -> list[object]:
    return list(chains.ended(time.time()) if found is None else chains.take(found[1]))
