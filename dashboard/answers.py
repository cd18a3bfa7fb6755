"""What a page's question was answered: by a job of this dashboard, or in the store before.

And what is taken along of an answer: the HTML report, the JSON document, the same command.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st
from msgspec import Struct

from dashboard import connection, data, job, render, sidebar, work
from dashboard.wording import escape, local_time
from kvscope.app.options import typed
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.report.report import Report
from kvscope.report.stored import ReportContent, StoredReport, question_of
from kvscope.usecases.analyze import USE_CASE as ANALYZE
from kvscope.usecases.analyze import Analysis, AnalyzeOptions
from kvscope.usecases.base import AnyUseCase
from kvscope.usecases.documents import to_json

Files = dict[str, Callable[[], str]]


def show(
    case: AnyUseCase,
    title: str,
    question: tuple[Trace, Any] | None,
    button: str,
    options: Struct,
    *,
    clicked: bool,
    draw: Callable[[ReportContent], None] = lambda content: render.show(content.sections),
) -> None:
    """Draw the report that answers a question, and its exports; `options` are what asks it."""
    content = report(case, title, question, button, clicked=clicked)
    trace = sidebar.choices().trace
    if trace is not None:
        words = [case.name, trace.name, "--db", connection.database(), *typed(options)]
        draw_exports(words, stored_files(case.title, trace, content) if content else {})
    if content is not None:
        draw(content)


def report(
    case: AnyUseCase, title: str, question: tuple[Trace, Any] | None, button: str, *, clicked: bool
) -> ReportContent | None:
    """Return the report that answers a question: a job's, or else the newest in the store.

    The question is a trace and the request of the use case, None where an input lacks. Without an
    answer to it, the report is the newest on other settings of this trace, and the page says so.
    """
    known = _stored(case, st.session_state.get("trace"))
    request = None if question is None else (case.name, *question)
    digest = None if question is None else question_of(question[1])
    same = next((each for each in known if digest and each.question == digest), None)
    running = job.current(case.name, request)
    of_job = running is not None and (not running.ended or running.request == request)
    if clicked or of_job or same is None:
        done = job.answer(case.name, title, work.answer, request, button, clicked=clicked)
        if done is not None:
            content: ReportContent = done.result
            return content
        if job.current(case.name) is not None:
            return None
    stored = same or next(iter(known), None)
    if stored is None:
        return None
    settings = f" for {stored.settings}" if stored.settings else ""
    took = units.duration_in_words(round(stored.duration_s, 1))
    st.caption(escape(f"Stored {local_time(stored.created_at)}{settings}, computed in {took}."))
    if same is None:
        st.info(f"The newest stored answer; it is for other settings. {button} computes yours.")
    return data.open_report(stored.report_id)


def newest(
    case: AnyUseCase, trace: Trace, deployment: ResolvedDeployment | None
) -> StoredReport | None:
    """Return the newest stored report on a deployment, None for none; a cache study has no name."""
    where = None if deployment is None else deployment.summary
    return next((each for each in _stored(case, trace.name) if each.settings == where), None)


def _stored(case: AnyUseCase, trace: str | None) -> list[StoredReport]:
    reports = data.stored_results().reports
    return [each for each in reports if (each.trace, each.command) == (trace, case.title)]


def export(case: AnyUseCase, things: Sequence[str], options: Struct | None, result: Any) -> None:
    """Draw what opens the exports of a result: its command, and its files once it is known."""
    more = typed(options) if options else []
    words = [case.name, *things, "--db", connection.database(), *more]
    draw_exports(words, {} if result is None else files(case.report(result)))


def draw_exports(words: Sequence[str], saved: Files) -> None:
    """Draw what opens a command and its files by form; each is made when its button is pressed."""
    with st.session_state["corner"], st.popover("Export"):
        st.code(shlex.join(["kvscope", *words]), language="bash", wrap_lines=True)
        for form, made in saved.items():
            name = f"{words[0]}.{form.lower()}"
            st.download_button(form, made, name, key=f"export {name}", on_click="ignore")


def files(shown: Report) -> Files:
    """Return the files of a report: its page and its document."""
    return {"HTML": shown.html, "JSON": lambda: to_json(shown.document())}


def stored_files(title: str, trace: Trace, content: ReportContent) -> Files:
    """Return the files of a stored report; one of an earlier version may lack its document."""
    document = partial(json.loads, content.document or "null")
    saved = files(Report(title, trace, document, list, lambda: content.sections))
    return saved if content.document else {"HTML": saved["HTML"]}


def export_analysis(trace: Trace, analysis: Analysis) -> None:
    """Draw the exports of an analysis for what is selected."""
    hbm = None if analysis.deployment else analysis.hbm_bytes
    options = AnalyzeOptions(hbm=hbm, **sidebar.of_deployment(AnalyzeOptions))
    export(ANALYZE, [trace.name], options, analysis)
