"""Validation: prediction and measurement of every stored `kvscope validate`."""

from __future__ import annotations

import streamlit as st

from dashboard import connection, render, sidebar
from kvscope.report import validation
from kvscope.validate.result import stored_validations

trace = sidebar.page_head("Validation")
with connection.reading() as store:
    results = stored_validations(store, trace)
if not results:
    st.info("The store has no validation of this trace: `kvscope validate` adds one.")
for number, result in enumerate(results):
    render.show(validation.stored(result), within=str(number))
