"""`kvscope analyze`: what is in my traffic, how much can caching give, how large must it be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.loading import load_trace
from kvscope.cli.options import (
    AS_IT_SAYS,
    DEFAULT_DB,
    Compat,
    Db,
    Hbm,
    Html,
    Json,
    KvDtype,
    Model,
    Outputs,
    Reading,
    TraceArgument,
    Warmup,
    with_reading,
)
from kvscope.cli.values import amount, listed, parsed_by, positive
from kvscope.core import units
from kvscope.core.files import write_text

if TYPE_CHECKING:
    from kvscope.app.analyze import Analysis, StartedCaching
    from kvscope.core.trace import PromptPaths

CapacityBlocks = Annotated[
    Any,  # tuple[int, ...] | None, which Typer takes for one value after the other
    typer.Option(
        "--capacity-blocks",
        metavar="N,...",
        parser=parsed_by(listed(amount("blocks"))),
        help="Capacities to read off LRU's curve, in blocks.",
        show_default=False,
    ),
]
Capacity = Annotated[
    Any,  # as above
    typer.Option(
        "--capacity",
        metavar="SIZE,...",
        parser=parsed_by(listed(positive(units.parse_size))),
        help="The same in bytes, for example 10GiB,20GiB; needs --model.",
        show_default=False,
    ),
]


@with_reading
def analyze(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    model: Model = None,
    kv_dtype: KvDtype = None,
    hbm: Hbm = None,
    capacity_blocks: CapacityBlocks = None,
    capacity: Capacity = None,
    compat: Compat = None,
    outputs: Outputs = "carried",
    warmup: Warmup = 0.0,
    html: Html = None,
    as_json: Json = False,
    reading: Reading = AS_IT_SAYS,
) -> None:
    """Characterize a trace: what is reused, what caching can give, how large it must be.

    A path is ingested first if the store does not have it yet.
    """
    from kvscope.app.requests import analyze_request

    request = analyze_request(
        compat=compat,
        outputs=outputs,
        warmup=warmup,
        model=model,
        kv_dtype=kv_dtype,
        hbm_bytes=hbm,
        capacity_blocks=capacity_blocks,
        capacity_bytes=capacity,
    )
    from kvscope.store.db import open_store

    started: list[StartedCaching] = []

    def start(paths: PromptPaths) -> None:
        from kvscope.app.analyze import StartedCaching

        started.append(StartedCaching(paths, request))

    with open_store(db) as store:
        stored = load_trace(store, trace, reading, start)
        from kvscope.app.analyze import analyze as characterized

        analysis = characterized(store, stored, request, started=next(iter(started), None))
    if as_json:
        from kvscope.app.documents.analyze import analyze_document

        output.emit_json(analyze_document(analysis))
    else:
        _print(analysis)
    if html is not None:
        _write_html(analysis, html)


def _print(analysis: Analysis) -> None:
    from kvscope.cli.rendering import show_report
    from kvscope.report import overview

    show_report(analysis.trace, [overview.headline(analysis)])


def _write_html(analysis: Analysis, path: str) -> None:
    from kvscope.report.overview import html_report

    write_text(Path(path), html_report(analysis))
    note(f"report written to {path}")
