"""A time range of the trace: zooms the charts over time, and is analyzed as a trace of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st
from msgspec.structs import replace
from streamlit.delta_generator import DeltaGenerator

from dashboard import job, query_params, work
from kvscope.characterize.distributions import round_windows
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report.section import Section

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Range = tuple[int, int]

_KEYS = ("from", "until")
_SINCE_START = "since the trace's start (h)"  # in the title of an axis


def draw(trace: Trace) -> Range | None:
    """Draw the choice of a range and the button that analyzes it.

    Return the range in seconds after the trace's start, None for all of the trace.
    """
    windows = round_windows(trace)
    times = [round(windows.start_s(number)) for number in range(windows.count + 1)]
    if windows.count < 2:
        return None
    if st.session_state.get("range of", trace) != trace:
        _reset()
    st.session_state["range of"] = trace
    columns = st.columns(3, vertical_alignment="bottom")
    for column, key, ends in zip(columns, _KEYS, (times[:-1], times[1:]), strict=False):
        default = ends[0] if key == "from" else ends[-1]
        with column, query_params.synced(key, default, int, allowed=ends):
            st.selectbox(
                f"{key.capitalize()}, after the trace's start",
                ends,
                key=key,
                format_func=units.duration_in_words,
                help="Zooms the charts over time.",
            )
    low, high = (st.session_state[key] for key in _KEYS)
    everything = (low, high) == (times[0], times[-1])
    _analyze(trace, low, high, columns[-1], disabled=everything or low >= high)
    if low >= high:
        st.warning("The range ends before it begins.")
        return None
    return None if everything else (low, high)


def _reset() -> None:
    """Take all of the trace again, from the next run on or before the choice is drawn."""
    for key in _KEYS:
        query_params.set_next(key, "")


def zoomed(sections: Iterable[Section], chosen: Range | None) -> list[Section]:
    """Return the sections with their charts over time zoomed to the range."""
    if chosen is None:
        return list(sections)
    return [
        replace(
            section, figures=tuple(partial(_zoomed, figure, chosen) for figure in section.figures)
        )
        for section in sections
    ]


def _zoomed(figure: Callable[[], Figure], chosen: Range) -> Figure:
    chart = figure()
    if any(_SINCE_START in (axis.title.text or "") for axis in chart.select_xaxes()):
        chart.update_xaxes(range=[time / 3600 for time in chosen])
    return chart


def _analyze(trace: Trace, low: int, high: int, column: DeltaGenerator, *, disabled: bool) -> None:
    """Draw the button; then select the trace that the range has become."""
    if column.button("Analyze this range", key="analyze_range", disabled=disabled):
        job.start("range", "Read a range", work.read_range, trace, low, high)
    done = job.completed("range")
    if done is not None:
        job.forget("range")
        if done.started_here:
            _reset()
            query_params.set_next("trace", done.result.name)
            st.rerun()
