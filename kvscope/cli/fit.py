"""`kvscope fit`: which model does the reuse of each category follow, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.fit_export import Export, ExportCapacity, Exporting, ExportParams, ExportPolicy
from kvscope.cli.loading import load_trace
from kvscope.cli.options import (
    AS_IT_SAYS,
    DEFAULT_DB,
    Db,
    Html,
    Json,
    Reading,
    TraceArgument,
    Warmup,
    with_reading,
)
from kvscope.cli.values import amount, parsed_by, positive
from kvscope.core import units
from kvscope.core.errors import InputError, UsageError
from kvscope.core.files import write_text

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.reuse_models.results import Fit
    from kvscope.store.db import Store
    from kvscope.tuning.end_gain import EndsFit

Window = Annotated[
    float | None,
    typer.Option(
        "--window",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="How long a sliding window is, for example 1h.",
        show_default="1h, or a fifth of a shorter trace",
    ),
]
Returns = Annotated[
    bool,
    typer.Option(
        "--returns",
        help="Also learn, request by request, whether another turn will come: how well that is"
        " foreseen over time, and what it is worth to T-LRU.",
    ),
]
Horizon = Annotated[
    float | None,
    typer.Option(
        "--horizon",
        metavar="TIME",
        parser=parsed_by(positive(units.parse_duration)),
        help="With --returns: the time within which the next turn has to come.",
        show_default="10m",
    ),
]
Xi = Annotated[
    int | None,
    typer.Option(
        "--xi",
        metavar="TOKENS",
        parser=parsed_by(amount("tokens")),
        help="With --returns: tokens that may stay uncached without breaking the latency"
        " threshold.",
        show_default="8192",
    ),
]


@with_reading
def fit(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    window: Window = None,
    warmup: Warmup = 0.0,
    export: Export = None,
    policy: ExportPolicy = None,
    param: ExportParams = None,
    capacity_blocks: ExportCapacity = None,
    returns: Returns = False,
    horizon: Horizon = None,
    xi: Xi = None,
    html: Html = None,
    as_json: Json = False,
    reading: Reading = AS_IT_SAYS,
) -> None:
    """Fit models of reuse and of conversations: which one to use, and how stable it is.

    What is found is kept in the store.
    """
    from kvscope.app.requests import hit_definition

    hit_definition(None, "carried", warmup)  # the same bounds as everywhere
    exporting = Exporting(export, policy, param, capacity_blocks)
    if not returns and (horizon is not None or xi is not None):
        where = "--xi" if horizon is None else "--horizon"
        raise UsageError("says how returns are foreseen", where=where, remedy="add --returns")
    from kvscope.reuse_models.fit import fit as fitted
    from kvscope.reuse_models.results import keep
    from kvscope.store.db import open_store

    with open_store(db) as store:
        told = load_trace(store, trace, reading)
        if returns and not told.has_hashes:
            raise InputError(
                "a trace of lengths tells no turn from another",
                where="--returns",
                remedy="take a trace with hashes",
            )
        found = fitted(store, told, window_s=window, warmup=warmup)
        keep(store, found)
        exporting.write(store, told)
        ends = _foreseen(store, told, horizon, xi) if returns else None
    if as_json:
        from kvscope.app.documents.fit import fit_document

        output.emit_json(fit_document(found, ends))
    else:
        _print(found, ends)
    if html is not None:
        _write_html(found, ends, html)


def _foreseen(store: Store, trace: Trace, horizon_s: float | None, xi: int | None) -> EndsFit:
    from kvscope.policies.tlru_learned import HORIZON
    from kvscope.store.traces import load_prompts
    from kvscope.tuning.end_gain import XI_TOKENS, fit_ends

    prompts = load_prompts(store, trace)
    return fit_ends(prompts, horizon_s=horizon_s or HORIZON.default, xi_tokens=xi or XI_TOKENS)


def _print(found: Fit, ends: EndsFit | None) -> None:
    from kvscope.cli.rendering import show_report
    from kvscope.report.fit import sections

    show_report(found.trace, sections(found, ends))


def _write_html(found: Fit, ends: EndsFit | None, path: str) -> None:
    from kvscope.report.fit import html_report

    write_text(Path(path), html_report(found, ends))
    note(f"report written to {path}")
