"""Recommendation: what to set for an SLO, what it gains and costs, and how certain that is."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import streamlit as st
from msgspec.structs import replace

from dashboard import background_cache, data, job, query_params, render, sidebar
from dashboard.markdown import escape
from dashboard.wording import in_page_words, uploaded
from kvscope.app import values
from kvscope.app.requests import TuneRequest
from kvscope.app.tune import Recommendation, recommendation_text, tune
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report import recommendation
from kvscope.report.added_memory import memory_to_set
from kvscope.routers.registry import ROUTERS
from kvscope.tuning.file import RecommendationFile, read_recommendation
from kvscope.tuning.flags import Flags, plugin_command
from kvscope.usecases.tune import USE_CASE, TuneOptions, tune_request
from kvscope.vllm_sim.offload_spec import OffloadSpec

OFFERED = [router.name for router in ROUTERS if not router.reference]
MEMORY, BEHIND = CHOICES = ("memory below the GPU", "routers")


def page() -> None:
    """Draw a new recommendation, or one from a file."""
    trace = sidebar.page_head("Recommendation")
    ask, read = query_params.tabs("from", ("Tune", "Read a recommendation.toml"))
    with ask:
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


def _compared() -> dict[str, Any]:
    """Draw what to compare beside policies, and return it as options of `tune`."""
    with query_params.synced("compare", [], query_params.parse_list, list(CHOICES)):
        compared = st.pills(
            "Compare also",
            CHOICES,
            selection_mode="multi",
            key="compare",
            help="Memory below the GPU: whether offloading pays, its size and the engine's options"
            " (`--tiers`). Routers: the fewest replicas behind each (`--fleet`).",
        )
    options: dict[str, Any] = {}
    if MEMORY in compared:
        options |= {"tiers": True, **_memory()}
    if BEHIND in compared:
        with query_params.synced("choose_from", OFFERED, query_params.parse_list, OFFERED):
            routers = st.multiselect("Routers", OFFERED, key="choose_from")
        # Unnamed, routers by session are left out where the trace has none.
        named = routers and set(routers) != set(OFFERED)
        options |= {"fleet": True, "router": ",".join(routers) if named else None}
    return options


def _memory() -> dict[str, Any]:
    """Draw prices, sizes and ways to offload, and return them as options of `tune`."""
    drawn = (
        ("dram_price", "Price of CPU memory", "list price"),
        ("ssd_price", "Price of an SSD", "list price"),
        ("tier_sizes", "Sizes", "up to 16 times the pool"),
        ("offload", "Ways to offload", "the deployment's engine"),
    )
    options: dict[str, Any] = {}
    for column, (name, label, placeholder) in zip(cycle(st.columns(2)), drawn, strict=False):
        with column:
            parse = _ways if name == "offload" else None
            options[name] = sidebar.option(
                TuneOptions, name, label, parse=parse, placeholder=placeholder
            )
    return options


def _ways(text: str) -> tuple[str, ...]:
    """Return the ways to offload that a text names. Raises UsageError for an unknown one."""
    names = values.listed(values.called)(text)
    for name in names:
        OffloadSpec.parse(name)
    return names


def _tune(running: job.Job) -> Recommendation:
    trace, request = running.request
    prompts = background_cache.lru_for(running, trace).prompts
    tuned = tune(trace, prompts, request, running)
    data.keep(
        running,
        USE_CASE.report(tuned),
        summary=recommendation.verdict_in_words(tuned)[0],
        file=recommendation_text(tuned),
    )
    return tuned


def _request() -> TuneRequest | None:
    """Draw what to tune for; return the request, None without an SLO."""
    selected = sidebar.choices()
    left, middle, right = st.columns(3)
    with left:
        slo_s = sidebar.option(TuneOptions, "slo", "SLO (TTFT)", "200ms")
    with middle:
        percentile = sidebar.percentile()
    with right:
        blocks = tpot_s = None
        if selected.deployment is None:
            blocks = sidebar.capacity("have", "Capacity you have (blocks or a size)")
            blocks = blocks or selected.present_blocks
        else:
            tpot_s = sidebar.option(TuneOptions, "tpot_slo", "SLO (TPOT)")
    compared = _compared() if selected.deployment else {}
    if not slo_s:
        return None
    request = tune_request(
        TuneOptions(
            slo=slo_s,
            percentile=percentile,
            tpot_slo=tpot_s,
            capacity_blocks=None if blocks is None else (blocks,),
            hbm=None if selected.deployment else selected.hbm_bytes,
            **compared,
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
    if tuned.flags.sglang and tuned.tier is None:
        st.caption(recommendation.NOT_SIMULATED)
    for note in memory_to_set(tuned):
        st.caption(escape(note))
    if file := recommendation_text(tuned):
        render.download(file)
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
