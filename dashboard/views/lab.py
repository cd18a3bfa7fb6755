"""Policy lab: replay policies at capacities, and see who gains, who pays and how the tail moves."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from dashboard import job, lab_results, query_params, replays, sidebar
from dashboard.markdown import plain
from kvscope.core import units
from kvscope.core.hits import standard
from kvscope.core.runs import CapacityModel, RunSetting, TierMode
from kvscope.core.trace import Trace
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.policy_options import ALL, Variant, parse_variants
from kvscope.replay.settings import policies_for, run_setting, with_capacity_model
from kvscope.tuning.search import has_xi

USUAL = ["lru", "tlru", "wa", "belady"]
MODELS: tuple[CapacityModel, ...] = ("cache", "engine")
MODES: tuple[TierMode, ...] = ("exclusive", "write-through")


def page() -> None:
    """What both questions share; then each with its progress and its answer."""
    trace = sidebar.trace("Policy lab")
    profile = sidebar.chosen().profile
    left, right = st.columns([1, 2])
    with left:
        slo = sidebar.asked(
            "slo", "SLO (TTFT)", "200ms", units.parse_duration, "Sets xi, TEL and violations."
        )
    with right:
        parameters = sidebar.asked(
            "params",
            "Parameters",
            "",
            str.split,
            "As on the command line, for example tlru.xi_tokens=1k,2k wa.refit_s=5m",
            hint="as they are, or tlru.xi_tokens=1k,2k",
        )
    st.caption(f"TTFT by {plain(profile.name)}, the latency profile at the side.")
    setting = run_setting(standard(), profile, slo_s=slo)
    compare, over_xi = query_params.tabs("question", ("Compare policies", "What xi does"))
    with compare:
        _compare(trace, setting, parameters or [])
    with over_xi:
        _over_xi(trace, setting, parameters or [])


def _compare(trace: Trace, setting: RunSetting, parameters: list[str]) -> None:
    """Policies at capacities or over tiers."""
    first, left, middle, right = st.columns([2, 3, 3, 2])
    with first:
        query_params.seed("counts", MODELS[0], among=MODELS)
        words = (
            "cache: what is kept between requests. engine: vLLM's block pool, of which running"
            " requests take theirs too."
        )
        model = st.selectbox("Capacity is that of a", MODELS, key="counts", help=words)
        query_params.remember("counts")
    with left:
        sizes = sidebar.asked(
            "sizes",
            "Capacities (blocks)",
            "",
            sidebar.blocks_listed,
            "For example 5000,20000 or 10GiB,20GiB; empty for a spread of five, up to where LRU"
            " loses nothing.",
            hint="a spread of five",
        )
    with middle:
        tiers = sidebar.asked(
            "tiers",
            "or tiers",
            "",
            str.strip,
            "In the place of capacities, the fastest first: hbm=40GiB,dram=128GiB:ttl=10m. A tier"
            " takes ttl, policy, read (a bandwidth) and latency.",
            hint="hbm=40GiB,dram=128GiB",
        )
    with right:
        query_params.seed("tier_mode", MODES[0], among=MODES)
        words = "What leaves a tier moves down, or every tier is written to at once."
        mode = st.selectbox("Tier mode", MODES, key="tier_mode", help=words)
        query_params.remember("tier_mode")
    if tiers or model == "engine":
        setting = with_capacity_model(
            setting,
            model,
            max_num_seqs=None,
            max_num_batched_tokens=None,
            tiers=tiers or None,
            tier_mode=mode if tiers else None,
            capacities_named=bool(sizes),
        )
    kv = sidebar.chosen().model
    if tiers and kv is not None:
        setting = replace(setting, block_bytes=kv.bytes_for(trace.block_size))
    variants = _variants(setting, parameters)
    asking = replays.Asking(trace, setting, variants, sizes or ())
    clicked = st.button("Run", type="primary", key="run", disabled=not variants)
    if variants and job.wanted("lab", clicked=clicked):
        job.start("lab", lambda one: (asking, replays.replay(one, asking)))
    done = job.finished("lab")
    if done is not None:
        asked, made = done.result
        query_params.link("lab", shown=asked == asking)
        lab_results.compared(asked, made, now=asking)
    elif job.current("lab") is None:
        st.caption("Runs that were made before come from the store; every other is kept there.")


def _variants(setting: RunSetting, parameters: list[str]) -> tuple[Variant, ...]:
    """The policies to replay, of those that this kind of cache can run."""
    names = [policy.name for policy in policies_for(setting, ALL)]
    usual = [name for name in USUAL if name in names]
    query_params.seed("policies", usual, query_params.names)
    before = st.session_state["policies"]
    known = [name for name in before if name in names]
    st.session_state["policies"] = known if known or not before else usual
    chosen = st.multiselect(
        "Policies",
        names,
        key="policies",
        format_func=lambda name: f"{name} (knows the future)" if by_name(name).hindsight else name,
    )
    query_params.remember("policies")
    policies = policies_for(setting, ",".join(chosen)) if chosen else []
    return tuple(parse_variants(policies, parameters))


def _over_xi(trace: Trace, setting: RunSetting, parameters: list[str]) -> None:
    """One policy with every xi, at one capacity."""
    names = [policy.name for policy in POLICIES if has_xi(policy)]
    left, right = st.columns(2)
    with left:
        query_params.seed("xi_policy", names[0], among=names)
        name = st.selectbox("Policy with a xi", names, key="xi_policy")
        query_params.remember("xi_policy")
    with right:
        at = sidebar.asked(
            "xi_at",
            "Capacity (blocks or a size)",
            "",
            sidebar.blocks,
            "Empty: where LRU gets half of the hits that there are.",
            hint="where LRU gets half of the hits",
        )
    if setting.slo_s is None:
        st.info("What xi does is told against an SLO: write one above, for example 200ms.")
        return
    own = [one for one in parameters if one.startswith(f"{name}.")]
    variant: Variant = parse_variants([by_name(name)], own)[0]
    asking = replays.Asking(trace, setting, (variant,), (at,) if at else ())
    if job.wanted("xi", clicked=st.button("Replay every xi", type="primary", key="run_xi")):
        job.start("xi", lambda one: (asking, replays.over_xi(one, asking)))
    done = job.finished("xi")
    if done is not None:
        asked, made = done.result
        query_params.link("xi", shown=asked == asking)
        lab_results.over_xi(asked, made, now=asking)
    elif job.current("xi") is None:
        st.caption("The values that `kvscope tune` begins with; then a slider moves xi.")


page()
