"""`kvscope analyze`: what is in my traffic, how much can caching give, how large must it be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvscope import units
from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.loading import (
    DEFAULT_MAX_BAD,
    BlockSize,
    Format,
    MaxBad,
    Name,
    Seed,
    SessionArrivals,
    Strict,
    ingest_options,
    load_trace,
)
from kvscope.cli.options import (
    DEFAULT_DB,
    Db,
    Hbm,
    Json,
    KvDtype,
    Model,
    TraceArgument,
    parsed_by,
)
from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.facts import HitDefinition
    from kvscope.kv_size import ModelKv
    from kvscope.show.analysis import Analysis

Compat = Annotated[
    Literal["kvcache-simulator", "libcachesim"] | None,
    typer.Option("--compat", help="Count hits as this tool does.", show_default=False),
]
Outputs = Annotated[
    Literal["carried", "ignored"],
    typer.Option("--outputs", help="Whether a turn's output stays in the cache for the next."),
]
Warmup = Annotated[
    float,
    typer.Option(
        "--warmup",
        metavar="SHARE",
        parser=parsed_by(units.parse_share),
        help="Share of the requests, the first ones, that fill the cache and are not counted.",
        show_default="0",
    ),
]
CapacityBlocks = Annotated[
    str | None,
    typer.Option(
        "--capacity-blocks",
        metavar="N,...",
        help="Capacities to read off LRU's curve, in blocks.",
        show_default=False,
    ),
]
Capacity = Annotated[
    str | None,
    typer.Option(
        "--capacity",
        metavar="SIZE,...",
        help="The same in bytes, for example 10GiB,20GiB; needs --model.",
        show_default=False,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="PATH",
        help="Also write one self-contained HTML report.",
        show_default=False,
    ),
]


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
    name: Name = None,
    trace_format: Format = None,
    block_size: BlockSize = None,
    session_arrivals: SessionArrivals = None,
    seed: Seed = 0,
    strict: Strict = False,
    max_bad: MaxBad = DEFAULT_MAX_BAD,
) -> None:
    """Characterize a trace: what is reused, what caching can give, how large it must be.

    A path is ingested first if the store does not have it yet.
    """
    definition = _definition(compat, outputs, warmup)
    kv = _model(model, kv_dtype, hbm)
    from kvscope.show.analysis import AnalyzeOptions
    from kvscope.show.analysis import analyze as characterized
    from kvscope.store.db import open_store

    reading = ingest_options(
        name=name,
        trace_format=trace_format,
        block_size=block_size,
        session_arrivals=session_arrivals,
        seed=seed,
        strict=strict,
        max_bad=max_bad,
    )
    with open_store(db) as store:
        found = load_trace(store, trace, reading)
        options = AnalyzeOptions(
            definition=definition,
            model=kv,
            hbm_bytes=hbm,
            capacities_blocks=_capacities(capacity_blocks, capacity, kv, found.block_size),
        )
        analysis = characterized(store, found, options)
    if as_json:
        output.emit_json("analyze", found, _document(analysis))
    else:
        _print(analysis)
    if html is not None:
        _write_html(analysis, html)


def _definition(compat: str | None, outputs: str, warmup: float) -> HitDefinition:
    from kvscope.simulate.definitions import compatible, standard

    if not 0 <= warmup < 1:
        raise UsageError(f"not below 100%: {warmup:.0%}", where="--warmup", remedy="try 20%")
    if compat is None:
        return standard(warmup=warmup, outputs="carried" if outputs == "carried" else "ignored")
    if outputs != "carried" or warmup:
        raise UsageError(
            "settles outputs and warm-up itself",
            where=f"--compat {compat}",
            remedy="leave out --outputs and --warmup",
        )
    return compatible(compat)


def _model(model: str | None, kv_dtype: str | None, hbm: int | None) -> ModelKv | None:
    from kvscope.kv_size import resolve_model

    if model is None:
        if kv_dtype or hbm is not None:
            option = "--kv-dtype" if kv_dtype else "--hbm"
            raise UsageError("needs a model", where=option, remedy="name one with --model")
        return None
    return resolve_model(model, kv_dtype)  # type: ignore[arg-type]


def _capacities(
    blocks: str | None, sizes: str | None, model: ModelKv | None, block_size: int
) -> tuple[int, ...]:
    """The capacities asked for, in blocks."""
    asked = [units.parse_tokens(part) for part in blocks.split(",")] if blocks else []
    if sizes:
        if model is None:
            raise UsageError(
                "bytes need a model", where="--capacity", remedy="name one with --model"
            )
        for part in sizes.split(","):
            asked.append(model.blocks_in(units.parse_size(part), block_size))
    return tuple(asked)


def _document(analysis: Analysis) -> dict[str, Any]:
    """The keys of `--json`; those on reuse are null or empty for a trace of lengths."""
    from dataclasses import fields

    found, caching, model = analysis.characterization, analysis.caching, analysis.model
    document: dict[str, Any] = {
        "notes": analysis.trace.notes,
        "model": model
        and {
            "name": model.name,
            "dtype": model.dtype,
            "bytes_per_token": model.bytes_per_token,
            "notes": model.notes,
        },
        "hbm_bytes": analysis.hbm_bytes,
        "definition": caching and caching.definition,
        "ideal_hit_rate": caching and caching.ideal,
        "hit_rates": caching.hit_rates if caching else (),
        "curve": caching.curve if caching else (),
        "landmarks": caching.landmarks if caching else (),
        "asked": caching.asked if caching else (),
        "misses": caching.misses if caching else (),
    }
    told = [field.name for field in fields(found) if field.name != "trace"]
    return document | {name: getattr(found, name) for name in told}


def _print(analysis: Analysis) -> None:
    from kvscope.cli.rendering import show_sections
    from kvscope.show import report

    output.emit(f"{analysis.trace.name}: {report.trace_in_words(analysis.trace)}")
    show_sections([report.headline(analysis), *report.sections(analysis)])


def _write_html(analysis: Analysis, path: Path) -> None:
    from kvscope.show.report import html_report

    path.write_text(html_report(analysis), encoding="utf-8")
    note(f"report written to {path}")
