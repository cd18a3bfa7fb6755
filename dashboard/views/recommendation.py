"""Recommendation: what to set for an SLO, what it gains and costs, how sure that is."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import streamlit as st

from dashboard import job, query_params, render, sidebar, tuned
from dashboard.markdown import plain
from kvscope.app.requests import Capacities, TuneRequest
from kvscope.app.tune import Recommendation
from kvscope.core import units
from kvscope.core.hits import standard
from kvscope.core.trace import Trace
from kvscope.replay.policy_options import CONTENDERS, parse_policies, parse_variants
from kvscope.replay.settings import run_setting
from kvscope.report import recommendation
from kvscope.tuning.file import RecommendationFile, read_recommendation
from kvscope.tuning.flags import Flags, flags, plugin_command
from kvscope.tuning.target import Target


def page() -> None:
    """A question of one line; the verdict; or a file that was written before."""
    trace = sidebar.trace("Recommendation")
    ask, read = query_params.tabs("from", ("Tune", "Read a recommendation.toml"))
    with ask:
        asking = _asking(trace)
        clicked = st.button("Tune", type="primary", key="tune", disabled=asking is None)
        if asking is not None and job.wanted("tune", clicked=clicked):
            job.start("tune", partial(_tuned, asking))
        done = job.finished("tune")
        if done is not None:
            asked, found = done.result
            query_params.link("tune", shown=asked == asking)
            _show(asked, found, now=asking)
    with read:
        _read()


def _tuned(asking: tuned.Asking, one: job.Job) -> tuple[tuned.Asking, Recommendation | None]:
    return asking, tuned.recommend(one, *asking)


def _asking(trace: Trace) -> tuned.Asking | None:
    left, middle, right = st.columns(3)
    with left:
        slo = sidebar.asked("slo", "SLO (TTFT)", "200ms", units.parse_duration, "The TTFT to keep.")
    with middle:
        query_params.seed("percentile", "p95", among=("p50", "p90", "p95", "p99"))
        rank = st.selectbox("Percentile", ("p50", "p90", "p95", "p99"), key="percentile")
        query_params.remember("percentile")
    with right:
        blocks = sidebar.asked(
            "have",
            "Capacity you have (blocks or a size)",
            "",
            sidebar.blocks,
            "Empty: where LRU gets half of the hits that there are.",
            hint="where LRU gets half of the hits",
        )
    if not slo:
        return None
    chosen = sidebar.chosen()
    request = TuneRequest(
        target=Target(slo, units.parse_percentile(rank)),
        setting=run_setting(standard(), chosen.profile, slo_s=slo),
        profile=chosen.profile,
        variants=tuple(parse_variants(parse_policies(CONTENDERS), [])),
        capacities=Capacities(blocks=(blocks,) if blocks else ()),
        model=chosen.model,
        hbm_bytes=chosen.hbm_bytes,
        given=frozenset(
            {"--latency", "--percentile"}
            | ({"--model"} if chosen.model else set())
            | ({"--capacity"} if blocks else set())
        ),
    )
    return trace, request


def _show(asked: tuned.Asking, found: Recommendation | None, now: tuned.Asking | None) -> None:
    if found is None:
        st.warning("Stopped before the search was finished.")
        return
    if asked != now:
        st.info("This is what was asked before; Tune answers what stands above.")
    verdict, *rest = recommendation.sections(found)
    render.show([verdict])
    _flags(found.flags)
    st.caption(recommendation.ADD_RUNNING)
    _instead(found)
    st.download_button(
        "Download recommendation.toml",
        tuned.as_file(found),
        "recommendation.toml",
        "application/toml",
        key="download",
        on_click="ignore",
    )
    render.show(one for one in rest if one.title != "To set")  # which stands above


def _flags(told: Flags) -> None:
    """What to tell each engine, with a button that copies it."""
    plugin = bool(told.vllm) and told.vllm_needs_plugin
    vllm = f"{plugin_command('recommendation.toml')} {told.vllm}" if plugin else told.vllm
    named = "vLLM, with kvscope's plugin and the file" if plugin else "vLLM"
    for engine, text in (("SGLang", told.sglang), (named, vllm)):
        if text:
            st.caption(f"Flags for {engine}")
            st.code(text, language="bash", wrap_lines=True)


def _instead(found: Recommendation) -> None:
    """Flags for an engine that does not have what is recommended."""
    other = found.next_best_for_sglang()
    if not found.flags.sglang and other is not None:
        st.caption("SGLang does not have it; the best that it has")
        st.code(found.flags_for(other).sglang, language="bash", wrap_lines=True)
    least = found.tuning.least_lru
    if not found.flags.vllm and least is not None:
        st.caption("vLLM evicts by LRU; with the least capacity that keeps the SLO then")
        st.code(found.flags_at(least.training).vllm, language="bash", wrap_lines=True)


def _read() -> None:
    upload = st.file_uploader("recommendation.toml, as `kvscope tune` writes it", key="toml")
    if upload is None:
        st.caption("A file that was written before, to read and to take its flags from.")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        path.write_bytes(upload.getvalue())
        found = read_recommendation(path)
    _told(found)


def _told(found: RecommendationFile) -> None:
    target = found.target
    words = (
        f"{found.verdict}, for the trace {found.trace}: {found.policy.name} at"
        f" {units.format_count(found.capacity_tokens)} tokens, to keep"
        f" {units.format_percentile(target.percentile)} TTFT within"
        f" {units.format_duration(target.slo_s)} ({found.profile.name})."
    )
    st.markdown(plain(words))
    _flags(flags(found.policy, found.capacity_tokens))


page()
