"""Overview: what is in the selected trace, which traces there are, and where to go next."""

from __future__ import annotations

import streamlit as st
from msgspec.structs import replace

from dashboard import data, job, render, sidebar, time_range, upload
from dashboard.markdown import escape
from kvscope.core import units
from kvscope.report import overview, traffic
from kvscope.report.section import Section
from kvscope.report.stored import traces_table
from kvscope.report.words import definition_in_words
from kvscope.usecases.analyze import Analysis

LINKS = (
    ("Now", "capacity", "Other capacities"),
    ("Possible", "lab", "Replay other policies"),
    ("Next", "recommendation", "Tune for an SLO"),
)


def page() -> None:
    """Draw the headline numbers, then the list of traces."""
    selected = sidebar.choices()
    if selected.trace is None:
        st.title("Overview")
        if selected.missing:
            sidebar.stop_without_trace()
        st.info("The store holds no traces. Add one.")
        upload.draw()
        return
    trace = sidebar.page_head("Overview", needs_hashes=False)
    above = st.container()
    stored = Section.of("Traces in the store", traces_table(data.all_traces()))
    render.show([stored])
    with st.expander("Add a trace", expanded=job.current("add") is not None):
        upload.draw()
    with above:  # last, since the page ends here while the analysis is under way
        analysis = data.analysis(
            trace, selected.model, selected.hbm_bytes, selected.deployment, selected.options
        )
        answers = overview.answers(analysis)
        if answers is not None:
            _answers(answers)
        summary = overview.headline(analysis)
        further = [text for text in summary.sentences if text not in (answers or ())]
        sentences, numbers = st.container(), st.container()
        if analysis.deployment is None:
            sentences, numbers = numbers, sentences
        with numbers:
            _numbers(analysis)
        with sentences:
            render.show([replace(summary, sentences=tuple(further), tables=())], titles=False)
        render.show([replace(summary, sentences=())], titles=False)
        requests, over_time, *_ = traffic.sections(analysis.characterization)
        render.show([requests], cache_key=f"overview {trace}")
        chosen = time_range.draw(trace)
        zoomed = time_range.zoomed([over_time], chosen)
        render.show(zoomed, cache_key=f"overview {trace} {chosen}")


def _answers(sentences: tuple[str, str, str]) -> None:
    """Draw what the cache gives, what it could give, and what to do, each with its page."""
    for column, text, (title, page, label) in zip(
        st.columns(3, border=True), sentences, LINKS, strict=True
    ):
        with column:
            st.markdown(f"**{title}**  \n{escape(text)}")
            st.page_link(f"views/{page}.py", label=label)


def _numbers(analysis: Analysis) -> None:
    trace, caching, facts = analysis.trace, analysis.caching, analysis.characterization
    numbers = [("Requests", units.format_count(trace.requests), "Usable lines of the trace.")]
    if caching is not None:
        nine = next(mark for mark in caching.landmarks if mark.share_of_ideal == 0.9).point
        definition = definition_in_words(caching.definition)
        size = f"{units.format_count(nine.capacity_blocks)} blocks"
        if nine.capacity_bytes is not None:
            size = units.format_size(nine.capacity_bytes)
        turns = units.format_share(facts.contribution.multi_turn_request_share)
        numbers += [
            ("Ideal hit rate", units.format_share(caching.ideal), f"Infinite cache, {definition}."),
            ("90% of ideal", size, f"Least capacity of LRU; {definition}."),
            ("Follow-up turns", turns, "Share of requests that continue a conversation."),
        ]
    else:
        mean = facts.lengths.input_tokens.mean
        numbers.append(("Mean input", f"{units.format_count(mean)} tokens", "Of all requests."))
    render.metrics(numbers, border=True)


page()
