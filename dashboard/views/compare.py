"""Compare: two traces or two stored runs side by side, with the change from left to right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import streamlit as st

from dashboard import answers, data, query_params, render, sidebar
from kvscope.report import comparison
from kvscope.usecases import diff

T = TypeVar("T", str, int)


def page() -> None:
    """Draw the comparison of traces, or that of runs."""
    sidebar.draw_title("Compare")
    of_traces, of_runs = query_params.tabs("compare", ("Traces", "Runs"))
    if of_traces.open:
        with of_traces:
            _traces()
    else:
        with of_runs:
            _runs()


def _traces() -> None:
    selected = sidebar.choices()
    known = {trace.name: trace for trace in data.all_traces()}
    if len(known) < 2:
        st.info("The store holds fewer than two traces. Add one on the page Overview.")
        return
    first = selected.trace.name if selected.trace else next(iter(known))
    names = _pair("trace", list(known), first, str, str)
    left, right = (sidebar.analysis(known[name]) for name in names)
    cache_key = f"compare {known[names[0]]} {known[names[1]]} {selected.model}"
    compared = diff.compare_traces(names, (left, right))
    _export(names, compared)
    render.show(comparison.sections(compared), cache_key=cache_key)


def _runs() -> None:
    runs = data.stored_results().runs
    if len(runs) < 2:
        st.info("The store holds fewer than two runs. Replay policies on the page Policy lab.")
        return
    ids = _pair(
        "run", list(runs), next(iter(runs)), int, lambda each: data.run_in_words(*runs[each])
    )
    left, right = (data.run_with_parts(*runs[each], each)[1] for each in ids)
    names = f"{left.policy}, run {ids[0]}", f"{right.policy}, run {ids[1]}"
    compared = diff.compare_runs(names, (left, right))
    _export((f"run:{ids[0]}", f"run:{ids[1]}"), compared)
    render.show(comparison.sections(compared))


def _export(sides: tuple[str, str], compared: diff.Comparison) -> None:
    hbm, stated = sidebar.choices().hbm_bytes, sidebar.of_deployment(diff.DiffOptions)
    options = diff.DiffOptions(left=sides[0], right=sides[1], hbm=hbm, **stated)
    answers.export(diff.USE_CASE, sides, options, compared)


def _pair(
    kind: str, known: Sequence[T], first: T, parse: Callable[[str], T], name: Callable[[T], str]
) -> tuple[T, T]:
    """Draw the choice of two of `known`, by default `first` and the next one."""
    second = next(each for each in known if each != first)
    chosen = []
    for column, side, default in zip(
        st.columns(2), ("left", "right"), (first, second), strict=True
    ):
        key = f"{side}_{kind}"
        with column, query_params.synced(key, default, parse, allowed=known):
            chosen.append(st.selectbox(side.capitalize(), known, key=key, format_func=name))
    return chosen[0], chosen[1]


page()
