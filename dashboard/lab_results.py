"""What the policy lab replays and shows: policies side by side, and the effect of xi."""

from __future__ import annotations

from functools import partial

import streamlit as st
from msgspec.structs import replace

from dashboard import query_params, render, sidebar
from dashboard.work import Comparison
from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.report import policies, ttft, xi
from kvscope.report.runs import names
from kvscope.report.section import Section


def show_comparison(comparison: Comparison) -> None:
    """Draw the summary, TTFT at one capacity, and every run."""
    simulation = comparison.simulation
    if _has_runs(simulation):
        model = sidebar.choices().model
        summary, *rest = policies.sections(replace(simulation, model=model))
        render.show([summary])
        _at_one_capacity(comparison)
        render.show(rest)


def show_xi(simulation: Simulation) -> None:
    """Draw the slider of xi, its readings and the curve."""
    if _has_runs(simulation) and xi.by_xi(simulation.runs):
        _at_one_xi(simulation)


def _has_runs(simulation: Simulation) -> bool:
    if simulation.unfinished:
        st.warning("Stopped: finished runs are shown and stored.")
    return bool(simulation.runs)


@st.fragment
def _at_one_capacity(comparison: Comparison) -> None:
    """Draw how TTFT is distributed, median against tail, and its change by category."""
    simulation = comparison.simulation
    blocks = _capacity(simulation)
    distributions = comparison.distributions.get(blocks)  # none for what was stopped or is stored
    section = Section.of(
        "Time to first token",
        "TTFT on an idle engine; points mark p50, p90, p95 and p99.",
        "Median against tail: lower left is better in both.",
        partial(ttft.cdf_chart, distributions, blocks, simulation.setting.slo_s)
        if distributions
        else None,
        partial(policies.trade_off_chart, simulation, blocks),
    )
    render.show([section])
    _by_category(simulation, blocks)


def _capacity(simulation: Simulation) -> int:
    """Draw the slider of capacities and return the selected one, in blocks."""
    known = simulation.capacities
    if len(known) == 1:
        return known[0]
    with query_params.synced("at", known[len(known) // 2], int, allowed=known):
        blocks = st.select_slider(
            "Capacity to look at (blocks)", known, key="at", format_func=units.format_count
        )
    return int(blocks)


def _by_category(simulation: Simulation, blocks: int) -> None:
    runs = simulation.at(blocks)
    name = names(simulation.runs)
    baseline = next((run for run in runs if run.policy == BASELINE), None)
    others = {name(run): run for run in runs if run is not baseline}
    if baseline is None or not others:
        st.caption("TTFT by category compares lru with another policy: select both.")
        return
    with query_params.synced("other", next(iter(others)), allowed=others):
        selected = st.selectbox("Compare lru with", list(others), key="other")
    before, after = (ttft.by_category(run) for run in (baseline, others[selected]))
    title = f"lru and {selected} at {units.format_count(blocks)} blocks"
    render.show([ttft.category_section(title, before, after)])


@st.fragment
def _at_one_xi(simulation: Simulation) -> None:
    values = [int(value) for value in xi.by_xi(simulation.runs)]
    left, right = st.columns([3, 2])
    with left, query_params.synced("xi", int(xi.best(simulation)), int, allowed=values):
        at = st.select_slider("xi (tokens)", values, key="xi", format_func=units.format_count)
    with right, query_params.synced("rank", "p95", allowed=sidebar.PERCENTILES):
        ranks = sidebar.PERCENTILES
        rank = st.segmented_control("Percentile", ranks, key="rank", required=True) or "p95"
    render.show([xi.section(simulation, rank, at)], within="xi")
