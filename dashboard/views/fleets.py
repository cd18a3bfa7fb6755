"""Fleets: how many replicas meet an SLO, behind which router, and what each router loses."""

from __future__ import annotations

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, job, query_params, sidebar
from kvscope.app.options import ReplicaOptions
from kvscope.app.requests import FleetRequest
from kvscope.fleet.options import ROUTED
from kvscope.policies.registry import POLICIES
from kvscope.replay.settings import timed_by
from kvscope.routers.registry import ROUTERS, router_by_name
from kvscope.usecases.fleet import USE_CASE, FleetOptions, fleet_request

USUAL = ROUTED.split(",")
LOOPS = ("open", "closed")
ROUTER_NAMES = [router.name for router in ROUTERS]
POLICY_NAMES = [policy.name for policy in POLICIES if not policy.hindsight]


def page() -> None:
    """Draw what to replay, its progress and its answer."""
    trace = sidebar.page_head("Fleets")
    selected = sidebar.choices()
    sidebar.check_traffic(selected)
    with sidebar.form("Replay", "replay_fleets") as form:
        options = _options(pool=selected.deployment is not None)
    question = None
    if selected.deployment is None and options.capacity_blocks is None:
        st.info("Enter the capacity of a replica, or select a GPU in the sidebar.")
    elif not (options.slo and options.replicas and options.policy and options.router != ""):
        st.info("Enter an SLO, numbers of replicas, a router and a policy.")
    else:
        question = (trace, _request(options, selected))
    answers.show(USE_CASE, "Replay fleets", question, "Replay", options, clicked=form.clicked)
    if question is not None and job.current(USE_CASE.name) is None:
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


def _options(*, pool: bool) -> FleetOptions:
    """Draw the SLO, the replicas, the routers and the policies; return them as options."""
    asked = sidebar.options_row(
        FleetOptions,  # not the Lab's SLO: its TTFTs are those of an idle engine
        ("slo", "SLO (TTFT)", sidebar.aim("slo", "2s"), {"key": "fleet_slo"}),
        ("percentile", "Percentile", sidebar.aim("percentile")),
        ("tpot_slo", "SLO (TPOT)"),
        ("replicas", "Numbers of replicas", "1..16", {"key": "fleet_replicas"}),
    )
    size = "the deployment's pool" if pool else "5000, or 40GiB"
    parse = {"key": "replica_cache", "parse": sidebar.parse_capacity, "placeholder": size}
    more = sidebar.options_row(
        FleetOptions,
        ("capacity", "Capacity of a replica", "", parse),
        ("time_model", "Time model", {"usual": "automatic"}),
        ("autoscale", "Also autoscale", {"placeholder": "2..8@0.5"}),
        ("disaggregate", "Also split prefill and decode", {"placeholder": "50GB/s"}),
    )
    about = "closed: a turn arrives its think time after the simulated end of the previous one."
    left, middle, right = st.columns([1, 3, 2])
    with left:
        closed = sidebar.choice("loop", "Loop", LOOPS, LOOPS[0], about) == "closed"
    with middle, query_params.synced("routers", USUAL, query_params.parse_list, ROUTER_NAMES):
        routers = st.multiselect(
            "Routers",
            ROUTER_NAMES,
            key="routers",
            format_func=lambda name: f"{name}{' (reference)' * router_by_name(name).reference}",
        )
    with right, query_params.synced("evict", ["lru"], query_params.parse_list, POLICY_NAMES):
        policies = st.multiselect("Eviction policies", POLICY_NAMES, key="evict")
    return FleetOptions(
        # Unnamed, routers by session are left out where the trace has none.
        router=None if set(routers) == set(USUAL) else ",".join(routers),
        policy=",".join(policies),
        capacity_blocks=more.pop("capacity"),
        **more,
        closed_loop=closed,
        **asked,
        **sidebar.of_deployment(ReplicaOptions),
    )


page()
