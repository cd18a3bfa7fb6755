"""Policy lab: replay policies at capacities, over tiers or in an engine's pool, and vary xi."""

from __future__ import annotations

from typing import Any

import streamlit as st
from msgspec.structs import replace

from dashboard import data, export, job, lab_results, query_params, sidebar, work
from dashboard.markdown import escape
from kvscope.app.simulate import Simulation
from kvscope.core.trace import Trace
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.policy_options import ALL
from kvscope.tuning.search import has_xi
from kvscope.usecases.simulate import USE_CASE, SimulateOptions

USUAL = ["lru", "gittins", "tlru", "wa", "belady"]
SLO = ("slo", "SLO (TTFT)", "200ms")
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
        asked = sidebar.options_row(SimulateOptions, SLO, PARAMETERS, columns=2)
        asked |= _capacities()
        offered = sidebar.replays(_options(asked, usable=True), pool=True).variants
        names = list(dict.fromkeys(each.policy.name for each in offered))
        usual = [name for name in USUAL if name in names]
        with query_params.synced("policies", usual, query_params.parse_list, allowed=names):
            policies = st.multiselect(
                "Policies",
                names,
                key="policies",
                format_func=lambda name: f"{name} (oracle)" if by_name(name).hindsight else name,
            )
    options = _options(asked)
    request = sidebar.replays(options, pool=True)
    variants = tuple(each for each in request.variants if each.policy.name in policies)
    question = (trace, replace(request, variants=variants)) if variants else None
    known = data.newest_simulation(trace) if job.current("lab", question) is None else None
    done = job.answer("lab", "Replay policies", work.compare, question, "Run", clicked=form.clicked)
    shown = done.result if done is not None else None
    if shown is None and known is not None and job.current("lab") is None:
        st.info("The newest stored runs of this trace. Run replays yours; what is stored is kept.")
        shown = work.Comparison(known)
    _export(trace, replace(options, policies=",".join(policies)), shown and shown.simulation)
    if shown is not None:
        lab_results.show_comparison(shown)


def _capacities() -> dict[str, Any]:
    """Draw what the capacity is, and return it as options of `simulate`."""
    sizes = {"key": "sizes", "parse": sidebar.parse_capacities, "placeholder": "5000,20000"}
    own = {"usual": "the deployment's"} if sidebar.choices().deployment else {}
    return sidebar.options_row(
        SimulateOptions,
        ("capacity_model", "Capacity model", {"key": "counts", **own}),
        ("capacity_blocks", "Capacities (blocks or sizes)", sizes),
        ("tiers", "or tiers", {"placeholder": "hbm=40GiB,dram=128GiB"}),
        ("tier_mode", "Tier mode"),
    )


def _options(asked: dict[str, Any], *, usable: bool = False) -> SimulateOptions:
    """Return the inputs as options; `usable` ones only as far as they tell who can run."""
    if usable:
        blocks = (1,) if asked["tiers"] else asked["capacity_blocks"]
        asked = {"capacity_model": asked["capacity_model"] or "cache", "capacity_blocks": blocks}
        return SimulateOptions(policies=ALL, **asked)
    tiers, model = asked["tiers"], sidebar.choices().options["model"]
    asked = asked | {"capacity_model": asked["capacity_model"] or "cache"}
    mode = asked["tier_mode"] if tiers else None
    return SimulateOptions(
        policies=ALL, **asked | {"tier_mode": mode, "model": model if tiers else None}
    )


def _export(trace: Trace, options: SimulateOptions, shown: Simulation | None) -> None:
    export.draw(USE_CASE, trace, options, None if shown is None else USE_CASE.report(shown))


def _over_xi(trace: Trace) -> None:
    """Replay one policy with many values of xi, at one capacity."""
    names = [policy.name for policy in POLICIES if has_xi(policy)]
    again = "Replay every xi"
    with sidebar.form(again, "run_xi") as form:
        asked = sidebar.options_row(SimulateOptions, SLO, PARAMETERS, columns=2)
        left, right = st.columns(2)
        with left:
            name = sidebar.choice("xi_policy", "Policy with a xi", names, names[0])
        with right:
            blocks = sidebar.capacity("xi_at", "Capacity (blocks or a size)")
            blocks = blocks or sidebar.choices().present_blocks
    if asked["slo"] is None:
        st.info("The effect of xi is measured against an SLO. Enter one above, for example 200ms.")
        return
    parameters = [text for text in asked["param"] or () if text.startswith(f"{name}.")]
    options = SimulateOptions(
        policies=name,
        param=parameters,
        capacity_blocks=(blocks,) if blocks else (),
        slo=asked["slo"],
    )
    question, title = (trace, sidebar.replays(options)), f"{again} of {name}"
    done = job.answer("xi", title, work.vary_xi, question, again, clicked=form.clicked)
    _export(trace, options, done.result if done is not None else None)
    if done is not None:
        lab_results.show_xi(done.result)
    elif job.current("xi") is None:
        st.caption("Replays the values of xi with which `kvscope tune` starts.")


page()
