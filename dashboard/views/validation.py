"""Validation: what was predicted beside what an engine measured."""

from __future__ import annotations

import streamlit as st

from dashboard import data, render, sidebar
from kvscope.report import validation

found = data.validations(sidebar.trace("Validation"))
if not found:
    st.info(
        "No validation of this trace is stored. `kvscope validate` replays it on a vLLM of this"
        " machine, with LRU and with what is recommended, and compares what both say."
    )
for number, one in enumerate(found):
    render.show(validation.stored(one), within=str(number))
