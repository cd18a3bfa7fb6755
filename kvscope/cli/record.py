"""`kvscope record`: a running vLLM as a trace, from outside."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from kvscope.app import values
from kvscope.app.options import Option, Time
from kvscope.cli.diagnostics import note
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.vllm_plugin.kv_events import BlockChains, EventBatch

_FROM_INSIDE = (
    "name vLLM's endpoint; or start vLLM with KVSCOPE_RECORD=FOLDER and --scheduler-cls"
    " kvscope.vllm_plugin.KvscopeScheduler, which records whole requests"
)

Endpoint = Annotated[
    str | None,
    Option(
        "Where vLLM publishes its KV-cache events, for example tcp://localhost:5557.",
        "ENDPOINT",
        flags=("--kv-events",),
    ),
]
Output = Annotated[
    str,
    Option("File to write; lines are appended.", "FILE", values.target, flags=("--output", "-o")),
]
Length = Annotated[
    float | None,
    Time("How long to listen, for example 1h.", default="until Ctrl-C", flags=("--for",)),
]
Quiet = Annotated[
    float | None,
    Time(
        "Time without growth after which a chain of blocks counts as a whole request.", default="5s"
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
        raise UsageError(
            "there is nothing to record from", where="--kv-events", remedy=_FROM_INSIDE
        )
    import json
    from itertools import chain
    from pathlib import Path

    from kvscope.vllm_plugin.kv_events import QUIET_S, BlockChains, batches

    chains = BlockChains(quiet or QUIET_S)
    written = missed = 0
    expected: int | None = None
    until_s = time.monotonic() + length if length is not None else float("inf")
    stream = batches(endpoint)
    first = next(stream)  # raises where nothing can be listened to
    with Path(path).open("a", encoding="utf-8") as file:
        note(f"listening to {endpoint}; Ctrl-C ends the recording")
        try:
            for numbered in chain([first], stream):
                for line in _lines(chains, numbered):
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
                    written += 1
                if numbered is None:
                    file.flush()
                else:
                    number, _ = numbered
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
        f" {chains.unknown:,} blocks whose predecessors were stored before"
    )


def _lines(chains: BlockChains, numbered: tuple[int, EventBatch] | None) -> list[object]:
    """Return the requests that are whole after a batch, or after a pause without one."""
    return list(chains.ended(time.time()) if numbered is None else chains.take(numbered[1]))
