"""What every page shares: the sidebar's choices, the head of a page, and typed values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import streamlit as st
from msgspec import Struct
from msgspec.structs import replace

from dashboard import background_cache, connection, data, job, query_params
from dashboard.arguments import file_below
from dashboard.wording import escape, in_page_words
from kvscope.app import values
from kvscope.app.deployment import resolved_deployment, stated_deployment
from kvscope.app.options import DeploymentOptions, annotations_of, choices_of, declared
from kvscope.app.requests import Capacities, SimulateRequest, latency_profile
from kvscope.core import units
from kvscope.core.errors import InputError, KvscopeError, UsageError, placed
from kvscope.core.files import STANDARD_STREAM
from kvscope.core.trace import Trace
from kvscope.deployment.deployment import Deployment, ResolvedDeployment
from kvscope.deployment.file import FILE, deployment_file, read_target
from kvscope.deployment.gpus import GPUS
from kvscope.deployment.models import Model, preset, preset_names, resolve_model
from kvscope.latency.file import read_profile
from kvscope.latency.profile import FROM_TRACE, PRESETS, LatencyProfile
from kvscope.replay.settings import timed_by
from kvscope.report.words import trace_in_words
from kvscope.usecases.analyze import Analysis
from kvscope.usecases.simulate import SimulateOptions, simulate_request

NO_MODEL = NO_GPU = "none"
FROM_FILE = f"as {FILE} says"  # a file may state a pool without a GPU
OWN, DERIVED = "the model's own", "derived"
_FIELDS = Deployment.__struct_fields__
COUNTS = range(1, 10_001)  # of GPUs and replicas
HBM, MODEL = "80GiB", "llama3-8b"
PERCENTILES = ("p50", "p90", "p95", "p99")

T = TypeVar("T")


class Choices(Struct, frozen=True):
    """What is selected in the sidebar; `trace` is None where the store is empty.

    `missing` is the name of a trace in the address that the store does not have.

    `options` are those of a deployment, as commands take them. In a cache study `deployment` is
    None; else `hbm_bytes` is the size of its pool.
    """

    trace: Trace | None
    options: Mapping[str, Any]
    deployment: ResolvedDeployment | None
    model: Model | None
    hbm_bytes: int | None
    profile: LatencyProfile
    missing: str = ""

    @property
    def memory(self) -> str:
        """What `hbm_bytes` is the size of."""
        return "pool" if self.deployment else "HBM"

    @property
    def present_blocks(self) -> int | None:
        """Blocks of the deployment's pools, or that fit into the HBM; None without both."""
        where = self.deployment
        if self.trace is None:
            return None
        if where is not None:
            return where.as_cache.pool.in_blocks_of(self.trace.block_size).blocks * where.engines
        if self.model is None or self.hbm_bytes is None:
            return None
        return Capacities(sizes_bytes=(self.hbm_bytes,)).in_blocks(
            self.model, self.trace.block_size
        )[0]


def draw() -> list[str]:
    """Draw the sidebar, keep its choices, and start the analysis of the selected trace.

    Return a sentence for each value that cannot be used: pages use the default in its place.
    """
    problems: list[str] = []
    known = {trace.name: trace for trace in data.all_traces()}
    file = stated_deployment(DeploymentOptions())
    with st.sidebar:
        name, missing = _trace(list(known))
        before = data.stated_before(known[name]) if name else {}
        st.session_state["aims"] = before
        before = {} if file else before
        base = file or _deployed(before)
        stated = (base.model or NO_MODEL) if base else before.get("model", MODEL)
        with query_params.synced("model", stated):
            model = st.selectbox(
                "Model (or path of a config.json)",
                list(dict.fromkeys([NO_MODEL, *preset_names(), st.session_state["model"]])),
                key="model",
                accept_new_options=True,
                help="The model whose KV cache is meant: shows sizes in GiB.",
            )
        model_name = _usable("Model", model, partial(_model, stated), stated, problems)
        model_name = None if model_name == NO_MODEL else model_name
        gpu, hbm = _gpu(base), None
        options: dict[str, Any] = {"model": model_name}
        if gpu == FROM_FILE or (gpu != NO_GPU and model_name):
            options |= _deployment(base or Deployment(), gpu, problems)
            if base and (gpu, model_name) == (base.gpu, base.model):  # with what is not drawn
                options = {key: before[key] for key in before if key in _FIELDS} | options
        else:
            usual = f"{before['hbm'] / units.GIB:.12g}GiB" if "hbm" in before else HBM
            with query_params.synced("hbm", usual):
                about = "The capacity by default; sizes are shown as multiples of it."
                size = st.text_input("HBM", key="hbm", help=about)
            hbm = _usable("HBM", size, units.parse_size, usual, problems)
            latency = _latency("latency", [*PRESETS, FROM_TRACE], problems)
            options |= {"latency": latency, "deployment": STANDARD_STREAM}
            st.caption("A cache study: for a deployment, select a GPU and a model.")
        trace = known[name] if name else None
        where = resolved_deployment(DeploymentOptions(**options))
        profile = where.latency if where else latency_profile(options["latency"])
        if trace is not None:
            timed = data.latency(trace, profile, where)
            where, profile = timed.deployment, timed.profile
            if timed.note:
                st.caption(escape(timed.note))
        if where:
            st.caption(f"Deployment: {escape(where.summary)}")
        st.caption(f"Store: {escape(connection.database())}")
        for each in job.all_jobs():
            if not each.ended:
                st.page_link("views/runs.py", label=f"Running: {each.title} {each.trace}")
    selected = Choices(
        trace=trace,
        options=options,
        deployment=where,
        model=where.model if where else resolve_model(model_name) if model_name else None,
        hbm_bytes=where.pool_bytes if where else hbm,
        profile=profile,
        missing=missing,
    )
    st.session_state["choices"] = selected
    if selected.trace is not None:
        background_cache.findings(selected.trace)
    return problems


def _deployed(before: Mapping[str, Any]) -> Deployment | None:
    """Return the deployment that commands on the trace stated, None of a cache study."""
    if not {"gpu", "model"} <= before.keys():
        return None
    stated = Deployment(**{key: before[key] for key in before if key in _FIELDS})
    named = stated.described_gpu
    return None if named is None or named.name not in GPUS else replace(stated, gpu=named.name)


def aim(name: str, usual_slo: str = "200ms") -> str:
    """Return the SLO (`slo`) or the `percentile` that was stated, else the usual one, as text."""
    path, before = deployment_file(), st.session_state.get("aims", {})
    stated = read_target(path) if path else {}
    if name in stated:
        return stated[name]
    if name not in before:
        return {"slo": usual_slo, "percentile": "p95"}[name]
    if name == "percentile":
        return units.format_percentile(before[name])
    short = units.format_duration(before[name])
    exact = units.parse_duration(short) == before[name]
    return short if exact else f"{before[name] * 1e3:.12g}ms"


def _gpu(file: Deployment | None) -> str:
    """Draw the choice of a GPU and return it; by default the file's, or none."""
    names = [NO_GPU, *GPUS]
    with placed(f"{FILE}: gpu", InputError):
        named = file.described_gpu if file is not None else None
    if file is not None and (named is None or named.name not in GPUS):
        names.insert(0, FROM_FILE)
    default = names[0] if named is None or named.name not in GPUS else named.name
    return choice("gpu", "GPU", names, default, "With a model: the deployment to advise on.")


def _deployment(stated: Deployment, gpu: str, problems: list[str]) -> dict[str, Any]:
    """Draw what else a deployment is made of, by default as `stated`; return it as options.

    What the file states cannot be unset here, only replaced, as on the command line.
    """
    counts, about = {}, {"dp": "Ranks of one engine that divide a model's experts (`--dp`)."}
    for key, label in (("tp", "GPUs per replica"), ("dp", "Ranks"), ("replicas", "Replicas")):
        with query_params.synced(key, getattr(stated, key), int, allowed=COUNTS):
            counts[key] = st.number_input(
                label, COUNTS.start, COUNTS.stop - 1, key=key, help=about.get(key)
            )
    traffic = option(DeploymentOptions, "traffic", "Traffic", stated.traffic)
    weights = option(
        DeploymentOptions,
        "weight_dtype",
        "Weight precision",
        stated.weight_dtype or OWN,
        key="weights",
        usual="" if stated.weight_dtype else OWN,
    )
    # Not the key of a cache study: its latency is another model's.
    latency = _latency("timing", (stated.latency or DERIVED, FROM_TRACE, *PRESETS), problems)
    price = "" if stated.gpu_hour is None else f"{stated.gpu_hour:g}"
    label, priced = "Price per GPU hour", "Prices replicas and gains, in any currency."
    with query_params.synced("gpu_hour", price):
        text = st.text_input(label, key="gpu_hour", help=priced, placeholder=price)
    return counts | {
        "gpu": None if gpu == FROM_FILE else gpu,
        "traffic": traffic,
        "weight_dtype": weights,
        "latency": None if latency == DERIVED else latency,
        "gpu_hour": _usable(label, text, values.price, price, problems),
    }


def choice(
    key: str, label: str, names: Sequence[str], default: str, description: str | None = None
) -> str:
    """Draw a choice of one of the names and return it."""
    with query_params.synced(key, default, allowed=names):
        return st.selectbox(label, names, key=key, help=description)


def _latency(key: str, names: Sequence[str], problems: list[str]) -> str:
    """Draw the choice of a latency profile, by default the first, and return it."""
    with query_params.synced(key, names[0]):
        latency = st.selectbox(
            "Latency profile",
            list(dict.fromkeys([*names, st.session_state[key]])),
            key=key,
            accept_new_options=True,
            help="Prefill time: a preset, a file from `kvscope calibrate` below the folder that the"
            " dashboard was started with, or `trace`: fitted to the TTFTs in the trace.",
        )
    known = {*names, *PRESETS}
    latency = _usable("Latency profile", latency, partial(_profile, known), names[0], problems)
    return latency or names[0]


def _profile(known: Collection[str], text: str) -> str:
    """Return what the commands take for a latency profile: a known one, or a file's path."""
    if text in known:
        return text
    path = file_below(text)
    read_profile(Path(path))
    return path


def _model(stated: str, text: str) -> str:
    """Return what the commands take for a model: the stated one, a preset, or a file's path."""
    if text in {stated, NO_MODEL}:
        return text
    if Path(text).suffix == ".json":
        path = file_below(text)
        resolve_model(path)
        return path
    preset(text)
    return text.rsplit("/", 1)[-1].lower()  # else a folder of that name would be looked at


def _trace(known: list[str]) -> tuple[str | None, str]:
    """Draw the choice of a trace; return its name, and the name of one that the store lacks."""
    if not known:
        return None, ""
    wanted = st.session_state.get("trace") or st.query_params.get("trace")
    if wanted is None or wanted in known:
        with query_params.synced("trace", known[0], allowed=known):
            return st.selectbox("Trace", known, key="trace"), ""
    st.session_state["trace"] = None  # the address keeps its trace
    return st.selectbox("Trace", known, None, key="trace"), wanted


def _usable(
    label: str,
    text: str | None,
    parse: Callable[[str], T],
    default: str,
    problems: list[str],
) -> T | None:
    """Return the parsed text, None where there is none.

    Where parsing fails, return the parsed default, and add a sentence to `problems`.
    """
    try:
        return parse(text) if text else None
    except KvscopeError as error:
        problems.append(f"{label}: {error}. The page uses {default or 'none'}.")
    return parse(default) if default else None


def choices() -> Choices:
    """Return what is selected in the sidebar."""
    selected: Choices = st.session_state["choices"]
    return selected


def analysis(trace: Trace) -> Analysis:
    """Return the analysis of a trace for what is selected."""
    selected = choices()
    where, stated = selected.deployment, selected.options
    return data.analysis(trace, selected.model, selected.hbm_bytes, where, stated)


def page_head(title: str, *, needs_hashes: bool = True) -> Trace:
    """Draw a page's title and return its trace; the page ends here if it cannot show that one."""
    draw_title(title)
    trace = choices().trace
    if trace is None:
        if choices().missing:
            stop_without_trace()
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


def draw_title(title: str) -> None:
    """Draw a page's title, with a place for its exports at the right."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.title(title)
        st.session_state["corner"] = st.container(width="content")


def stop_without_trace() -> NoReturn:
    """End the page: the address has a trace that the store lacks. Say which traces there are."""
    names = ", ".join(trace.name for trace in data.all_traces())
    st.error(escape(f"The store has no trace {choices().missing!r}. It has {names}: select one."))
    st.stop()


class Form(Struct):
    """Inputs that are sent together; `clicked` is known below them."""

    problems: list[str]
    clicked: bool = False


@contextmanager
def form(button: str, key: str) -> Iterator[Form]:
    """Draw a form, its inputs in the block; the page ends below it where one cannot be parsed."""
    drawn = Form([])
    with st.form(f"{key}_form", border=False):
        st.session_state["form"] = drawn
        try:
            yield drawn
        finally:
            st.session_state.pop("form", None)
        drawn.clicked = st.form_submit_button(button, type="primary", key=key)
    for problem in drawn.problems:
        st.error(problem)
    if drawn.problems:
        st.stop()


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

    Where the text cannot be parsed, the page ends with the reason, below a form's button.
    """
    with query_params.synced(key, default):
        text = st.text_input(label, key=key, help=description, placeholder=placeholder)
    if not text:
        return None
    try:
        return parse(text)
    except KvscopeError as error:
        form_of_it: Form | None = st.session_state.get("form")
        problem = escape(in_page_words(f"{label}: {error}"))
        if form_of_it is None:
            st.error(problem)
            st.stop()
        form_of_it.problems.append(problem)
    return None


def options_row(options: type[Struct], *drawn: tuple[Any, ...], columns: int = 4) -> dict[str, Any]:
    """Draw options of a command side by side, each as (name, label, default, more of `option`).

    Return their values by name.
    """
    values, row = {}, cycle(st.columns(min(columns, len(drawn))))
    for column, (name, label, *more) in zip(row, drawn, strict=False):
        keywords = more.pop() if more and isinstance(more[-1], dict) else {}
        with column:
            values[name] = option(options, name, label, *more, **keywords)
    return values


def option(
    options: type[Struct],
    name: str,
    label: str,
    default: str = "",
    *,
    key: str = "",
    usual: str = "",
    parse: Callable[[str], Any] | None = None,
    placeholder: str = "",
) -> Any | None:
    """Draw the control of an option of a command, with its help, and return its value.

    It is a choice where the option takes one of a few words; `usual` is the word for none of them.
    Else it is a text box, parsed as on the command line, or by `parse`.
    """
    declaration = declared(annotations_of(options)[name])
    assert declaration is not None  # noqa: S101  (it is an option)
    kind, about = declaration
    words, description = choices_of(kind), in_page_words(about.help)
    if not words:
        parse = parse or about.parse or str
        return typed(key or name, label, default, parse, description, placeholder=placeholder)
    names = [*([usual] if usual else []), *words]
    chosen = choice(key or name, label, names, default or names[0], description)
    return None if usual and chosen == usual else chosen


def of_deployment(kind: type[Struct]) -> dict[str, Any]:
    """Return what the sidebar states, as far as a command takes it."""
    known = {*kind.__struct_fields__}
    return {name: value for name, value in choices().options.items() if name in known}


def check_traffic(selected: Choices) -> None:
    """Raise UsageError for a deployment whose trace is one replica's, which no fleet serves."""
    where = selected.deployment
    if where is not None and where.stated.traffic == "replica":
        raise UsageError(
            "a fleet needs the traffic of all replicas, and the deployment's trace holds one's",
            where="Traffic in the sidebar",
            remedy="if this trace holds all of it, select fleet",
        )


def capacity(key: str, label: str) -> int | None:
    """Draw a text box for one capacity and return its blocks, None where it is empty."""
    present, memory = choices().present_blocks, choices().memory
    usual = "where LRU gets half of the possible hits"
    if present is not None:
        usual = f"the {memory}: {units.format_count(present)} blocks"
    blocks: int | None = typed(
        key, label, "", parse_capacity, f"Empty: {usual}.", placeholder=usual
    )
    return blocks


def in_pool(options: SimulateOptions) -> SimulateOptions:
    """Return the options in the pool of one engine's deployment, if they name no capacity."""
    where = choices().deployment
    if where is None or where.engines > 1 or options.capacity_blocks or options.tiers:
        return replace(options, deployment=STANDARD_STREAM)
    return replace(options, **of_deployment(DeploymentOptions))


def replays(options: SimulateOptions) -> SimulateRequest:
    """Return what options of `in_pool` replay, timed as the sidebar says."""
    request, selected = simulate_request(options), choices()
    pooled = options.deployment != STANDARD_STREAM
    return replace(
        request,
        setting=timed_by(request.setting, selected.profile),
        model=selected.model if pooled or request.model else None,
        deployment=selected.deployment if pooled else None,
    )


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
