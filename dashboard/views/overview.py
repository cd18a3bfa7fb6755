"""Overview: what the cache gives and could give, whether the SLO is met, and what to do next."""

from __future__ import annotations

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, data, job, render, sidebar, time_range, upload
from kvscope.report import overview, traffic
from kvscope.report.section import Section, Tile
from kvscope.report.stored import traces_table
from kvscope.usecases.tune import USE_CASE

LINKS = (
    ("why", "Why tokens miss"),
    ("capacity", "Other capacities"),
    ("lab", "Other policies"),
    ("recommendation", "Tune for an SLO"),
)


def page() -> None:
    """Draw the headline's tiles, then its sentences, traffic over time and the list of traces."""
    selected = sidebar.choices()
    if selected.trace is None:
        st.title("Overview")
        if selected.missing:
            sidebar.stop_without_trace()
        st.info("The store holds no traces. Add one.")
        upload.draw()
        return
    trace = sidebar.page_head("Overview", needs_hashes=False)
    with st.expander("Add a trace", expanded=job.current("add") is not None):
        upload.draw()
    above = st.container()
    render.show([Section.of("Traces in the store", traces_table(data.all_traces()))])
    with above:  # last, since the page ends here while the analysis is under way
        analysis = sidebar.analysis(trace)
        summary = replace(overview.headline(analysis), tables=())
        if summary.tiles:
            tuned = answers.newest(USE_CASE, trace, selected.deployment)
            untuned = Tile("SLO", "not tuned yet", overview.next_step(analysis) or "")
            tiles = data.open_report(tuned.report_id).sections[0].tiles if tuned else (untuned,)
            summary = replace(summary, tiles=(*summary.tiles, *tiles))
        render.show([summary], titles=False)
        with st.container(horizontal=True):
            for page, label in LINKS:
                st.page_link(f"views/{page}.py", label=label)
        chosen = time_range.draw(trace)
        served = data.served_over_time(trace, analysis, selected.profile)
        over_time = time_range.zoomed(
            [traffic.over_time(analysis.characterization, served)], chosen
        )
        answers.export_analysis(trace, analysis)
        render.show(over_time, cache_key=f"overview {trace} {chosen} {selected}")


page()
