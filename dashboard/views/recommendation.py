"""Recommendation: what to set for an SLO, what it gains and costs, and how certain that is."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import streamlit as st

from dashboard import background_cache, data, job, query_params, render, sidebar
from dashboard.markdown import escape
from dashboard.wording import in_page_words, uploaded
from kvscope.app import values
from kvscope.app.options import ReplicaOptions, TuneOptions
from kvscope.app.requests import TuneRequest, fleet_tuning_request, tune_request
from kvscope.app.tune import Recommendation, recommendation_text, tune
from kvscope.app.tune_fleet import FleetRecommendation, recommend_fleet
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report import recommendation, tune_fleet
from kvscope.routers.registry import ROUTERS
from kvscope.tuning.file import RecommendationFile, read_recommendation
from kvscope.tuning.flags import Flags, plugin_command

OFFERED = [router.name for router in ROUTERS if not router.reference]


def page() -> None:
    """Draw a new recommendation, or one from a file."""
    trace = sidebar.page_head("Recommendation")
    ask, read = query_params.tabs("from", ("Tune", "Read a recommendation.toml"))
    with ask:
        with query_params.synced("for_fleet", default=False, parse=lambda text: text == "True"):
            for_fleet = st.checkbox(
                "Choose a fleet",
                key="for_fleet",
                help="The number of replicas, their router, eviction policy and capacity, as"
                " `kvscope tune --fleet` does.",
            )
        if for_fleet:
            _ask_for_fleet(trace)
        else:
            _ask(trace)
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
    with middle, query_params.synced("percentile", "p95", allowed=sidebar.PERCENTILES):
        rank = st.selectbox("Percentile", sidebar.PERCENTILES, key="percentile")
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
    known = {each.name for each in fields(ReplicaOptions)}
    return TuneOptions(
        slo=slo_s,
        percentile=units.parse_percentile(rank),
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
    with middle, query_params.synced("percentile", "p95", allowed=sidebar.PERCENTILES):
        rank = st.selectbox("Percentile", sidebar.PERCENTILES, key="percentile")
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
            percentile=units.parse_percentile(rank),
            tpot_slo=tpot_s,
            capacity_blocks=None if blocks is None else (blocks,),
            hbm=None if selected.deployment else selected.hbm_bytes,
            **selected.options,
        )
    )
    return replace(request, model=selected.model)  # not the latency preset's, where it is none


def _show(tuned: Recommendation) -> None:
    verdict, *rest = recommendation.sections(tuned)
    render.show([verdict])
    if why := tuned.why_no_flags():
        st.caption(escape(in_page_words(why)))
    _flags(tuned.flags)
    if tuned.flags.sglang:
        st.caption(recommendation.NOT_SIMULATED)
    if file := recommendation_text(tuned, background_cache.lru(tuned.trace).prompts):
        st.download_button(
            "Download recommendation.toml",
            file,
            "recommendation.toml",
            "application/toml",
            key="download",
            on_click="ignore",
        )
    render.show(section for section in rest if section.title != "To set")  # it stands above


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
