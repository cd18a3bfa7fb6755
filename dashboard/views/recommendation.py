"""Recommendation: what to set for an SLO, what it gains and costs, and how certain that is."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, query_params, render, sidebar
from dashboard.markdown import escape
from dashboard.wording import in_page_words, uploaded
from kvscope.app import values
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report.stored import ReportContent
from kvscope.routers.registry import ROUTERS
from kvscope.tuning.file import RecommendationFile, read_recommendation
from kvscope.tuning.flags import Flags, plugin_command
from kvscope.usecases.tune import USE_CASE, TuneOptions, TuneRequest, tune_request
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
    content = answers.report(USE_CASE, "Tune", question, "Tune", clicked=clicked)
    if content is not None:
        _show(content)


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


def _show(content: ReportContent) -> None:
    options, verdict, *rest = content.sections
    render.show([options, verdict])
    flags = Flags(None, None)
    if content.file:
        flags = _of_file("recommendation.toml", content.file.encode())[1]
        _flags(flags)
    written = [text for text in (flags.sglang, flags.vllm) if text]
    for section in rest:
        for text in section.sentences if section.title == "To set" else ():
            if not any(text.endswith(each) for each in written):  # which stand above
                st.caption(escape(in_page_words(text)))
    if content.file:
        render.download(content.file)
    render.show(section for section in rest if section.title != "To set")


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
    file, flags = _of_file(upload.name, upload.getvalue())
    st.markdown(escape(_in_words(file)))
    _flags(flags)


def _of_file(name: str, content: bytes) -> tuple[RecommendationFile, Flags]:
    """Return what a recommendation.toml says, and its flags."""
    with uploaded(name, content) as path:
        file = read_recommendation(Path(path))
    return file, Flags(file.flags.get("sglang"), file.flags.get("vllm"))


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
