"""Fleets: how many replicas meet an SLO, behind which router, and what each router loses."""

from __future__ import annotations

from typing import get_args

import streamlit as st
from msgspec.structs import replace

from dashboard import background_cache, data, job, query_params, render, sidebar
from kvscope.app import values
from kvscope.app.options import ReplicaOptions, TimeModel
from kvscope.core import units
from kvscope.fleet.options import ROUTED
from kvscope.policies.registry import POLICIES
from kvscope.replay.settings import timed_by
from kvscope.report import fleet as report
from kvscope.routers.registry import ROUTERS, router_by_name
from kvscope.usecases.fleet import USE_CASE, FleetOptions, FleetStudy, fleet, fleet_request

USUAL = ROUTED.split(",")
USUAL_MODEL = "automatic"
MODELS = (USUAL_MODEL, *get_args(TimeModel))
LOOPS = ("open", "closed")
ROUTER_NAMES = [router.name for router in ROUTERS]
POLICY_NAMES = [policy.name for policy in POLICIES if not policy.hindsight]


def page() -> None:
    """Draw what to replay, its progress and its answer."""
    sidebar.page_head("Fleets")
    selected = sidebar.choices()
    options = _options(selected)
    clicked = st.button("Replay", type="primary", key="replay_fleets", disabled=options is None)
    question = None if options is None else (options, selected)
    done = job.answer("fleets", "Replay fleets", question, _study, "Replay", clicked=clicked)
    if done is not None:
        render.show(report.sections(done.result))
    elif job.current("fleets") is None:
        st.caption("Replays the trace with every router, policy and number of replicas.")


def _study(running: job.Job) -> FleetStudy:
    """Return what the fleets give, timed as the sidebar says."""
    options, selected = running.request
    request = fleet_request(options)
    request = replace(
        request,
        setting=timed_by(request.setting, selected.profile),
        model=selected.model,
        deployment=selected.deployment,
    )
    prompts = background_cache.lru_for(running, selected.trace).prompts
    study = fleet(selected.trace, prompts, request, running)
    data.keep(running, USE_CASE.report(study))
    return study


def _options(selected: sidebar.Choices) -> FleetOptions | None:
    """Draw the SLO, the replicas and the routers; return them as options, None while one lacks.

    Raises UsageError for a deployment whose trace is one replica's.
    """
    where = selected.deployment
    sidebar.check_traffic(selected)
    slo_s, rank, tpot_s = _slo()
    replicas, blocks, time_model, loop = _replicas(pool=where is not None)
    routers, policies = _routers()
    if where is None and blocks is None:
        st.info("Enter the capacity of a replica, or select a GPU in the sidebar.")
        return None
    if not (slo_s and replicas and routers and policies):
        st.info("Enter an SLO, numbers of replicas, a router and a policy.")
        return None
    known = {*ReplicaOptions.__struct_fields__}
    return FleetOptions(
        slo=slo_s,
        percentile=units.parse_percentile(rank),
        tpot_slo=tpot_s,
        replicas=replicas,
        # Unnamed, routers by session are left out where the trace has none.
        router=None if set(routers) == set(USUAL) else ",".join(routers),
        policy=",".join(policies),
        capacity_blocks=blocks,
        time_model=time_model,
        closed_loop=loop == "closed",
        **{name: value for name, value in selected.options.items() if name in known},
    )


def _slo() -> tuple[float | None, str, float | None]:
    """Draw the SLO; return its TTFT and TPOT in seconds, with the percentile between them."""
    left, middle, right = st.columns(3)
    with left:
        # Not the Lab's key: its TTFTs are those of an idle engine.
        slo_s = sidebar.typed(
            "fleet_slo", "SLO (TTFT)", "2s", values.duration, "TTFT, queues included, to meet."
        )
    with middle, query_params.synced("percentile", "p95", allowed=sidebar.PERCENTILES):
        rank = st.selectbox("Percentile", sidebar.PERCENTILES, key="percentile")
    with right:
        about = "Time per output token to meet as well. Empty: any."
        tpot_s = sidebar.typed("tpot_slo", "SLO (TPOT)", "", values.duration, about)
    return slo_s, rank, tpot_s


def _replicas(*, pool: bool) -> tuple[tuple[int, ...] | None, int | None, TimeModel | None, str]:
    """Draw the replicas; return their numbers, blocks of each, their time model and the loop."""
    first, second, third, fourth = st.columns(4)
    with first:
        replicas = sidebar.typed(
            "fleet_replicas", "Numbers of replicas", "1..16", values.counts, "1..16, or 4,8,12."
        )
    with second:
        blocks = sidebar.typed(
            "replica_cache",
            "Capacity of a replica",
            "",
            sidebar.parse_capacity,
            "Blocks, or a size such as 40GiB.",
            placeholder="the deployment's pool" if pool else "5000, or 40GiB",
        )
    with third, query_params.synced("time_model", MODELS[0], allowed=MODELS):
        time_model = st.selectbox(
            "Time model",
            MODELS,
            key="time_model",
            help="queue: one prefill after the other, decodes apart. engine: a simulated vLLM,"
            " whose pool also holds running requests. automatic: engine with a deployment on vLLM,"
            " else queue.",
        )
    with fourth, query_params.synced("loop", LOOPS[0], allowed=LOOPS):
        loop = st.selectbox(
            "Loop",
            LOOPS,
            key="loop",
            help="open: requests arrive at the trace's times. closed: a turn arrives its think time"
            " after the simulated end of the previous one.",
        )
    return replicas, blocks, None if time_model == USUAL_MODEL else time_model, loop


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
