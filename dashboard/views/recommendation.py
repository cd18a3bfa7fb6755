"""Recommendation: what to set for an SLO, what it gains and costs, and how certain that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import streamlit as st

from dashboard import background_cache, data, job, query_params, render, sidebar
from dashboard.markdown import escape
from dashboard.wording import in_page_words, uploaded
from kvscope.app import values
from kvscope.app.options import TuneOptions
from kvscope.app.requests import TuneRequest, tune_request
from kvscope.app.tune import Recommendation, recommendation_text, tune
from kvscope.core import units
from kvscope.report import recommendation
from kvscope.tuning.file import RecommendationFile, read_recommendation
from kvscope.tuning.flags import Flags, plugin_command


def page() -> None:
    """Draw a new recommendation, or one from a file."""
    trace = sidebar.page_head("Recommendation")
    ask, read = query_params.tabs("from", ("Tune", "Read a recommendation.toml"))
    with ask:
        request = _request()
        clicked = st.button("Tune", type="primary", key="tune", disabled=request is None)
        question = None if request is None else (trace, request)
        done = job.answer("tune", "Tune", question, _tune, "Tune", clicked=clicked)
        if done is not None:
            _show(done.result)
    with read:
        _read()


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
    return (
        f"{file.verdict}, for the trace {file.trace}: {file.policy.name} at"
        f" {units.format_count(file.capacity_tokens)} tokens, for a"
        f" {units.format_percentile(target.percentile)} TTFT within"
        f" {units.duration_in_words(target.slo_s)} (latency profile {file.profile.name})."
    )


page()
