"""`kvscope analyze`: what is in the traffic, what caching can give, how large it must be."""

from __future__ import annotations

from kvscope.app.options import AnalyzeOptions, Reading
from kvscope.cli import output
from kvscope.cli.options import DEFAULT_DB, Db, ScreenOptions, TraceArgument
from kvscope.cli.terminal import Terminal


def analyze(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: AnalyzeOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Characterize a trace: what is reused, what caching can give, how large it must be.

    A path is ingested first if the store does not have it yet.
    """
    from kvscope.app.requests import analyze_request

    request = analyze_request(options)
    from kvscope.app.traces import check_source
    from kvscope.store.db import open_store

    with open_store(db) as store:
        check_source(store, trace)
        from kvscope.app.analyze import analyze_source
        from kvscope.app.documents.analyze import analyze_document
        from kvscope.report import overview
        from kvscope.report.section import check_names

        check_names(printing.section, overview.SECTIONS)
        analysis = analyze_source(store, trace, request, Terminal(), reading)
    output.report(
        analysis.trace,
        printing,
        document=lambda: analyze_document(analysis),
        screen=lambda: [overview.headline(analysis)],
        sections=lambda: overview.sections(analysis),
        page="kvscope",
    )
