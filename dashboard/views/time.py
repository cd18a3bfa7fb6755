"""Time: after how long blocks are reused, how long they live, and which models fit that."""

from __future__ import annotations

import streamlit as st

from dashboard import answers, data, job, query_params, render, sidebar, time_range, work
from kvscope.core.trace import Trace
from kvscope.report import fit, time, traffic
from kvscope.usecases.fit import USE_CASE as FIT


def page() -> None:
    """Draw the observations, or the models once they are fitted."""
    trace = sidebar.page_head("Time")
    observed, fitted = query_params.tabs("view", ("Observed", "Fitted models"))
    if fitted.open:
        with fitted:
            _models(trace)
        return
    with observed:
        chosen = time_range.draw(trace)
        facts = data.analysis(trace).characterization
        turns = [part for part in traffic.sections(facts) if part.title == "Conversations"]
        sections = time_range.zoomed([*time.sections(facts), *turns], chosen)
        render.show(sections, cache_key=f"time {trace} {chosen}")
        answers.export_analysis(trace, sidebar.analysis(trace))


def _models(trace: Trace) -> None:
    running = job.current("fit", (trace,))
    failed = running is not None and bool(running.error)
    clicked = running is None or (failed and st.button("Fit models", type="primary"))
    done = job.answer("fit", "Fit models", work.fitted, (trace,), "Fit models", clicked=clicked)
    if done is not None:
        answers.export(FIT, [trace.name], None, done.result)
        render.show(fit.sections(done.result), within="fitted", cache_key=f"fitted {trace}")


page()
