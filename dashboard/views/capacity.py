"""Capacity: what LRU gives at any size, read off at once; the other policies that were replayed."""

from __future__ import annotations

import bisect

import deep
import frame
import held
import numpy as np
import render
import streamlit as st

from kvscope import units
from kvscope.facts import Run, Trace
from kvscope.show.charts import capacity as charts
from kvscope.show.sections import caching
from kvscope.show.sections.sizes import multiple
from kvscope.show.words import definition_in_words
from kvscope.simulate.lru_at import LruAnywhere

STEPS = 200


def page() -> None:
    """The slider with all that it reads off, then the sections of the analysis."""
    trace = frame.trace("Capacity")
    lru = held.lru(trace)
    if not lru.curve.ideal:
        st.info("No prompt begins as an earlier one did: a cache of any size hits nothing.")
        st.stop()
    _read_off(trace, lru)
    found = held.analysis(trace, frame.chosen().model, frame.chosen().hbm_bytes)
    render.show(caching.sections(found)[1:])


@st.fragment
def _read_off(trace: Trace, lru: LruAnywhere) -> None:
    """The slider, its numbers and the curve; moving it runs nothing else."""
    steps = _steps(lru)
    half = steps[min(bisect.bisect(steps, lru.curve.capacity_for(lru.curve.ideal / 2)), STEPS - 1)]
    deep.seed("capacity", half, int)
    if st.session_state["capacity"] not in steps:  # of another trace, or typed into the address
        bisect.insort(steps, max(st.session_state["capacity"], 1))
    blocks = st.select_slider(
        "Capacity (blocks)", steps, key="capacity", format_func=units.format_count
    )
    deep.remember("capacity")
    _numbers(trace, lru, blocks)
    unit = _unit(trace)
    runs = _comparable(trace, lru)
    working_set = held.analysis(trace).characterization.working_set
    figure = charts.curve(
        lru.curve,
        unit,
        at_blocks=blocks,
        working_set_blocks=working_set.peak_blocks if working_set else None,
        runs=runs,
    )
    render.chart(figure, "LRU's hit rate at every capacity", "capacity")
    st.caption(
        "Exact, from one pass over the trace. Counted:"
        f" {render.plain(definition_in_words(lru.definition))}. Working set: blocks that will be"
        " used again. "
        + (
            "Points: runs that the store keeps."
            if runs
            else "Other policies appear here once the Policy lab has replayed them."
        )
    )


def _steps(lru: LruAnywhere) -> list[int]:
    largest = max(int(lru.curve.knots[-1]), 2)
    return [int(at) for at in np.unique(np.geomspace(1, largest, STEPS).round().astype(np.int64))]


def _numbers(trace: Trace, lru: LruAnywhere, blocks: int) -> None:
    chosen = frame.chosen()
    outcome = lru.outcome(blocks, chosen.profile)
    tokens = blocks * trace.block_size
    numbers = [
        ("Hit rate", units.format_share(outcome.token_hit_rate, 2), "LRU, token-weighted."),
        ("Blocks", units.format_count(blocks), f"Of {trace.block_size} tokens each."),
        ("Tokens", units.format_count(tokens), "What the cache keeps between requests."),
    ]
    if chosen.model is not None:
        size = chosen.model.bytes_for(tokens)
        words = f"{chosen.model.name}, {chosen.model.bytes_per_token:,.0f} bytes a token."
        numbers.append(("Size", units.format_size(size), words))
        if chosen.hbm_bytes:
            of = f"Multiple of {units.format_size(chosen.hbm_bytes)}."
            numbers.append(("× HBM", multiple(size / chosen.hbm_bytes), of))
    times = [
        (
            f"TTFT {name}",
            units.format_duration(getattr(outcome.ttft_ms, name) / 1e3),
            f"On an idle engine, by {chosen.profile.name}; nearest rank.",
        )
        for name in ("p50", "p90", "p95", "p99")
    ]
    for row in (numbers, times):
        for column, (label, value, words) in zip(st.columns(len(row)), row, strict=True):
            column.metric(label, value, help=words)


def _unit(trace: Trace) -> charts.Unit:
    """The unit of the axis."""
    chosen = frame.chosen()
    known = {"blocks": 1.0, "tokens": float(trace.block_size)}
    if chosen.model is not None:
        per_block = chosen.model.bytes_for(trace.block_size)
        known["GiB"] = per_block / 2**30
        if chosen.hbm_bytes:
            known["multiples of HBM"] = per_block / chosen.hbm_bytes
    deep.seed("unit", "blocks", among=known)
    if st.session_state["unit"] not in known:
        st.session_state["unit"] = "blocks"
    name = st.segmented_control("Axis", list(known), key="unit", required=True)
    deep.remember("unit")
    return charts.Unit(name, known[name])


def _comparable(trace: Trace, lru: LruAnywhere) -> list[Run]:
    """The stored runs that count hits as the curve does, in one cache, of the whole trace."""
    return [
        run
        for setting, runs in held.stored_runs(trace).items()
        if setting.definition == lru.definition
        and setting.exact
        and not setting.tiers
        and setting.isolate is None
        and setting.capacity_model == "cache"
        for run in runs
    ]


page()
