"""Policy lab: replay policies at capacities, over tiers or in an engine's pool, and vary xi."""

from __future__ import annotations

import streamlit as st
from msgspec.structs import replace

from dashboard import job, lab_results, query_params, sidebar, work
from dashboard.markdown import escape
from kvscope.app.requests import SimulateRequest
from kvscope.core.trace import Trace
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.policy_options import ALL
from kvscope.tuning.search import has_xi
from kvscope.usecases.simulate import SimulateOptions

USUAL = ["lru", "gittins", "tlru", "wa", "belady"]


def page() -> None:
    """Draw what both questions share, then each question with its progress and its answer."""
    trace = sidebar.page_head("Policy lab")
    left, right = st.columns([1, 2])
    with left:
        slo_s = sidebar.option(SimulateOptions, "slo", "SLO (TTFT)", "200ms")
    with right:
        parameters = sidebar.option(
            SimulateOptions,
            "param",
            "Parameters",
            key="params",
            parse=str.split,
            placeholder="defaults, or tlru.xi_tokens=1k,2k wa.refit_s=5m",
        )
    profile = escape(sidebar.choices().profile.name)
    st.caption(f"TTFT by the latency profile {profile} of the sidebar.")
    compare, xi = query_params.tabs("question", ("Compare policies", "Effect of xi"))
    with compare:
        _compare(trace, _request(slo_s, parameters or []))
    with xi:
        _over_xi(trace, slo_s, parameters or [])


def _request(slo_s: float | None, parameters: list[str]) -> SimulateRequest:
    """Draw what the capacity is; return the request for every policy that can run there."""
    first, left, middle, right = st.columns([2, 3, 3, 2])
    with first:
        model = sidebar.option(SimulateOptions, "capacity_model", "Capacity model", key="counts")
    with left:
        blocks = sidebar.option(
            SimulateOptions,
            "capacity",
            "Capacities (blocks)",
            key="sizes",
            parse=sidebar.parse_capacities,
            placeholder="five capacities, or 5000,20000",
        )
    with middle:
        tiers = sidebar.option(
            SimulateOptions, "tiers", "or tiers", placeholder="hbm=40GiB,dram=128GiB"
        )
    with right:
        mode = sidebar.option(SimulateOptions, "tier_mode", "Tier mode")
    return sidebar.replays(
        SimulateOptions(
            policies=ALL,
            param=parameters,
            capacity_blocks=blocks,
            capacity_model=model or "cache",
            tiers=tiers and tiers.strip(),
            tier_mode=mode if tiers else None,
            model=sidebar.choices().options["model"] if tiers else None,
            slo=slo_s,
        )
    )


def _compare(trace: Trace, request: SimulateRequest) -> None:
    names = list(dict.fromkeys(variant.policy.name for variant in request.variants))
    usual = [name for name in USUAL if name in names]
    with query_params.synced("policies", usual, query_params.parse_list, allowed=names):
        selected = st.multiselect(
            "Policies",
            names,
            key="policies",
            format_func=lambda name: f"{name} (oracle)" if by_name(name).hindsight else name,
        )
    variants = tuple(v for v in request.variants if v.policy.name in selected)
    request = replace(request, variants=variants)
    clicked = st.button("Run", type="primary", key="run", disabled=not variants)
    question = (trace, request) if variants else None
    done = job.answer("lab", "Replay policies", work.compare, question, "Run", clicked=clicked)
    if done is not None:
        lab_results.show_comparison(done.result)
    elif job.current("lab") is None:
        st.caption("Runs that are in the store are not repeated; new ones are stored.")


def _over_xi(trace: Trace, slo_s: float | None, parameters: list[str]) -> None:
    """Replay one policy with many values of xi, at one capacity."""
    names = [policy.name for policy in POLICIES if has_xi(policy)]
    left, right = st.columns(2)
    with left, query_params.synced("xi_policy", names[0], allowed=names):
        name = st.selectbox("Policy with a xi", names, key="xi_policy")
    with right:
        blocks = sidebar.capacity("xi_at", "Capacity (blocks or a size)")
        blocks = blocks or sidebar.choices().present_blocks
    if slo_s is None:
        st.info("The effect of xi is measured against an SLO. Enter one above, for example 200ms.")
        return
    request = sidebar.replays(
        SimulateOptions(
            policies=name,
            param=[text for text in parameters if text.startswith(f"{name}.")],
            capacity_blocks=(blocks,) if blocks else (),
            slo=slo_s,
        )
    )
    again = "Replay every xi"
    clicked = st.button(again, type="primary", key="run_xi")
    done = job.answer(
        "xi", f"{again} of {name}", work.vary_xi, (trace, request), again, clicked=clicked
    )
    if done is not None:
        lab_results.show_xi(done.result)
    elif job.current("xi") is None:
        st.caption("Replays the values of xi with which `kvscope tune` starts.")


page()
