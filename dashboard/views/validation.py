"""Validation: what was predicted beside what an engine measured."""

from __future__ import annotations

import frame
import held
import render
import streamlit as st

from kvscope.report import validation

found = held.validations(frame.trace("Validation"))
if not found:
    st.info(
        "No validation of this trace is stored. `kvscope validate` replays it on a vLLM of this"
        " machine, with LRU and with what is recommended, and compares what both say."
    )
for number, one in enumerate(found):
    render.show(validation.stored(one), within=str(number))
