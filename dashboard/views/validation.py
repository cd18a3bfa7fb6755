"""Validation: prediction and measurement of every stored `kvscope validate`."""

from __future__ import annotations

import streamlit as st

from dashboard import data, render, sidebar
from kvscope.report import validation

results = data.validations(sidebar.page_head("Validation"))
if not results:
    st.info(
        "The store has no validation of this trace. `kvscope validate` replays it on a vLLM on this"
        " machine, with LRU and the recommended policy, and compares prediction and measurement."
    )
for number, result in enumerate(results):
    render.show(validation.stored(result), within=str(number))
