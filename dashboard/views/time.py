"""Time: when blocks are used again, how long they live, and which models that follows."""

from __future__ import annotations

import frame
import held
import render
import streamlit as st

from kvscope.show.sections import fit, time, traffic

trace = frame.trace("Time")
observed, fitted = st.tabs(["What was observed", "Fitted models"])
with observed:
    told = held.analysis(trace).characterization
    turns = [one for one in traffic.sections(told) if one.title == "Conversations"]
    render.show([*time.sections(told), *turns])
with fitted:
    render.show(fit.sections(held.fitted(trace)), within="fitted")
