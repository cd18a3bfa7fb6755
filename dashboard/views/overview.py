"""Overview: which traces there are, what is in the one that is chosen, what to do next."""

from __future__ import annotations

import streamlit as st

from dashboard import added, data, job, query_params, render, sidebar
from dashboard.markdown import plain
from kvscope.app.analyze import Analysis
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report import overview, traffic
from kvscope.report.words import definition_in_words


def page() -> None:
    """Headline numbers first, then the traces themselves."""
    if sidebar.chosen().trace is None:
        st.title("Overview")
        st.info("The store holds no traces yet: name a file, or upload one.")
        _add()
        return
    trace = sidebar.trace("Overview", hashes=False)
    above = st.container()
    _next()
    st.subheader("Traces in the store")
    _traces()
    with st.expander("Add a trace", expanded=job.current("add") is not None):
        _add()
    with above:  # last, since the page ends here where it is not known yet
        found = data.analysis(trace, sidebar.chosen().model, sidebar.chosen().hbm_bytes)
        _numbers(found)
        render.show([overview.headline(found)], titles=False)
        told = traffic.sections(found.characterization)
        keep = f"overview {trace}"
        render.show((one for one in told if one.title != "Conversations"), keep=keep)


def _numbers(found: Analysis) -> None:
    """The few numbers that most questions begin with, each with what it counts."""
    trace, caching = found.trace, found.caching
    numbers = [("Requests", units.format_count(trace.requests), "Lines that could be used.")]
    if caching is not None:
        nine = next(mark for mark in caching.landmarks if mark.share_of_ideal == 0.9).point
        words = definition_in_words(caching.definition)
        size = (
            units.format_size(nine.capacity_bytes)
            if nine.capacity_bytes is not None
            else f"{units.format_count(nine.capacity_blocks)} blocks"
        )
        numbers += [
            ("Ideal hit rate", units.format_share(caching.ideal, 2), f"Infinite cache, {words}."),
            ("LRU for 90% of it", size, f"The least capacity; {words}."),
            (
                "Later turns",
                units.format_share(found.characterization.contribution.multi_turn_request_share),
                "Share of the requests that go on with a conversation.",
            ),
        ]
    else:
        mean = found.characterization.lengths.input_tokens.mean
        numbers.append(("Mean input", f"{units.format_count(mean)} tokens", "Of all requests."))
    for column, (label, value, words) in zip(st.columns(len(numbers)), numbers, strict=True):
        column.metric(label, value, help=words, border=True)


def _next() -> None:
    st.subheader("What next")
    st.page_link("views/capacity.py", label="How large must the cache be? Move the slider")
    st.page_link("views/lab.py", label="What would another eviction policy give? Replay it")
    st.page_link("views/recommendation.py", label="What should I set for my SLO? Tune")


def _traces() -> None:
    known = data.all_traces()
    st.dataframe(
        {
            "name": [one.name for one in known],
            "format": [one.format for one in known],
            "requests": [one.requests for one in known],
            "accesses": [one.accesses for one in known],
            "span": [units.format_duration(one.span_s) for one in known],
            "conversations": [one.lineage for one in known],
            "bad lines": [one.bad_lines for one in known],
            "read from": [one.source for one in known],
        },
        hide_index=True,
        key="traces",
        column_config={"name": st.column_config.TextColumn(width="medium")},
    )


def _add() -> None:
    """A path, or a file from the browser; either is read as `kvscope ingest` would."""
    with st.form("add", border=False):
        path = st.text_input("Path on this machine", key="path", placeholder="trace.jsonl.gz")
        upload = st.file_uploader("or a file", key="upload")
        wanted = st.form_submit_button("Read it")
    if wanted and (upload is not None or path):
        given = (upload.name, upload.getvalue()) if upload is not None else None
        job.start("add", lambda one: added.read(one, path, given))
    if wanted:
        st.warning("Name a path, or choose a file.")
        return
    done = job.finished("add")
    if done is not None:
        _told(*done.result)


def _told(trace: Trace | None, refused: tuple[str, list[str]]) -> None:
    """Look at what was read, or say why it was not."""
    if trace is None:
        error, lines = refused
        st.error(plain(error))
        if lines:
            st.code("\n".join(lines), language=None)
        return
    job.forget("add")
    query_params.choose("trace", trace.name)
    st.rerun()


page()
