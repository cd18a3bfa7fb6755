"""Time: when blocks are used again, how long they live, and which models that follows."""

from __future__ import annotations

import streamlit as st

from dashboard import data, job, query_params, render, sidebar
from kvscope.core.trace import Trace
from kvscope.report import fit, time, traffic


def page() -> None:
    """What was observed, or the models as soon as they are fitted."""
    trace = sidebar.trace("Time")
    observed, fitted = query_params.tabs("told", ("What was observed", "Fitted models"))
    if fitted.open:  # many charts, which a browser would draw unseen
        with fitted:
            _models(trace)
        return
    with observed:
        told = data.analysis(trace).characterization
        turns = [one for one in traffic.sections(told) if one.title == "Conversations"]
        render.show([*time.sections(told), *turns], keep=f"time {trace}")


def _models(trace: Trace) -> None:
    key = f"fit {trace}"
    known = data.known_fit(trace)
    if known is not None:
        render.show(fit.sections(known), within="fitted", keep=f"fitted {trace}")
        return
    asked = job.current(key)
    if asked is None or (asked.ended and st.button("Fit models", type="primary")):
        job.start(key, lambda one: data.fitted(one, trace))
    job.finished(key)


page()
