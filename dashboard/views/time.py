"""Time: when blocks are used again, how long they live, and which models that follows."""

from __future__ import annotations

import frame
import held
import job
import render
import streamlit as st

from kvscope.facts import Trace
from kvscope.show.sections import fit, time, traffic


def page() -> None:
    """What was observed at once; the models as soon as they are fitted."""
    trace = frame.trace("Time")
    observed, fitted = st.tabs(["What was observed", "Fitted models"])
    with observed:
        told = held.analysis(trace).characterization
        turns = [one for one in traffic.sections(told) if one.title == "Conversations"]
        render.show([*time.sections(told), *turns])
    with fitted:
        _models(trace)


def _models(trace: Trace) -> None:
    key = f"fit {trace.trace_id} {trace.name}"
    known = held.known_fit(trace)
    if known is not None:
        render.show(fit.sections(known), within="fitted")
        return
    asked = job.current(key)
    if asked is None or (not asked.running and st.button("Fit models", type="primary")):
        job.start(key, lambda one: held.fitted(one, trace))
    job.finished(key)


page()
