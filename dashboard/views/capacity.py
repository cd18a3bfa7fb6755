"""Capacity: what LRU gives at any size, and the replayed runs of other policies."""

from __future__ import annotations

import bisect

import numpy as np
import streamlit as st

from dashboard import background_cache, data, job, query_params, render, sidebar, work
from dashboard.markdown import escape
from kvscope.core import units
from kvscope.core.runs import Run
from kvscope.core.trace import Trace
from kvscope.replay.metrics import LruAnywhere
from kvscope.report import caching
from kvscope.report.policies import lru_curve_chart
from kvscope.report.words import Unit, definition_in_words, ms_in_words, multiple, significant
from kvscope.usecases.simulate import SimulateOptions

STEPS = 200
MOST_BLOCKS = 2**31 - 1
ORACLES = ("wa", "belady")


def page() -> None:
    """Draw the slider with its readings, then the report's sections on caching."""
    trace, selected = sidebar.page_head("Capacity"), sidebar.choices()
    lru = background_cache.lru(trace)
    if not lru.curve.ideal:
        st.info("No prompt begins as an earlier one did: a cache of any size hits nothing.")
        st.stop()
    _slider(trace, lru)
    _replay_oracles(trace, lru)
    analysis = data.analysis(
        trace, selected.model, selected.hbm_bytes, selected.deployment, selected.options
    )
    cache_key = f"capacity {trace} {selected.model} {selected.hbm_bytes} {selected.memory}"
    render.show(caching.sections(analysis)[1:], cache_key=cache_key)


@st.fragment
def _slider(trace: Trace, lru: LruAnywhere) -> None:
    """Draw the slider, its readings and the curve; moving it runs nothing else."""
    steps, unit, runs = _steps(lru), _unit(trace), _comparable(trace, lru)
    present = sidebar.choices().present_blocks
    start = present or lru.curve.capacity_for(lru.curve.ideal / 2)
    with query_params.synced("capacity", max(start, 1), _blocks):
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
    peak = working_set.peak_blocks if working_set else None
    figure = lru_curve_chart(
        lru.curve,
        unit,
        at_blocks=blocks,
        working_set_blocks=peak,
        pool_blocks=present if sidebar.choices().deployment else None,
        runs=runs,
    )
    render.chart(figure, "capacity")
    _readings(trace, lru, blocks)
    points = (
        "Points: stored runs; of each policy, the parameters with most of them."
        if runs
        else "Other policies appear once they are replayed, below or in the Policy lab."
    )
    definition = escape(definition_in_words(lru.definition))
    st.caption(
        f"Exact. Counted: {definition}. Working set: blocks that will be used again. {points}"
    )


def _replay_oracles(trace: Trace, lru: LruAnywhere) -> None:
    """Offer to replay the optimum and wa, unless there are runs of both."""
    request = sidebar.replays(SimulateOptions(policies=",".join(ORACLES)))
    running = job.current("others", (trace, request))
    known = {run.policy for run in _comparable(trace, lru)}
    if known.issuperset(ORACLES) and (running is None or running.ended):
        return
    description = "belady is the optimum for hits and knows the future. Runs are stored."
    if st.button("Replay wa and the optimum (belady)", key="others", help=description):
        job.start("others", "Replay wa and belady", work.simulated, trace, request)
    job.completed("others")


def _blocks(text: str) -> int:
    """Return a capacity of the address. Raises ValueError for what is no number of blocks."""
    blocks = int(text)
    if not 1 <= blocks <= MOST_BLOCKS:
        raise ValueError(text)
    return blocks


def _steps(lru: LruAnywhere) -> list[int]:
    largest = max(int(lru.curve.knots[-1]), 2)
    return [int(at) for at in np.unique(np.geomspace(1, largest, STEPS).round().astype(np.int64))]


def _readings(trace: Trace, lru: LruAnywhere, blocks: int) -> None:
    selected = sidebar.choices()
    outcome = lru.outcome(blocks, selected.profile)
    tokens = blocks * trace.block_size
    numbers = [
        ("Hit rate", units.format_share(outcome.token_hit_rate), "LRU, token-weighted."),
        ("Blocks", units.format_count(blocks), f"Of {trace.block_size} tokens each."),
        ("Tokens", units.format_count(tokens), "Idle cached blocks; running requests need more."),
    ]
    if selected.model is not None:
        size = selected.model.bytes_for(tokens)
        per_token = f"{selected.model.name}, {selected.model.bytes_per_token:,.0f} bytes per token."
        numbers.append(("Size", units.format_size(size), per_token))
        if selected.hbm_bytes:
            of = f"Multiple of {units.format_size(selected.hbm_bytes)}."
            numbers.append((f"× {selected.memory}", multiple(size / selected.hbm_bytes), of))
    by_profile = f"On an idle engine, by the profile {selected.profile.name}; nearest rank."
    times = [
        (f"TTFT {rank}", ms_in_words(getattr(outcome.ttft_ms, rank)), by_profile)
        for rank in sidebar.PERCENTILES
    ]
    render.metrics(numbers)
    render.metrics(times)


def _unit(trace: Trace) -> Unit:
    """Draw the choice of the axis' unit and return it."""
    selected = sidebar.choices()
    known = {"blocks": 1.0, "tokens": float(trace.block_size)}
    if selected.model is not None:
        per_block = selected.model.bytes_for(trace.block_size)
        known["GiB"] = per_block / units.GIB
        if selected.hbm_bytes:
            known[f"multiples of {selected.memory}"] = per_block / selected.hbm_bytes
    with query_params.synced("unit", "blocks", allowed=known):
        name = st.segmented_control("Axis", list(known), key="unit", required=True) or "blocks"
    return Unit(name, known[name])


def _comparable(trace: Trace, lru: LruAnywhere) -> list[Run]:
    """Return the runs that count hits as the curve does, in one cache, of the whole trace.

    Runs replayed on this page count too where another process kept the store from taking them.
    """
    stored = [
        run
        for setting, runs in data.stored_runs(trace).items()
        if setting.definition == lru.definition
        and setting.exact
        and not setting.tiers
        and setting.isolate is None
        and setting.capacity_model == "cache"
        for run in runs
    ]
    known = {(run.policy, run.capacity_blocks) for run in stored}
    replayed = job.current("others")
    if replayed is not None and replayed.result is not None and replayed.result.trace == trace:
        fresh = replayed.result.runs
        stored += [run for run in fresh if (run.policy, run.capacity_blocks) not in known]
    return stored


page()
