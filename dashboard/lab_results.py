"""What the policy lab answers: policies side by side, and what xi does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from dashboard import query_params, render, replays, sidebar
from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.core.runs import Run
from kvscope.report import policies, ttft, xi
from kvscope.report.runs import names
from kvscope.report.section import Section

PERCENTILES = ("p50", "p90", "p95", "p99")


def compared(asked: replays.Asking, made: replays.Replays, now: replays.Asking) -> None:
    """The summary, a closer look at one capacity, every run."""
    if not _worth_showing(asked, made, now):
        return
    found = replace(made.found, model=sidebar.chosen().model)
    summary, *rest = policies.sections(found)
    render.show([summary])
    _closer(made)
    render.show(rest)


def over_xi(asked: replays.Asking, made: replays.Replays, now: replays.Asking) -> None:
    """The slider, what it reads off, the curve."""
    if _worth_showing(asked, made, now) and xi.by_xi(made.found.runs):
        _at_xi(made.found)


def _worth_showing(asked: replays.Asking, made: replays.Replays, now: replays.Asking) -> bool:
    if asked != now:
        st.info("This is what was asked before; the button answers what stands above.")
    if not made.complete:
        st.warning("Stopped: what was finished is shown, and kept.")
    return bool(made.found.runs)


@st.fragment
def _closer(made: replays.Replays) -> None:
    """One capacity: how TTFT spreads, what the median pays for the tail, and who pays."""
    found = made.found
    at = _capacity(found)
    with st.spinner("Spreading TTFT", show_time=True):
        spreads = replays.spread(made, at)
    slo_s = found.setting.slo_s
    words = (
        "How long requests wait on an idle engine; points mark p50, p90, p95 and p99.",
        "Median against tail: what lies to the lower left is better in both.",
    )
    figures = (
        partial(ttft.cdf_chart, spreads, at, slo_s),
        partial(policies.trade_off_chart, found, at),
    )
    render.show([Section("Time to first token", words, figures=figures)])
    _who_pays(found, at)


def _capacity(found: Simulation) -> int:
    """The capacity to look at."""
    known = found.capacities
    if len(known) == 1:
        return known[0]
    query_params.seed("at", replays.middle(found), int, among=known)
    if st.session_state["at"] not in known:
        st.session_state["at"] = replays.middle(found)
    at = st.select_slider(
        "Look at the capacity (blocks)", known, key="at", format_func=units.format_count
    )
    query_params.remember("at")
    return int(at)


def _who_pays(found: Simulation, at: int) -> None:
    runs = found.at(at)
    name = names(found.runs)
    baseline = next((run for run in runs if run.policy == BASELINE), None)
    others = {name(run): run for run in runs if run is not baseline}
    if baseline is None or not others:
        st.caption("Who gains and who pays is told of lru and another policy: choose both.")
        return
    query_params.seed("other", next(iter(others)), among=others)
    if st.session_state["other"] not in others:
        st.session_state["other"] = next(iter(others))
    picked = st.selectbox("Compare lru with", list(others), key="other")
    query_params.remember("other")
    before, after = (ttft.by_category(run) for run in (baseline, others[picked]))
    title = f"lru, and {picked} then, at {units.format_count(at)} blocks"
    render.show([ttft.category_section(title, before, after)])


@st.fragment
def _at_xi(found: Simulation) -> None:
    runs = xi.by_xi(found.runs)
    values = [int(one) for one in runs]
    left, right = st.columns([3, 2])
    with left:
        first = min(runs, key=lambda one: runs[one].outcome.ttft_ms.p95)
        query_params.seed("xi", int(first), int, among=values)
        if st.session_state["xi"] not in values:
            st.session_state["xi"] = int(first)
        at = st.select_slider("xi (tokens)", values, key="xi", format_func=units.format_count)
    with right:
        query_params.seed("rank", "p95", among=PERCENTILES)
        rank = st.segmented_control("Target", PERCENTILES, key="rank", required=True) or "p95"
    query_params.remember("xi", "rank")
    lru = next(run for run in found.runs if run.policy == BASELINE)
    _beside(lru, runs[at])
    render.show([xi.section(found, rank, at)], within="xi")


def _beside(lru: Run, then: Run) -> None:
    """What a xi gives, and how far from LRU that is."""
    now_ms, then_ms = lru.outcome.ttft_ms, then.outcome.ttft_ms
    columns = st.columns(len(PERCENTILES) + 2)
    for column, rank in zip(columns, PERCENTILES, strict=False):
        column.metric(
            f"TTFT {rank}",
            units.format_duration(getattr(then_ms, rank) / 1e3),
            xi.change_in_words(rank, now_ms, then_ms),
            delta_color="inverse",
            help="On an idle engine, nearest rank; below it the change against lru.",
        )
    hits = then.outcome.token_hit_rate
    columns[-2].metric(
        "Hit rate",
        units.format_share(hits, 2),
        units.format_pp(hits - lru.outcome.token_hit_rate),
        help="Token-weighted; below it the change against lru.",
    )
    over, before = then.outcome.violations or 0, lru.outcome.violations or 0
    columns[-1].metric(
        "Over SLO",
        units.format_count(over),
        over - before,
        delta_color="inverse",
        help="Requests whose TTFT exceeds the SLO; below it the change against lru.",
    )
