"""Policy lab: replay policies at capacities, in an engine's pool or above tiers, and vary xi."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, data, job, query_params, render, sidebar, work
from dashboard.wording import escape, local_time
from dashboard.work import Comparison
from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.policy_options import ALL
from kvscope.report import policies, ttft, xi
from kvscope.report.runs import names
from kvscope.report.section import Section
from kvscope.tuning.search import has_xi
from kvscope.usecases.simulate import USE_CASE, SimulateOptions

USUAL = ["lru", "gittins", "tlru", "wa", "belady"]
PARAMETERS = (
    "param",
    "Parameters",
    {"key": "params", "parse": str.split, "placeholder": "tlru.xi_tokens=1k,2k wa.refit_s=5m"},
)


def page() -> None:
    """Draw both questions; the open one with its inputs, its progress and its answer."""
    trace = sidebar.page_head("Policy lab")
    profile = escape(sidebar.choices().profile.name)
    st.caption(f"TTFT by the latency profile {profile} of the sidebar.")
    compare, xi = query_params.tabs("question", ("Compare policies", "Effect of xi"))
    if xi.open:
        with xi:
            _over_xi(trace)
    else:
        with compare:
            _compare(trace)


def _compare(trace: Trace) -> None:
    with sidebar.form("Run", "run") as form:
        slo = ("slo", "SLO (TTFT)", sidebar.aim("slo"))
        asked = sidebar.options_row(SimulateOptions, slo, PARAMETERS, columns=2)
        asked |= _capacities()
        offered = sidebar.replays(_options(asked, usable=True)).variants
        names = list(dict.fromkeys(each.policy.name for each in offered))
        usual = [name for name in USUAL if name in names]
        with query_params.synced("policies", usual, query_params.parse_list, allowed=names):
            chosen = st.multiselect(
                "Policies",
                names,
                key="policies",
                format_func=lambda name: f"{name} (oracle)" if by_name(name).hindsight else name,
            )
    options = _options(asked)
    request = sidebar.replays(options)
    variants = tuple(each for each in request.variants if each.policy.name in chosen)
    question = (trace, replace(request, variants=variants)) if variants else None
    idle = job.current("lab", question) is None
    known = data.newest_simulation(trace, request.setting) if idle else None
    done = job.answer("lab", "Replay policies", work.compare, question, "Run", clicked=form.clicked)
    shown = done.result if done is not None else None
    if shown is None and known is not None and job.current("lab") is None:
        when = max(run.created_at for run in known.runs if run.created_at)
        words = f"The newest stored runs of this trace, of {local_time(when)}."
        words += f" {policies.setting_in_words(known.setting)[1]}"
        st.info(escape(f"{words} Run replays yours; what is stored is kept."))
        shown = work.Comparison(known)
    options = replace(options, policy=",".join(chosen))
    answers.export(USE_CASE, [trace.name], options, shown and shown.simulation)
    if shown is not None:
        show_comparison(shown)


def _capacities() -> dict[str, Any]:
    """Draw what the capacity is, and return it as options of `simulate`."""
    sizes = {"key": "sizes", "parse": sidebar.parse_capacities, "placeholder": "5000,20000"}
    own = {"usual": "the deployment's"} if sidebar.choices().deployment else {}
    return sidebar.options_row(
        SimulateOptions,
        ("capacity_model", "Capacity model", {"key": "counts", **own}),
        ("capacity_blocks", "Capacities (blocks or sizes)", sizes),
        ("tiers", "or tiers", {"placeholder": "hbm=40GiB,dram=128GiB"}),
    )


def _options(asked: dict[str, Any], *, usable: bool = False) -> SimulateOptions:
    """Return the inputs as options; `usable` ones only as far as they tell who can run."""
    if usable:
        blocks = (1,) if asked["tiers"] else asked["capacity_blocks"]
        kind = "engine" if asked["tiers"] else asked["capacity_model"] or "cache"
        asked = {"capacity_model": kind, "capacity_blocks": blocks}
        return sidebar.in_pool(SimulateOptions(policy=ALL, **asked))
    tiers, model = asked["tiers"], sidebar.choices().options["model"]
    asked = asked | {"capacity_model": asked["capacity_model"] or "cache"}
    return sidebar.in_pool(SimulateOptions(policy=ALL, **asked, model=model if tiers else None))


def _over_xi(trace: Trace) -> None:
    """Replay one policy with many values of xi, at one capacity."""
    names = [policy.name for policy in POLICIES if has_xi(policy)]
    again = "Replay every xi"
    with sidebar.form(again, "run_xi") as form:
        slo = ("slo", "SLO (TTFT)", sidebar.aim("slo"))
        asked = sidebar.options_row(SimulateOptions, slo, PARAMETERS, columns=2)
        left, right = st.columns(2)
        with left:
            name = sidebar.choice("xi_policy", "Policy with a xi", names, names[0])
        with right:
            blocks = sidebar.capacity("xi_at", "Capacity (blocks or a size)")
    if asked["slo"] is None:
        st.info("The effect of xi is measured against an SLO. Enter one above, for example 200ms.")
        return
    parameters = [text for text in asked["param"] or () if text.startswith(f"{name}.")]
    options = SimulateOptions(policy=name, param=parameters, slo=asked["slo"])
    if blocks or sidebar.in_pool(options).deployment:  # in no engine's pool
        blocks = blocks or sidebar.choices().present_blocks
        options = replace(options, capacity_blocks=(blocks,) if blocks else ())
    options = sidebar.in_pool(options)
    question, title = (trace, sidebar.replays(options)), f"{again} of {name}"
    done = job.answer("xi", title, work.vary_xi, question, again, clicked=form.clicked)
    answers.export(USE_CASE, [trace.name], options, done and done.result)
    if done is not None:
        show_xi(done.result)
    elif job.current("xi") is None:
        st.caption("Replays the values of xi with which `kvscope tune` starts.")


def show_comparison(comparison: Comparison) -> None:
    """Draw the summary, TTFT at one capacity, and every run."""
    simulation = comparison.simulation
    if _has_runs(simulation):
        summary, *rest = policies.sections(replace(simulation, model=sidebar.choices().model))
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
    blocks = _selected_capacity(simulation)
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


def _selected_capacity(simulation: Simulation) -> int:
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


page()
