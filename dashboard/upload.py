"""Add a trace to the store, by its path or from the browser, as `kvscope ingest` does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import streamlit as st

from dashboard import connection, job, query_params
from kvscope.app.traces import ingest_file
from kvscope.core.trace import Trace


def draw() -> None:
    """Draw the form, the progress, and then the trace that was read or why there is none."""
    with st.form("add", border=False):
        path = st.text_input("Path on this machine", key="path", placeholder="trace.jsonl.gz")
        upload = st.file_uploader("or a file", key="upload")
        submitted = st.form_submit_button("Add")
    if submitted and upload is not None:
        name, content = upload.name, upload.getvalue()
        job.start(
            "add",
            f"Add {name}",
            lambda running: _read_upload(running, name, content),
            on_trace=False,
        )
    elif submitted and path:
        job.start("add", f"Add {path}", lambda running: _read(running, path), on_trace=False)
    elif submitted:
        st.warning("Enter a path or choose a file.")
        return
    done = job.completed("add")
    if done is None:
        return
    job.forget("add")
    if done.started_here:
        query_params.set_next("trace", done.result.name)
    st.rerun()


def _read_upload(running: job.Job, name: str, content: bytes) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(name).name
        copy.write_bytes(content)
        return _read(running, str(copy))


def _read(running: job.Job, path: str) -> Trace:
    return ingest_file(connection, path, running).trace
