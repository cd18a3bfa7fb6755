"""`kvscope fit`: which model does the reuse of each category follow, and for how long."""

from __future__ import annotations

from kvscope.app.options import FitOptions, Reading
from kvscope.cli import output
from kvscope.cli.options import DEFAULT_DB, Db, ScreenOptions, TraceArgument
from kvscope.cli.terminal import Terminal


def fit(
    *,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    options: FitOptions,
    printing: ScreenOptions,
    reading: Reading,
) -> None:
    """Fit models of reuse and of conversations: which one to use, and how stable it is.

    The store keeps the result.
    """
    from kvscope.app.fit import fit_request

    request = fit_request(options)
    from kvscope.app.traces import check_source
    from kvscope.store.db import open_store

    with open_store(db) as store:
        check_source(store, trace)
        from kvscope.app.documents.fit import fit_document
        from kvscope.app.fit import fit_source
        from kvscope.report import fit as report
        from kvscope.report.section import check_names

        check_names(printing.section, report.SECTIONS)
        fitted, ends = fit_source(store, trace, request, Terminal(), reading)
    output.report(
        fitted.trace,
        printing,
        document=lambda: fit_document(fitted, ends),
        screen=lambda: report.screen(fitted, ends),
        sections=lambda: report.sections(fitted, ends),
        page="kvscope fit",
    )
