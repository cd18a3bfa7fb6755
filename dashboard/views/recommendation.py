"""Recommendation: what to set for an SLO, what it gains and costs, and how certain that is."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, query_params, render, sidebar
from dashboard.wording import escape, in_page_words, uploaded
from kvscope.app import values
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.report.stored import ReportContent
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
    deployed = sidebar.choices().deployment is not None
    compared = _compared() if deployed else []
    with sidebar.form("Tune", "tune") as form:
        options = _options(compared, deployed=deployed)
    question = None
    if options.slo:  # the model is not the latency preset's, where it is none
        question = (trace, replace(tune_request(options), model=sidebar.choices().model))
    answers.show(USE_CASE, "Tune", question, "Tune", options, clicked=form.clicked, draw=_show)


def _compared() -> list[str]:
    """Draw the choice of what to compare beside policies, and return it."""
    with query_params.synced("compare", [], query_params.parse_list, list(CHOICES)):
        return st.pills(
            "Compare also",
            CHOICES,
            selection_mode="multi",
            key="compare",
            help="Memory below the GPU: whether offloading pays, its size and the engine's options"
            " (`--compare-tiers`). Routers: the fewest replicas behind each (`--fleet`).",
        )


def _options(compared: list[str], *, deployed: bool) -> TuneOptions:
    """Draw what to tune for, and return it as options of `tune`."""
    selected = sidebar.choices()
    slo = ("slo", "SLO (TTFT)", sidebar.aim("slo"))
    percentile = ("percentile", "Percentile", sidebar.aim("percentile"))
    if deployed:
        asked = sidebar.options_row(TuneOptions, slo, percentile, ("tpot_slo", "SLO (TPOT)"))
    else:
        blocks = sidebar.capacity("have", "Capacity you have (blocks or a size)")
        blocks = blocks or selected.present_blocks
        asked = sidebar.options_row(TuneOptions, slo, percentile)
        asked |= {"capacity_blocks": blocks and (blocks,), "hbm": selected.hbm_bytes}
    if MEMORY in compared:
        asked |= {"compare_tiers": True} | sidebar.options_row(
            TuneOptions,
            ("dram_price", "Price of CPU memory", {"placeholder": "list price"}),
            ("ssd_price", "Price of an SSD", {"placeholder": "list price"}),
            ("tier_size", "Sizes", {"placeholder": "up to 16 times the pool"}),
            ("offload", "Ways to offload", {"parse": _ways, "placeholder": "the engine's"}),
        )
    if BEHIND in compared:
        with query_params.synced("choose_from", OFFERED, query_params.parse_list, OFFERED):
            routers = st.multiselect("Routers", OFFERED, key="choose_from")
        # Unnamed, routers by session are left out where the trace has none.
        named = routers and set(routers) != set(OFFERED)
        asked |= {"fleet": True, "router": ",".join(routers) if named else None}
        asked |= sidebar.options_row(
            TuneOptions,
            ("autoscale", "Also autoscale", {"placeholder": "2..8@0.5"}),
            ("disaggregate", "Also split prefill and decode", {"placeholder": "50GB/s"}),
        )
    return TuneOptions(**asked, **sidebar.of_deployment(TuneOptions))


def _ways(text: str) -> tuple[str, ...]:
    """Return the ways to offload that a text names. Raises UsageError for an unknown one."""
    names = values.listed(values.called)(text)
    for name in names:
        OffloadSpec.parse(name)
    return names


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
