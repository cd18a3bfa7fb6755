"""Add a trace to the store, from the browser or the folder for pages, as `kvscope ingest` does."""

from __future__ import annotations

from functools import partial

import streamlit as st

from dashboard import job, query_params, work
from dashboard.arguments import file_below, folder
from dashboard.wording import CONTROLS
from kvscope.app.options import Reading
from kvscope.ingest.formats.registry import FORMATS

_DETECTED = "detected"


def draw() -> None:
    """Draw the form, the progress, and then the trace that was read or why there is none."""
    with st.form("add", border=False):
        upload = st.file_uploader("Trace file", key="upload")
        path = ""
        if folder() is not None:
            path = st.text_input(f"or its path below {folder()}", key="path")
        reading = _reading()
        submitted = st.form_submit_button("Add")
    if submitted and upload is not None:
        start = partial(job.start, "add", f"Add {upload.name}", work.read_upload, upload.name)
        start(upload.getvalue(), reading, on_trace=False)
    elif submitted and path:
        job.start("add", f"Add {path}", work.read, file_below(path), reading, on_trace=False)
    elif submitted:
        st.warning("Choose a file.")
        return
    done = job.completed("add")
    if done is None:
        return
    job.forget("add")
    if done.started_here:
        query_params.set_next("trace", done.result.name)
    st.rerun()


def _reading() -> Reading:
    """Draw how to read the file, as the options of `kvscope ingest` say it."""
    left, middle, right = st.columns(3)
    formats = [_DETECTED, *(known.name for known in FORMATS)]
    chosen = left.selectbox(CONTROLS["--format"], formats, key="format")
    tokens = middle.number_input(
        CONTROLS["--block-size"], 1, value=None, key="block_size", placeholder="as the trace says"
    )
    percent = right.number_input(
        f"{CONTROLS['--max-bad']} (%)", 0.0, 100.0, 100 * Reading().max_bad, key="max_bad"
    )
    trace_format = None if chosen == _DETECTED else chosen
    return Reading(trace_format=trace_format, block_size=tokens, max_bad=percent / 100)
