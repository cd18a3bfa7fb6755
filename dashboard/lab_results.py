"""What the policy lab replays and shows: policies side by side, and the effect of xi."""

from __future__ import annotations

from functools import partial
from typing import Literal

import streamlit as st
from msgspec.structs import replace

from dashboard import query_params, render, sidebar
from dashboard.work import Comparison
from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.core.runs import Run
from kvscope.report import policies, ttft
from kvscope.report.runs import names
from kvscope.report.section import Section
from kvscope.report.words import difference, ms_in_words


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
    if _has_runs(simulation) and ttft.by_xi(simulation.runs):
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


_READING_PX = 136  # all of them fit side by side, two on a phone


@st.fragment
def _at_one_xi(simulation: Simulation) -> None:
    runs = ttft.by_xi(simulation.runs)
    values = [int(value) for value in runs]
    best = int(min(runs, key=lambda value: runs[value].outcome.ttft_ms.p95))
    left, right = st.columns([3, 2])
    with left, query_params.synced("xi", best, int, allowed=values):
        at = st.select_slider("xi (tokens)", values, key="xi", format_func=units.format_count)
    with right, query_params.synced("rank", "p95", allowed=sidebar.PERCENTILES):
        ranks = sidebar.PERCENTILES
        rank = st.segmented_control("Percentile", ranks, key="rank", required=True) or "p95"
    baseline = next(run for run in simulation.runs if run.policy == BASELINE)
    with st.container(horizontal=True):  # wraps where it is narrow
        _readings(baseline, runs[at])
    render.show([ttft.xi_section(simulation, rank, at)], within="xi")


def _reading(label: str, value: str, change: str, *, worse_above: bool, about: str) -> None:
    """Draw a number with its change; one without a sign is none and has no colour."""
    changed = change[0] in "+-"
    direction: Literal["inverse", "normal"] = "inverse" if worse_above else "normal"
    st.metric(
        label,
        value,
        change if changed else "unchanged",
        delta_color=direction if changed else "off",
        delta_arrow="auto" if changed else "off",
        help=about,
        width=_READING_PX,
    )


def _readings(baseline: Run, run: Run) -> None:
    now, then = baseline.outcome, run.outcome
    for rank in sidebar.PERCENTILES:
        ttft_ms, lru_ms = (getattr(outcome.ttft_ms, rank) for outcome in (then, now))
        _reading(
            f"TTFT {rank}",
            ms_in_words(ttft_ms),
            difference(ttft_ms - lru_ms, ms_in_words),
            worse_above=True,
            about="On an idle engine, nearest rank; below, the change against lru.",
        )
    _reading(
        "Hit rate",
        units.format_share(then.token_hit_rate),
        difference(
            then.token_hit_rate - now.token_hit_rate, lambda size: units.format_pp(size)[1:]
        ),
        worse_above=False,
        about="Token-weighted; below, the change against lru.",
    )
    violations, before = then.violations or 0, now.violations or 0
    _reading(
        "Over SLO",
        units.format_count(violations),
        difference(violations - before, lambda count: units.format_count(round(count))),
        worse_above=True,
        about="Requests whose TTFT exceeds the SLO; below, the change against lru.",
    )
