"""What every page shares: the sidebar's choices, the head of a page, and typed values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from dashboard import background_cache, connection, data, query_params
from dashboard.markdown import escape
from kvscope.app.requests import Capacities
from kvscope.core import units
from kvscope.core.errors import KvscopeError, UsageError
from kvscope.core.trace import Trace
from kvscope.deployment.models import Model, preset_names, resolve_model
from kvscope.latency.file import load_profile
from kvscope.latency.profile import DEFAULT_PROFILE, PRESETS, LatencyProfile
from kvscope.report.words import trace_in_words

NO_MODEL = "none"
PERCENTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Choices:
    """What is selected in the sidebar; `trace` is None where the store is empty.

    `model_name` and `latency` are as the options --model and --latency take them.
    """

    trace: Trace | None
    model_name: str | None
    model: Model | None
    hbm_bytes: int | None
    latency: str
    profile: LatencyProfile


def draw() -> None:
    """Draw the sidebar, keep its choices, and start the analysis of the selected trace."""
    known = {trace.name: trace for trace in data.all_traces()}
    with st.sidebar:
        name = None
        if known:
            with query_params.synced("trace", next(iter(known)), allowed=known):
                name = st.selectbox("Trace", list(known), key="trace")
        with query_params.synced("model", "llama3-8b"):
            model = st.selectbox(
                "Model (or path of a config.json)",
                list(dict.fromkeys([NO_MODEL, *preset_names(), st.session_state["model"]])),
                key="model",
                accept_new_options=True,
                help="The model whose KV cache is meant: shows sizes in GiB.",
            )
        hbm = typed("hbm", "HBM", "80GiB", units.parse_size, "Shows sizes as multiples of it.")
        with query_params.synced("latency", DEFAULT_PROFILE):
            latency = st.selectbox(
                "Latency profile",
                list(dict.fromkeys([*PRESETS, st.session_state["latency"]])),
                key="latency",
                accept_new_options=True,
                help="Prefill time: a preset, or the path of a file from `kvscope calibrate`.",
            )
        st.caption(f"Store: {escape(connection.database())}")
    model_name = model if model and model != NO_MODEL else None
    selected = Choices(
        trace=known[name] if name else None,
        model_name=model_name,
        model=resolve_model(model_name) if model_name else None,
        hbm_bytes=hbm,
        latency=latency or DEFAULT_PROFILE,
        profile=load_profile(latency or DEFAULT_PROFILE),
    )
    st.session_state["choices"] = selected
    if selected.trace is not None:
        background_cache.findings(selected.trace)


def choices() -> Choices:
    """Return what is selected in the sidebar."""
    selected: Choices = st.session_state["choices"]
    return selected


def page_head(title: str, *, needs_hashes: bool = True) -> Trace:
    """Draw a page's title and return its trace; the page ends here if it cannot show that one."""
    st.title(title)
    trace = choices().trace
    if trace is None:
        st.info("The store holds no traces. Add one on the page Overview.")
        st.stop()
    st.caption(f"**{escape(trace.name)}**: {escape(trace_in_words(trace))}")
    if needs_hashes and not trace.has_hashes:
        st.info(
            "This trace has lengths and arrival times but no block hashes, so its reuse is unknown."
            " The page Overview shows what is known."
        )
        st.stop()
    return trace


def typed(
    key: str,
    label: str,
    default: str,
    parse: Callable[[str], Any],
    description: str,
    *,
    placeholder: str = "",
) -> Any | None:
    """Draw a text box and return its parsed value, None where it is empty.

    Where the text cannot be parsed, the page ends with the reason.
    """
    with query_params.synced(key, default):
        text = st.text_input(label, key=key, help=description, placeholder=placeholder)
    if not text:
        return None
    try:
        return parse(text)
    except KvscopeError as error:
        st.error(escape(str(error)))
        st.stop()


def capacity(key: str, label: str) -> int | None:
    """Draw a text box for one capacity and return its blocks, None where it is empty."""
    usual = "where LRU gets half of the possible hits"
    blocks: int | None = typed(
        key, label, "", parse_capacity, f"Empty: {usual}.", placeholder=usual
    )
    return blocks


def parse_capacity(text: str) -> int:
    """Return a capacity in blocks, from a number of blocks or a size, which needs a model."""
    if not text.strip().lower().endswith("b"):
        return units.parse_tokens(text)
    size, trace, model = units.parse_size(text), choices().trace, choices().model
    if trace is None or model is None:
        raise UsageError(
            "bytes need a model", where=text, remedy="select one in the sidebar, or write blocks"
        )
    return Capacities(sizes_bytes=(size,)).in_blocks(model, trace.block_size)[0]


def parse_capacities(text: str) -> tuple[int, ...]:
    """Return capacities in blocks, ascending, each once: 5000,20000 or 10GiB,20GiB."""
    return tuple(sorted({parse_capacity(part) for part in text.split(",") if part.strip()}))
