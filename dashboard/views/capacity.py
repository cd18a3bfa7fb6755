"""Capacity: what LRU gives at any size, read off at once; the other policies that were replayed."""

from __future__ import annotations

import bisect

import numpy as np
import streamlit as st

from dashboard import background_cache, data, job, query_params, render, replays, sidebar
from dashboard.markdown import plain
from kvscope.core import units
from kvscope.core.runs import Run
from kvscope.core.trace import Trace
from kvscope.policies.belady import Belady
from kvscope.policies.wa import Wa
from kvscope.replay.metrics import LruAnywhere
from kvscope.replay.policy_options import Variant
from kvscope.replay.settings import run_setting
from kvscope.report import caching
from kvscope.report.policies import lru_curve_chart
from kvscope.report.words import Unit, definition_in_words, multiple

STEPS = 200


def page() -> None:
    """The slider with all that it reads off, then the sections of the analysis."""
    trace = sidebar.trace("Capacity")
    lru = background_cache.lru(trace)
    if not lru.curve.ideal:
        st.info("No prompt begins as an earlier one did: a cache of any size hits nothing.")
        st.stop()
    _read_off(trace, lru)
    _replay_others(trace, lru)
    model, hbm_bytes = sidebar.chosen().model, sidebar.chosen().hbm_bytes
    found = data.analysis(trace, model, hbm_bytes)
    render.show(caching.sections(found)[1:], keep=f"capacity {trace} {model} {hbm_bytes}")


@st.fragment
def _read_off(trace: Trace, lru: LruAnywhere) -> None:
    """The slider, its numbers and the curve; moving it runs nothing else."""
    steps = _steps(lru)
    half = steps[min(bisect.bisect(steps, lru.curve.capacity_for(lru.curve.ideal / 2)), STEPS - 1)]
    query_params.seed("capacity", half, int)
    if st.session_state["capacity"] not in steps:  # of another trace, or typed into the address
        bisect.insort(steps, max(st.session_state["capacity"], 1))
    blocks = st.select_slider(
        "Capacity (blocks)", steps, key="capacity", format_func=units.format_count
    )
    query_params.remember("capacity")
    _numbers(trace, lru, blocks)
    unit = _unit(trace)
    runs = _comparable(trace, lru)
    known = background_cache.of(trace).finding("analysis")  # which may take longer
    working_set = known.characterization.working_set if known is not None else None
    figure = lru_curve_chart(
        lru.curve,
        unit,
        at_blocks=blocks,
        working_set_blocks=working_set.peak_blocks if working_set else None,
        runs=runs,
    )
    render.chart(figure, "capacity")
    st.caption(
        "Exact, from one pass over the trace. Counted:"
        f" {plain(definition_in_words(lru.definition))}. Working set: blocks that will be"
        " used again. "
        + (
            "Points: runs that the store keeps, of each policy the setting with most of them."
            if runs
            else "Other policies appear here once they have been replayed, below or in the Policy"
            " lab."
        )
    )


def _replay_others(trace: Trace, lru: LruAnywhere) -> None:
    """The optimum, and the policy that knows the traffic, where nobody replayed them yet."""
    asked = job.current("others")
    known = {run.policy for run in _comparable(trace, lru)}
    if {"wa", "belady"} <= known and (asked is None or asked.ended):
        return
    setting = run_setting(lru.definition, sidebar.chosen().profile)
    asking = replays.Asking(trace, setting, (Variant(Wa), Variant(Belady)), ())
    words = "belady knows the future: no policy hits more. Runs are kept in the store."
    if st.button("Replay wa and the optimum (belady)", key="others", help=words):
        job.start("others", lambda one: replays.replay(one, asking))
    job.finished("others")


def _steps(lru: LruAnywhere) -> list[int]:
    largest = max(int(lru.curve.knots[-1]), 2)
    return [int(at) for at in np.unique(np.geomspace(1, largest, STEPS).round().astype(np.int64))]


def _numbers(trace: Trace, lru: LruAnywhere, blocks: int) -> None:
    chosen = sidebar.chosen()
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


def _unit(trace: Trace) -> Unit:
    """The unit of the axis."""
    chosen = sidebar.chosen()
    known = {"blocks": 1.0, "tokens": float(trace.block_size)}
    if chosen.model is not None:
        per_block = chosen.model.bytes_for(trace.block_size)
        known["GiB"] = per_block / 2**30
        if chosen.hbm_bytes:
            known["multiples of HBM"] = per_block / chosen.hbm_bytes
    query_params.seed("unit", "blocks", among=known)
    if st.session_state["unit"] not in known:
        st.session_state["unit"] = "blocks"
    name = st.segmented_control("Axis", list(known), key="unit", required=True)
    query_params.remember("unit")
    return Unit(name or "blocks", known[name or "blocks"])


def _comparable(trace: Trace, lru: LruAnywhere) -> list[Run]:
    """The stored runs that count hits as the curve does, in one cache, of the whole trace."""
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
    return stored + [run for run in _fresh(trace) if (run.policy, run.capacity_blocks) not in known]


def _fresh(trace: Trace) -> tuple[Run, ...]:
    """What was replayed on this page; another process may have kept the store from taking it."""
    made = job.current("others")
    if made is None or made.result is None or made.result.found.trace != trace:
        return ()
    runs: tuple[Run, ...] = made.result.found.runs
    return runs


page()
