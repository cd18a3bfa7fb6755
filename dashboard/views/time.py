"""Time: when blocks are used again, how long they live, and which models that follows."""

from __future__ import annotations

import frame
import held
import render
import streamlit as st

from kvscope.show.sections import fit, time

trace = frame.trace("Time")
observed, fitted = st.tabs(["What was observed", "Fitted models"])
with observed:
    render.show(time.sections(held.analysis(trace).characterization))
with fitted:
    render.show(fit.sections(held.fitted(trace)))
