"""What every page stands in: the trace, the model and the latency that are chosen at its side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from dashboard import background_cache, connection, data, query_params
from kvscope.core import units
from kvscope.core.errors import KvscopeError, UsageError
from kvscope.core.kv_size import ModelKv, preset_names, resolve_model
from kvscope.core.trace import Trace
from kvscope.latency.file import load_profile
from kvscope.latency.profile import DEFAULT_PROFILE, PRESETS, LatencyProfile
from kvscope.report.words import trace_in_words

NO_MODEL = "none"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is chosen beside the pages. `trace` is None where the store is empty."""

    trace: Trace | None
    model: ModelKv | None
    hbm_bytes: int | None
    profile: LatencyProfile


def choose() -> Chosen:
    """Draw the sidebar's widgets and keep what they say."""
    known = {trace.name: trace for trace in data.all_traces()}
    with st.sidebar:
        name = None
        if known:
            # A trace read meanwhile becomes the one that is looked at; see `look_at`.
            query_params.seed("trace", next(iter(known)), among=known)
            if st.session_state["trace"] not in known:
                st.session_state["trace"] = next(iter(known))
            name = st.selectbox("Trace", list(known), key="trace")
        query_params.seed("model", "llama3-8b")
        model = st.selectbox(
            "Model (or the path of a config.json)",
            list(dict.fromkeys([NO_MODEL, *preset_names(), st.session_state["model"]])),
            key="model",
            accept_new_options=True,
            help="Whose KV cache: sizes are then told in GiB too.",
        )
        hbm = asked("hbm", "HBM", "80GiB", units.parse_size, "Sizes also as multiples of it.")
        query_params.seed("latency", DEFAULT_PROFILE)
        latency = st.selectbox(
            "Latency profile",
            list(dict.fromkeys([*PRESETS, st.session_state["latency"]])),
            key="latency",
            accept_new_options=True,
            help="How long prefill takes: a preset, or the file that `kvscope calibrate` wrote.",
        )
        query_params.remember("trace", "model", "latency")
        st.caption(f"Store: {connection.database()}")
    chosen = Chosen(
        trace=known[name] if name else None,
        model=resolve_model(model) if model and model != NO_MODEL else None,
        hbm_bytes=hbm,
        profile=load_profile(latency or DEFAULT_PROFILE),
    )
    st.session_state["chosen"] = chosen
    if chosen.trace is not None:
        background_cache.of(chosen.trace)
    return chosen


def chosen() -> Chosen:
    """What is chosen beside the pages."""
    found: Chosen = st.session_state["chosen"]
    return found


def trace(title: str, *, hashes: bool = True) -> Trace:
    """The page's head, and the trace that it is about; the page ends here where it cannot be."""
    st.title(title)
    found = chosen().trace
    if found is None:
        st.info("The store holds no traces yet: the page Overview reads one.")
        st.stop()
    st.caption(f"**{found.name}**: {trace_in_words(found)}")
    if hashes and not found.has_hashes:
        st.info(
            "This trace tells lengths and arrivals only; without block hashes nothing can be said"
            " about reuse. The page Overview says what it does tell."
        )
        st.stop()
    return found


def asked(
    key: str,
    label: str,
    default: str,
    parse: Callable[[str], Any],
    words: str,
    *,
    hint: str = "",
) -> Any | None:
    """A value typed with its unit; a sentence under the box where it cannot be read.

    `hint` stands in an empty box.
    """
    query_params.seed(key, default)
    text = st.text_input(label, key=key, help=words, placeholder=hint)
    query_params.remember(key)
    if not text:
        return None
    try:
        return parse(text)
    except KvscopeError as error:
        st.error(str(error))
        st.stop()


def blocks(text: str) -> int:
    """A capacity in blocks: a number of them, or a size, for which a model has to be chosen."""
    try:
        return units.parse_tokens(text)
    except UsageError as error:
        if not any(letter in "bB" for letter in text):
            raise
        size, (trace, model) = units.parse_size(text), (chosen().trace, chosen().model)
        if trace is None or model is None:
            raise UsageError(
                "bytes need a model", where=text, remedy="choose one at the side, or write blocks"
            ) from error
        return max(model.blocks_in(size, trace.block_size), 1)


def blocks_listed(text: str) -> tuple[int, ...]:
    """Capacities in blocks, ascending, each once: 5000,20000 or 10GiB,20GiB."""
    return tuple(sorted({blocks(part.strip()) for part in text.split(",") if part.strip()}))
