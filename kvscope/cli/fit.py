"""`kvscope fit`: which model does the reuse of each category follow, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope import units
from kvscope.cli import asked, output
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
from kvscope.cli.values import parsed_by, positive

if TYPE_CHECKING:
    from kvscope.model.facts import Fit

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
    html: Html = None,
    as_json: Json = False,
    reading: Reading = AS_IT_SAYS,
) -> None:
    """Fit models of reuse and of conversations: which one to use, and how stable it is.

    What is found is kept in the store.
    """
    asked.definition(None, "carried", warmup)  # the same bounds as everywhere
    exporting = Exporting(export, policy, param, capacity_blocks)
    from kvscope.model.fit import fit as fitted
    from kvscope.model.keep import keep
    from kvscope.store.db import open_store

    with open_store(db) as store:
        told = load_trace(store, trace, reading)
        found = fitted(store, told, window_s=window, warmup=warmup)
        keep(store, found)
        exporting.write(store, told)
    if as_json:
        output.emit_json("fit", told, _document(found))
    else:
        _print(found)
    if html is not None:
        _write_html(found, html)


def _document(found: Fit) -> dict[str, Any]:
    """The keys of `--json`; those on reuse are empty for a trace of lengths."""
    windows = found.windows
    return {
        "notes": found.trace.notes,
        "warmup": found.warmup,
        "start_s": found.start_s,
        "end_s": found.end_s,
        "categories": found.categories,
        "models": found.models,
        "windows": windows
        and {
            "length_s": windows.length_s,
            "step_s": windows.step_s,
            "at_s": windows.at_s,
            "fits": windows.fits,
        },
        "stability": windows.stability if windows else (),
        "conversation": found.conversation,
        "next_turns": found.next_turns,
        "next_prompt_tokens": found.next_prompts,
    }


def _print(found: Fit) -> None:
    from kvscope.cli.rendering import show_sections
    from kvscope.show.report import trace_in_words
    from kvscope.show.sections.fit import sections

    output.emit(f"{found.trace.name}: {trace_in_words(found.trace)}")
    show_sections(sections(found))


def _write_html(found: Fit, path: str) -> None:
    from kvscope.show.sections.fit import html_report

    Path(path).write_text(html_report(found), encoding="utf-8")
    note(f"report written to {path}")
