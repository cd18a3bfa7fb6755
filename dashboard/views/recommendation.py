"""Recommendation: what to set for an SLO, what it gains and costs, and how certain that is."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from msgspec.structs import replace

from dashboard import background_cache, data, job, query_params, render, sidebar
from dashboard.markdown import escape
from dashboard.wording import in_page_words, uploaded
from kvscope.app import values
from kvscope.app.options import ReplicaOptions, TierOptions, TuneOptions
from kvscope.app.requests import (
    TuneRequest,
    fleet_tuning_request,
    tier_tuning_request,
    tune_request,
)
from kvscope.app.tune import Recommendation, recommendation_text, tune
from kvscope.app.tune_fleet import FleetRecommendation, recommend_fleet
from kvscope.app.tune_tiers import TierRecommendation, recommend_tiers, tier_recommendation_text
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report import recommendation, tune_fleet, tune_tiers
from kvscope.routers.registry import ROUTERS
from kvscope.tuning.file import RecommendationFile, read_recommendation
from kvscope.tuning.flags import Flags, plugin_command
from kvscope.vllm_sim.offload_engines import parse_offload

OFFERED = [router.name for router in ROUTERS if not router.reference]
POLICY, FLEET, TIER = CHOICES = ("a policy", "a fleet", "memory below the GPU")


def page() -> None:
    """Draw a new recommendation, or one from a file."""
    trace = sidebar.page_head("Recommendation")
    ask, read = query_params.tabs("from", ("Tune", "Read a recommendation.toml"))
    with ask:
        with query_params.synced("choose", POLICY, allowed=CHOICES):
            choice = st.radio(
                "Choose",
                CHOICES,
                key="choose",
                horizontal=True,
                help="A policy and its parameters, as `kvscope tune` does. A fleet: the number of"
                " replicas, their router, policy and capacity (`--fleet`). Memory below the GPU:"
                " whether offloading pays, its size and the engine's options (`--tiers`).",
            )
        {POLICY: _ask, FLEET: _ask_for_fleet, TIER: _ask_for_tier}[choice](trace)
    with read:
        _read()


def _ask(trace: Trace) -> None:
    """Draw what to tune a cache or a deployment for, and the answer."""
    request = _request()
    clicked = st.button("Tune", type="primary", key="tune", disabled=request is None)
    question = None if request is None else (trace, request)
    done = job.answer("tune", "Tune", question, _tune, "Tune", clicked=clicked)
    if done is not None:
        _show(done.result)


def _ask_for_fleet(trace: Trace) -> None:
    """Draw what to choose a fleet for, and the answer."""
    options = _fleet_options()
    clicked = st.button("Tune", type="primary", key="tune", disabled=options is None)
    question = None if options is None else (trace, options)
    done = job.answer("fleet", "Tune a fleet", question, _tune_fleet, "Tune", clicked=clicked)
    if done is not None:
        render.show(tune_fleet.sections(done.result))


def _tune_fleet(running: job.Job) -> FleetRecommendation:
    trace, options = running.request
    prompts = background_cache.lru_for(running, trace).prompts
    tuned = recommend_fleet(trace, prompts, fleet_tuning_request(options), running)
    data.keep(running, tune_fleet.report(tuned), summary=tune_fleet.in_words(tuned)[0])
    return tuned


def _ask_for_tier(trace: Trace) -> None:
    """Draw what to choose memory below the GPU's pool for, and the answer."""
    options = _tier_options()
    clicked = st.button("Tune", type="primary", key="tune", disabled=options is None)
    question = None if options is None else (trace, *options)
    done = job.answer("tier", "Tune tiers", question, _tune_tiers, "Tune", clicked=clicked)
    if done is not None:
        _download(tier_recommendation_text(done.result))
        render.show(tune_tiers.sections(done.result))


def _tune_tiers(running: job.Job) -> TierRecommendation:
    trace, options, tiers = running.request
    prompts = background_cache.lru_for(running, trace).prompts
    tuned = recommend_tiers(trace, prompts, tier_tuning_request(options, tiers), running)
    data.keep(
        running,
        tune_tiers.report(tuned),
        summary=tune_tiers.in_words(tuned)[0],
        file=tier_recommendation_text(tuned),
    )
    return tuned


def _tier_options() -> tuple[TuneOptions, TierOptions] | None:
    """Draw the SLO, the sizes and the ways to offload; return them, None while one lacks.

    Raises UsageError for a deployment whose engine cannot be simulated with a tier.
    """
    selected = sidebar.choices()
    if selected.deployment is None:
        st.info("Select a GPU and a model in the sidebar: a tier is chosen for an engine's pool.")
        return None
    left, right = st.columns(2)
    with left:
        about = "TTFT, queues included, to meet."
        slo_s = sidebar.typed("tier_slo", "SLO (TTFT)", "2s", values.duration, about)
    with right:
        percentile = _percentile()
    prices, (left, right) = {}, st.columns(2)
    about = "Of a GiB for an hour; 0 for memory that is there. Empty: the list price, in US$."
    for kind, label, column in (("dram", "CPU memory", left), ("ssd", "an SSD", right)):
        with column:
            prices[f"{kind}_price"] = sidebar.typed(
                f"{kind}_price",
                f"Price of {label}",
                "",
                values.memory_price,
                about,
                placeholder="list price",
            )
    left, right = st.columns(2)
    with left:
        sizes = sidebar.typed(
            "tier_sizes",
            "Sizes",
            "",
            values.listed(values.tier_size),
            "To compare: 64GiB,128GiB; dram:64GiB+ssd:1TiB has an SSD below.",
            placeholder="up to 16 times the pool",
        )
    with right:
        ways = sidebar.typed(
            "offload",
            "Ways to offload",
            "",
            _ways,
            "To compare, as `kvscope simulate --offload` takes them: lmcache,vllm@0.33.",
            placeholder="the deployment's engine",
        )
    if not slo_s:
        st.info("Enter an SLO.")
        return None
    tiers = TierOptions(tier_sizes=sizes, offload=ways, **prices)
    options = TuneOptions(slo=slo_s, percentile=percentile, **selected.options)
    tier_tuning_request(options, tiers)  # what it refuses is said before a job starts
    return options, tiers


def _percentile() -> float:
    """Draw the choice of the percentile that has to meet the SLO, and return it (0-1)."""
    with query_params.synced("percentile", "p95", allowed=sidebar.PERCENTILES):
        return units.parse_percentile(
            st.selectbox("Percentile", sidebar.PERCENTILES, key="percentile")
        )


def _ways(text: str) -> tuple[str, ...]:
    """Return the ways to offload that a text names. Raises UsageError for an unknown one."""
    names = values.listed(values.called)(text)
    for name in names:
        parse_offload(name)
    return names


def _fleet_options() -> TuneOptions | None:
    """Draw the SLO, the capacities and the routers of a fleet; return them, None while one lacks.

    Raises UsageError for a deployment whose trace is one replica's.
    """
    selected = sidebar.choices()
    sidebar.check_traffic(selected)
    left, middle, right = st.columns(3)
    with left:
        about = "TTFT, queues included, to meet."
        slo_s = sidebar.typed("fleet_slo", "SLO (TTFT)", "2s", values.duration, about)
    with middle:
        percentile = _percentile()
    with right:
        usual = "the deployment's pool" if selected.deployment else "some of LRU's curve"
        blocks = sidebar.typed(
            "replica_sizes",
            "Capacities of a replica",
            "",
            sidebar.parse_capacities,
            f"To choose from: blocks, or sizes such as 20GiB,40GiB. Empty: {usual}.",
            placeholder=usual,
        )
    with query_params.synced("choose_from", OFFERED, query_params.parse_list, OFFERED):
        routers = st.multiselect("Routers", OFFERED, key="choose_from")
    if not (slo_s and routers):
        st.info("Enter an SLO and a router.")
        return None
    known = {*ReplicaOptions.__struct_fields__}
    return TuneOptions(
        slo=slo_s,
        percentile=percentile,
        capacity_blocks=blocks,
        # Unnamed, routers by session are left out where the trace has none.
        router=None if set(routers) == set(OFFERED) else ",".join(routers),
        **{name: value for name, value in selected.options.items() if name in known},
    )


def _tune(running: job.Job) -> Recommendation:
    trace, request = running.request
    prompts = background_cache.lru_for(running, trace).prompts
    tuned = tune(trace, prompts, request, running)
    data.keep(
        running,
        recommendation.report(tuned),
        summary=recommendation.verdict_in_words(tuned)[0],
        file=recommendation_text(tuned, prompts),
    )
    return tuned


def _request() -> TuneRequest | None:
    """Draw what to tune for; return the request, None without an SLO."""
    selected = sidebar.choices()
    left, middle, right = st.columns(3)
    with left:
        slo_s = sidebar.typed(
            "slo", "SLO (TTFT)", "200ms", units.parse_duration, "The TTFT to stay within."
        )
    with middle:
        percentile = _percentile()
    with right:
        blocks = tpot_s = None
        if selected.deployment is None:
            blocks = sidebar.capacity("have", "Capacity you have (blocks or a size)")
            blocks = blocks or selected.present_blocks
        else:
            about = "The time per output token to stay within. Empty: any."
            tpot_s = sidebar.typed("tpot_slo", "SLO (TPOT)", "", values.duration, about)
    if not slo_s:
        return None
    request = tune_request(
        TuneOptions(
            slo=slo_s,
            percentile=percentile,
            tpot_slo=tpot_s,
            capacity_blocks=None if blocks is None else (blocks,),
            hbm=None if selected.deployment else selected.hbm_bytes,
            **selected.options,
        )
    )
    return replace(request, model=selected.model)  # not the latency preset's, where it is none


def _show(tuned: Recommendation) -> None:
    options, verdict, *rest = recommendation.sections(tuned)
    render.show([options, verdict])
    if why := tuned.why_no_flags():
        st.caption(escape(in_page_words(why)))
    _flags(tuned.flags)
    if tuned.flags.sglang:
        st.caption(recommendation.NOT_SIMULATED)
    _download(recommendation_text(tuned, background_cache.lru(tuned.trace).prompts))
    render.show(section for section in rest if section.title != "To set")  # it stands above


def _download(file: str | None) -> None:
    """Draw the button that saves a recommendation's file, where there is one."""
    if file:
        st.download_button(
            "Download recommendation.toml",
            file,
            "recommendation.toml",
            "application/toml",
            key="download",
            on_click="ignore",
        )


def _flags(to_set: Flags) -> None:
    """Draw the flags of each engine, with a button that copies them."""
    title, vllm = "vLLM", to_set.vllm
    if vllm and to_set.vllm_needs_plugin:
        title = "vLLM, with kvscope's plugin and the file below"
        vllm = f"{plugin_command('recommendation.toml')} {vllm}"
    for engine, text in (("SGLang", to_set.sglang), (title, vllm)):
        if text:
            st.caption(f"Flags for {engine}")
            st.code(text, language="bash", wrap_lines=True)


def _read() -> None:
    upload = st.file_uploader("recommendation.toml, as `kvscope tune` writes it", key="toml")
    if upload is None:
        st.caption("Shows the verdict and the flags of a file written earlier.")
        return
    with uploaded(upload.name, upload.getvalue()) as path:
        file = read_recommendation(Path(path))
    st.markdown(escape(_in_words(file)))
    _flags(Flags(file.flags.get("sglang"), file.flags.get("vllm")))


def _in_words(file: RecommendationFile) -> str:
    target = file.target
    tier = f" and a tier below ({file.tier.in_words})" if file.tier else ""
    return (
        f"{file.verdict}, for the trace {file.trace}: {file.policy.name} at"
        f" {units.format_count(file.capacity_tokens)} tokens{tier}, for a"
        f" {units.format_percentile(target.percentile)} TTFT within"
        f" {units.duration_in_words(target.slo_s)} (latency profile {file.profile.name})."
    )


page()
