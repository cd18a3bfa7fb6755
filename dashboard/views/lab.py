"""Policy lab: replay policies at capacities, and see who gains, who pays and how the tail moves."""

from __future__ import annotations

from dataclasses import replace

import deep
import frame
import held
import job
import lab_answers
import render
import replays
import streamlit as st

from kvscope import units
from kvscope.facts import RunSetting, Trace
from kvscope.policies.registry import POLICIES, by_name
from kvscope.simulate.definitions import standard
from kvscope.simulate.modelled import modelled, policies_for
from kvscope.simulate.parameters import parse_variants
from kvscope.simulate.variants import Variant
from kvscope.simulate.workload import setting_of
from kvscope.tune.xi import has_xi

USUAL = ["lru", "tlru", "wa", "belady"]
MODES = ("exclusive", "write-through")


def page() -> None:
    """What both questions share; then each with its progress and its answer."""
    trace = frame.trace("Policy lab")
    profile = frame.chosen().profile
    left, right = st.columns([1, 2])
    with left:
        slo = frame.asked(
            "slo", "SLO (TTFT)", "200ms", units.parse_duration, "Sets xi, TEL and violations."
        )
    with right:
        parameters = frame.asked(
            "params",
            "Parameters",
            "",
            str.split,
            "As on the command line, for example tlru.xi_tokens=1k,2k wa.refit_s=5m",
        )
    st.caption(f"TTFT by {render.plain(profile.name)}, the latency profile at the side.")
    setting = setting_of(standard(), profile, slo_s=slo)
    compare, over_xi = st.tabs(["Compare policies", "What xi does"])
    with compare:
        _compare(trace, setting, parameters or [])
    with over_xi:
        _over_xi(trace, setting, parameters or [])


def _compare(trace: Trace, setting: RunSetting, parameters: list[str]) -> None:
    """Policies at capacities or over tiers."""
    names = [policy.name for policy in POLICIES]
    deep.seed("policies", USUAL, deep.names, among=names)
    chosen = st.multiselect(
        "Policies",
        names,
        key="policies",
        format_func=lambda name: f"{name} (knows the future)" if by_name(name).hindsight else name,
    )
    deep.remember("policies")
    left, middle, right = st.columns([2, 2, 1])
    with left:
        sizes = frame.asked(
            "sizes",
            "Capacities (blocks)",
            "",
            frame.blocks_listed,
            "For example 5000,20000 or 10GiB,20GiB; empty for a spread of five, up to where LRU"
            " loses nothing.",
        )
    with middle:
        tiers = frame.asked(
            "tiers",
            "or tiers",
            "",
            str.strip,
            "In the place of capacities, the fastest first: hbm=40GiB,dram=128GiB:ttl=10m. A tier"
            " takes ttl, policy, read (a bandwidth) and latency.",
        )
    with right:
        deep.seed("tier_mode", MODES[0], among=MODES)
        words = "What leaves a tier moves down, or every tier is written to at once."
        mode = st.selectbox("Tier mode", MODES, key="tier_mode", help=words)
        deep.remember("tier_mode")
    asking = _asking(trace, setting, chosen, parameters, sizes or (), tiers, mode)
    prompts = held.lru(trace).prompts
    if st.button("Run", type="primary", key="run", disabled=not asking.variants):
        job.start("lab", lambda one: (asking, replays.replay(one, asking, prompts)))
    done = job.finished("lab")
    if done is not None:
        lab_answers.compared(*done.result, now=asking)
    elif job.current("lab") is None:
        st.caption("Runs that were made before come from the store; every other is kept there.")


def _asking(
    trace: Trace,
    setting: RunSetting,
    chosen: list[str],
    parameters: list[str],
    sizes: tuple[int, ...],
    tiers: str | None,
    mode: str,
) -> replays.Asking:
    if tiers:
        setting = modelled(
            setting,
            "cache",
            max_num_seqs=None,
            max_num_batched_tokens=None,
            tiers=tiers,
            tier_mode=mode,
            capacities_named=bool(sizes),
        )
        if (model := frame.chosen().model) is not None:
            setting = replace(setting, block_bytes=model.bytes_for(trace.block_size))
    policies = policies_for(setting, ",".join(chosen)) if chosen else []
    return replays.Asking(trace, setting, tuple(parse_variants(policies, parameters)), sizes)


def _over_xi(trace: Trace, setting: RunSetting, parameters: list[str]) -> None:
    """One policy with every xi, at one capacity."""
    names = [policy.name for policy in POLICIES if has_xi(policy)]
    left, right = st.columns(2)
    with left:
        deep.seed("xi_policy", names[0], among=names)
        name = st.selectbox("Policy with a xi", names, key="xi_policy")
        deep.remember("xi_policy")
    with right:
        at = frame.asked(
            "xi_at",
            "Capacity (blocks or a size)",
            "",
            frame.blocks,
            "Empty: where LRU gets half of the hits that there are.",
        )
    if setting.slo_s is None:
        st.info("What xi does is told against an SLO: write one above, for example 200ms.")
        return
    lru = held.lru(trace)
    at = at or max(lru.curve.capacity_for(lru.curve.ideal / 2), 1)
    own = [one for one in parameters if one.startswith(f"{name}.")]
    variant: Variant = parse_variants([by_name(name)], own)[0]
    asking = replays.Asking(trace, setting, (variant,), (at,))
    if st.button("Replay every xi", type="primary", key="run_xi"):
        job.start("xi", lambda one: (asking, replays.over_xi(one, asking, lru.prompts)))
    done = job.finished("xi")
    if done is not None:
        lab_answers.over_xi(*done.result, now=asking)
    elif job.current("xi") is None:
        st.caption("The values that `kvscope tune` begins with; then a slider moves xi.")


page()
