"""Time: when blocks are used again, how long they live, and which models that follows."""

from __future__ import annotations

import deep
import frame
import held
import job
import render
import streamlit as st

from kvscope.core.trace import Trace
from kvscope.report import fit, time, traffic


def page() -> None:
    """What was observed, or the models as soon as they are fitted."""
    trace = frame.trace("Time")
    observed, fitted = deep.tabs("told", ("What was observed", "Fitted models"))
    if fitted.open:  # many charts, which a browser would draw unseen
        with fitted:
            _models(trace)
        return
    with observed:
        told = held.analysis(trace).characterization
        turns = [one for one in traffic.sections(told) if one.title == "Conversations"]
        render.show([*time.sections(told), *turns], keep=f"time {trace}")


def _models(trace: Trace) -> None:
    key = f"fit {trace}"
    known = held.known_fit(trace)
    if known is not None:
        render.show(fit.sections(known), within="fitted", keep=f"fitted {trace}")
        return
    asked = job.current(key)
    if asked is None or (asked.ended and st.button("Fit models", type="primary")):
        job.start(key, lambda one: held.fitted(one, trace))
    job.finished(key)


page()
