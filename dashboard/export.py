"""Take along what a page shows: the HTML report, the JSON document, the same command."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial

import streamlit as st
from msgspec import Struct

from dashboard import connection, sidebar
from kvscope.app.options import typed
from kvscope.core.trace import Trace
from kvscope.report.report import Report, page
from kvscope.report.stored import ReportContent
from kvscope.report.words import trace_in_words
from kvscope.usecases.analyze import USE_CASE as ANALYZE
from kvscope.usecases.analyze import Analysis, AnalyzeOptions
from kvscope.usecases.base import AnyUseCase
from kvscope.usecases.documents import to_json


def draw(
    case: AnyUseCase, trace: Trace, options: Struct, shown: Report | ReportContent | None
) -> None:
    """Draw what opens the exports of a use case on a trace; what is not known has no button."""
    with sidebar.corner(), st.popover("Export"):
        words = ["kvscope", case.name, trace.name, "--db", connection.database(), *typed(options)]
        st.code(shlex.join(words), language="bash", wrap_lines=True)
        if isinstance(shown, Report):
            _save(case, "HTML", shown.html)
            _save(case, "JSON", lambda: to_json(shown.document()))
        elif shown is not None:
            title, lead = f"{case.title}: {trace.name}", trace_in_words(trace)
            _save(case, "HTML", partial(page, title, lead, shown.sections))
            if shown.document:
                _save(case, "JSON", partial(str, shown.document))


def draw_analysis(trace: Trace, analysis: Analysis) -> None:
    """Draw the exports of an analysis for what is selected."""
    hbm = None if analysis.deployment else analysis.hbm_bytes
    options = AnalyzeOptions(hbm=hbm, **sidebar.of_deployment(AnalyzeOptions))
    draw(ANALYZE, trace, options, ANALYZE.report(analysis))


def _save(case: AnyUseCase, form: str, made: Callable[[], str]) -> None:
    """Draw a button that saves the result in a form, made when it is pressed."""
    name = f"{case.name}.{form.lower()}"
    st.download_button(form, made, name, key=f"export {name}", on_click="ignore")
