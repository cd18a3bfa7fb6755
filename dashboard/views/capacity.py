"""Capacity: what LRU gives at any size, and the replayed runs of other policies."""

from __future__ import annotations

import bisect
from functools import partial

import numpy as np
import streamlit as st

from dashboard import answers, background_cache, data, query_params, render, sidebar
from dashboard.wording import escape
from kvscope.core import units
from kvscope.core.runs import Outcome
from kvscope.core.trace import Trace
from kvscope.replay.findings import PoolHits
from kvscope.replay.metrics import LruAnywhere
from kvscope.report import caching
from kvscope.report.policies import lru_curve_chart, lru_times_chart
from kvscope.report.section import Section
from kvscope.report.words import Sizes, Unit, definition_in_words, significant
from kvscope.usecases.simulate import SimulateOptions

STEPS = 200
VISIBLE = 0.01  # of the ideal hit rate: where the curve begins
TIMES = 25  # capacities with a TTFT
BLOCKS = range(1, 2**31)


def page() -> None:
    """Draw the slider with its readings, then the report's sections on caching."""
    trace, selected = sidebar.page_head("Capacity"), sidebar.choices()
    lru = background_cache.lru(trace)
    if not lru.curve.ideal:
        st.info("No prompt begins as an earlier one did: a cache of any size hits nothing.")
        st.stop()
    deployed = sidebar.analysis(trace) if selected.deployment else None
    _slider(trace, lru, deployed.pool if deployed else None)
    cache_key = f"capacity {trace} {selected.model} {selected.hbm_bytes} {selected.memory}"
    _times(trace, lru, cache_key)
    analysis = sidebar.analysis(trace)
    render.show(caching.sections(analysis)[1:2], cache_key=cache_key)
    answers.export_analysis(trace, analysis)


@st.fragment
def _slider(trace: Trace, lru: LruAnywhere, pool: PoolHits | None) -> None:
    """Draw the slider, its readings and the curve; moving it runs nothing else."""
    steps, unit = _steps(lru), _unit(trace)
    runs = [  # whose hits lie beside the curve
        run
        for owner, run in data.stored_results().runs.values()
        if owner == trace and data.is_on_curve(trace, run.setting)
    ]
    present = sidebar.choices().present_blocks
    start = present or lru.curve.capacity_for(lru.curve.ideal / 2)
    with query_params.synced("capacity", max(start, 1), int, allowed=BLOCKS):
        if st.session_state["capacity"] not in steps:  # of another trace, or from the address
            bisect.insort(steps, st.session_state["capacity"])
        blocks = st.select_slider(
            f"Capacity ({unit.name})",
            steps,
            key="capacity",
            format_func=lambda blocks: significant(blocks * unit.per_block),
        )
    analysis = background_cache.findings(trace).get("analysis")  # which may take longer
    working_set = analysis.characterization.working_set if analysis is not None else None
    figure = lru_curve_chart(
        lru.curve,
        unit,
        at_blocks=blocks,
        working_set_blocks=working_set.peak_blocks if working_set else None,
        memory=_memory(),
        replayed=None if pool is None else pool.token_hit_rate,
        runs=runs,
    )
    render.chart(figure, "capacity")
    selected = sidebar.choices()
    sizes = Sizes(trace.block_size, selected.model, selected.hbm_bytes, selected.memory)
    outcome, name = lru.outcome(blocks, selected.profile), selected.profile.name
    tiles = caching.readings(sizes, blocks, outcome, name, pool if blocks == present else None)
    render.show([Section("Readings", tiles=tuple(tiles))], titles=False)
    words = f"Exact. Counted: {definition_in_words(lru.definition)}. Points: stored runs."
    st.caption(escape(words))


def _memory() -> tuple[str, int] | None:
    """Return the name and the blocks of the memory there is, None where that is not known."""
    selected = sidebar.choices()
    return (selected.memory, selected.present_blocks) if selected.present_blocks else None


@st.cache_resource(show_spinner=False, max_entries=8)
def _outcomes(key: str, _lru: LruAnywhere, sizes: list[int], slo_s: float) -> dict[int, Outcome]:
    """Return what LRU gives at capacities; `key` names all that this depends on."""
    profile = sidebar.choices().profile
    return {blocks: _lru.outcome(blocks, profile, slo_s) for blocks in sizes}


@st.fragment
def _times(trace: Trace, lru: LruAnywhere, cache_key: str) -> None:
    """Draw a percentile of TTFT and the share within an SLO over capacity."""
    profile, (left, right) = sidebar.choices().profile, st.columns(2)
    with left:
        slo_s = sidebar.option(SimulateOptions, "slo", "SLO (TTFT)", sidebar.aim("slo"))
    with right:
        rank = sidebar.choice("rank", "Percentile", sidebar.PERCENTILES, "p95")
    if slo_s is None:
        return
    seen = lru.curve.capacity_for(VISIBLE * lru.curve.ideal)
    sizes = [blocks for blocks in _steps(lru) if blocks >= seen]
    sizes = sizes[:: -(len(sizes) // TIMES or 1)][::-1]
    outcomes = _outcomes(f"{trace} {profile} {slo_s}", lru, sizes, slo_s)
    unit = Sizes(trace.block_size, sidebar.choices().model).axis
    chart = partial(lru_times_chart, unit, outcomes, slo_s, rank, _memory())
    about = f"On an idle engine, by the profile {profile.name}."
    section = Section.of("TTFT by capacity", about, chart)
    render.show([section], cache_key=f"{cache_key} {profile} {slo_s} {rank}")


def _steps(lru: LruAnywhere) -> list[int]:
    largest = max(int(lru.curve.knots[-1]), 2)
    return [int(at) for at in np.unique(np.geomspace(1, largest, STEPS).round().astype(np.int64))]


def _unit(trace: Trace) -> Unit:
    """Draw the choice of the axis' unit and return it."""
    selected = sidebar.choices()
    known = {"blocks": 1.0, "tokens": float(trace.block_size)}
    if selected.model is not None:
        per_block = selected.model.bytes_for(trace.block_size)
        known["GiB"] = per_block / units.GIB
        if selected.hbm_bytes:
            known[f"multiples of {selected.memory}"] = per_block / selected.hbm_bytes
    usual = "GiB" if "GiB" in known else "blocks"
    with query_params.synced("unit", usual, allowed=known):
        name = st.segmented_control("Axis", list(known), key="unit", required=True) or usual
    return Unit(name, known[name])


page()
