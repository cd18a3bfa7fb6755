"""Policy lab: replay policies at capacities, and see who gains, who pays and how the tail moves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import deep
import frame
import held
import job
import render
import replays
import streamlit as st

from kvscope import units
from kvscope.facts import Trace
from kvscope.policies.registry import POLICIES, by_name
from kvscope.show.charts import distributions
from kvscope.show.section import Section
from kvscope.show.sections import simulation
from kvscope.simulate.definitions import standard
from kvscope.simulate.parameters import parse_variants
from kvscope.simulate.workload import setting_of

USUAL = ["lru", "tlru", "wa", "belady"]


def page() -> None:
    """The question, its progress, the answer."""
    trace = frame.trace("Policy lab")
    asking = _asking(trace)
    prompts = held.lru(trace).prompts
    if st.button("Run", type="primary", key="run", disabled=not asking.variants):
        job.start("lab", lambda one: (asking, replays.replay(one, asking, prompts)))
    done = job.finished("lab")
    if done is None:
        if job.current("lab") is None:
            st.caption("Runs that were made before come from the store; every other is kept there.")
        return
    _show(*done.result, now=asking)


def _asking(trace: Trace) -> replays.Asking:
    names = [policy.name for policy in POLICIES]
    deep.seed("policies", USUAL, deep.names, among=names)
    chosen = st.multiselect(
        "Policies",
        names,
        key="policies",
        format_func=lambda name: f"{name} (knows the future)" if by_name(name).hindsight else name,
    )
    left, middle, right = st.columns(3)
    with left:
        sizes = frame.asked(
            "sizes",
            "Capacities (blocks)",
            "",
            _blocks,
            "For example 5000,20000; empty for a spread of five, up to where LRU loses nothing.",
        )
    with middle:
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
    deep.remember("policies")
    variants = parse_variants([by_name(name) for name in chosen], parameters or [])
    setting = setting_of(standard(), frame.chosen().profile, slo_s=slo)
    return replays.Asking(trace, setting, tuple(variants), sizes or ())


def _blocks(text: str) -> tuple[int, ...]:
    return tuple(sorted({units.parse_tokens(part) for part in text.split(",") if part.strip()}))


def _show(asked: replays.Asking, made: replays.Replays, now: replays.Asking) -> None:
    if asked != now:
        st.info("This is what was asked before; Run answers what stands above.")
    if not made.complete:
        st.warning("Stopped: what was finished is shown, and kept.")
    if not made.found.runs:
        return
    found = replace(made.found, model=frame.chosen().model)
    summary, *rest = simulation.sections(found)
    spread = Section(
        "Time to first token",
        ("How long requests wait on an idle engine; points mark p50, p90, p95 and p99.",),
        figures=(partial(distributions.cdf, made.ttft, made.at_blocks, asked.setting.slo_s),),
    )
    render.show([summary, spread, *rest])


page()
