"""Validation: what was predicted beside what an engine measured."""

from __future__ import annotations

import frame
import streamlit as st

frame.trace("Validation")
st.info(
    "No validation of this trace is stored. `kvscope validate` replays it on a vLLM of this"
    " machine, with LRU and with what is recommended, and compares what both say."
)
