"""Fleets: how many replicas meet an SLO, behind which router, and what each router loses."""

from __future__ import annotations

from typing import Any

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, job, query_params, render, sidebar
from kvscope.app.options import ReplicaOptions
from kvscope.app.requests import FleetRequest
from kvscope.fleet.options import ROUTED
from kvscope.policies.registry import POLICIES
from kvscope.replay.settings import timed_by
from kvscope.routers.registry import ROUTERS, router_by_name
from kvscope.usecases.fleet import USE_CASE, FleetOptions, fleet_request

USUAL = ROUTED.split(",")
USUAL_MODEL = "automatic"
LOOPS = ("open", "closed")
ROUTER_NAMES = [router.name for router in ROUTERS]
POLICY_NAMES = [policy.name for policy in POLICIES if not policy.hindsight]


def page() -> None:
    """Draw what to replay, its progress and its answer."""
    trace = sidebar.page_head("Fleets")
    selected = sidebar.choices()
    options = _options(selected)
    clicked = st.button("Replay", type="primary", key="replay_fleets", disabled=options is None)
    question = None if options is None else (trace, _request(options, selected))
    content = answers.report(USE_CASE, "Replay fleets", question, "Replay", clicked=clicked)
    if content is not None:
        render.show(content.sections)
    elif job.current(USE_CASE.name) is None:
        st.caption("Replays the trace with every router, policy and number of replicas.")


def _request(options: FleetOptions, selected: sidebar.Choices) -> FleetRequest:
    """Return what to replay, timed as the sidebar says."""
    request = fleet_request(options)
    return replace(
        request,
        setting=timed_by(request.setting, selected.profile),
        model=selected.model,
        deployment=selected.deployment,
    )


def _options(selected: sidebar.Choices) -> FleetOptions | None:
    """Draw the SLO, the replicas and the routers; return them as options, None while one lacks.

    Raises UsageError for a deployment whose trace is one replica's.
    """
    where = selected.deployment
    sidebar.check_traffic(selected)
    asked = _slo() | _replicas(pool=where is not None)
    routers, policies = _routers()
    if where is None and asked["capacity_blocks"] is None:
        st.info("Enter the capacity of a replica, or select a GPU in the sidebar.")
        return None
    if not (asked["slo"] and asked["replicas"] and routers and policies):
        st.info("Enter an SLO, numbers of replicas, a router and a policy.")
        return None
    known = {*ReplicaOptions.__struct_fields__}
    return FleetOptions(
        # Unnamed, routers by session are left out where the trace has none.
        router=None if set(routers) == set(USUAL) else ",".join(routers),
        policy=",".join(policies),
        **asked,
        **{name: value for name, value in selected.options.items() if name in known},
    )


def _slo() -> dict[str, Any]:
    """Draw the SLO: its TTFT and TPOT, with the percentile between them."""
    left, middle, right = st.columns(3)
    with left:  # not the Lab's key: its TTFTs are those of an idle engine
        slo_s = sidebar.option(FleetOptions, "slo", "SLO (TTFT)", "2s", key="fleet_slo")
    with middle:
        percentile = sidebar.percentile()
    with right:
        tpot_s = sidebar.option(FleetOptions, "tpot_slo", "SLO (TPOT)")
    return {"slo": slo_s, "percentile": percentile, "tpot_slo": tpot_s}


def _replicas(*, pool: bool) -> dict[str, Any]:
    """Draw the replicas: their numbers, blocks of each, their time model and the loop."""
    first, second, third, fourth = st.columns(4)
    with first:
        replicas = sidebar.option(
            FleetOptions, "replicas", "Numbers of replicas", "1..16", key="fleet_replicas"
        )
    with second:
        blocks = sidebar.option(
            FleetOptions,
            "capacity",
            "Capacity of a replica",
            key="replica_cache",
            parse=sidebar.parse_capacity,
            placeholder="the deployment's pool" if pool else "5000, or 40GiB",
        )
    with third:
        time_model = sidebar.option(FleetOptions, "time_model", "Time model", usual=USUAL_MODEL)
    with fourth:
        about = "closed: a turn arrives its think time after the simulated end of the previous one."
        closed = sidebar.choice("loop", "Loop", LOOPS, LOOPS[0], about) == "closed"
    return {
        "replicas": replicas,
        "capacity_blocks": blocks,
        "time_model": time_model,
        "closed_loop": closed,
    }


def _routers() -> tuple[list[str], list[str]]:
    """Draw the routers and the policies; return the names of the selected ones."""
    left, right = st.columns([2, 1])
    with left, query_params.synced("routers", USUAL, query_params.parse_list, ROUTER_NAMES):
        routers = st.multiselect("Routers", ROUTER_NAMES, key="routers", format_func=_router)
    with right, query_params.synced("evict", ["lru"], query_params.parse_list, POLICY_NAMES):
        policies = st.multiselect("Eviction policies", POLICY_NAMES, key="evict")
    return routers, policies


def _router(name: str) -> str:
    return f"{name} (reference)" if router_by_name(name).reference else name


page()
