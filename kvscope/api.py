"""The Python API: `hash_logs`, `analyze`, `explain`, `fit`, `simulate`, `tune` and fleets.

    import kvscope

    trace = kvscope.open_trace("trace.jsonl")
    result = kvscope.tune(trace, slo="200ms", gpu="h100", model="llama3-8b")
    result.save("recommendation.toml")

Arguments are the options of the command line, under the same names: texts as they are written there
(`"80GiB"`, `"200ms"`, `"p95"`) or plain numbers in bytes, seconds, tokens, blocks or shares from 0
to 1. Nothing is written to disk unless `db` names a store. Mistakes raise UsageError, unreadable
traces InputError. What the command line prints as notes goes to the logger `kvscope`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack

from kvscope.app.monitor import LogMonitor
from kvscope.app.options import (
    AnalyzeOptions,
    ExplainOptions,
    FitOptions,
    FleetOptions,
    Reading,
    RetentionOptions,
    SimulateOptions,
    TuneOptions,
    parsed,
)
from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.core.files import one_path
from kvscope.results import (
    AnalysisResult,
    DiffResult,
    ExplanationResult,
    FitResult,
    FleetResult,
    RetentionResult,
    SimulationResult,
    TuneResult,
)

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.deployment.models import KvDtype
    from kvscope.store.file import StoreFile

__all__ = [
    "AnalysisResult",
    "DiffResult",
    "ExplanationResult",
    "FitResult",
    "FleetResult",
    "InputError",
    "KvscopeError",
    "OpenTrace",
    "RetentionResult",
    "SimulationResult",
    "TuneResult",
    "UsageError",
    "advise_retention",
    "analyze",
    "diff",
    "explain",
    "fit",
    "hash_logs",
    "open_trace",
    "simulate",
    "simulate_fleet",
    "tune",
    "tune_fleet",
    "tune_tiers",
]

MEMORY = ":memory:"

T = TypeVar("T")

Texts = str | Sequence[str] | None
"""One text, commas inside allowed, or several."""
Amount = str | int | None
"""A size or a count: a text with its unit, or a number of bytes, tokens or blocks."""
Amounts = str | int | Sequence[str | int] | None
"""One or several of them."""
Time = str | float | None
"""A duration: a text with its unit, or seconds."""
Share = str | float
"""A share: a text such as `"5%"`, or a fraction from 0 to 1."""


class ReplicaArguments(TypedDict, total=False):
    """The replica that an answer is for, as arguments of `simulate_fleet`.

    Each is an option of the command line; what is left out follows from kvscope.toml, where the
    current directory has one.
    """

    deployment: str | None
    gpu: str | None
    tp: int | None
    model: str | None
    weight_dtype: str | None
    kv_dtype: str | None
    engine: str | None
    gpu_memory_utilization: Share | None
    max_num_seqs: int | None
    max_num_batched_tokens: Amount
    num_gpu_blocks: Amount
    engine_log: str | None
    latency: str | None
    gpu_hour: str | float | None
    traffic: Literal["fleet", "replica"] | None


class DeploymentArguments(ReplicaArguments, total=False):
    """The deployment that an answer is for, as arguments of `analyze`, `simulate` and `tune`."""

    replicas: int | None


class OpenTrace:
    """A trace in a store; a context manager that closes the store.

    Several calls on one OpenTrace read its file once.
    """

    def __init__(self, store: StoreFile, facts: Trace) -> None:
        self.store = store
        self.facts = facts

    def __repr__(self) -> str:
        return f"<OpenTrace {self.facts.name!r}: {self.facts.requests:,} requests>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of the trace: `trace` in every JSON document."""
        from kvscope.app.documents.base import TraceFacts

        return vars(TraceFacts.build(self.facts))


Source = str | PathLike[str] | OpenTrace | None
"""A path, the name of a trace in the store `db`, an OpenTrace, or None: the last one used."""


def open_trace(
    source: str | PathLike[str] | Sequence[str | PathLike[str]] | None,
    *,
    db: str = MEMORY,
    name: str | None = None,
    trace_format: str | None = None,
    block_size: int | None = None,
    session_arrivals: str | float | None = None,
    seed: int = 0,
    turns: Literal["whole", "delta"] | None = None,
    strict: bool = False,
    max_bad: Share = 0.01,
) -> OpenTrace:
    """Return the trace at a path, ingested if the store lacks it, or a stored trace by its name.

    Several paths are one trace.
    """
    reading = parsed(Reading, locals())
    from kvscope.app.traces import load_trace, store_for

    if isinstance(source, str | PathLike):
        source = [source]
    path = one_path([fspath(each) for each in source]) if source else None
    store = store_for(db, path, LogMonitor().note)
    try:
        return OpenTrace(store, load_trace(store, path, LogMonitor(), reading))
    except BaseException:
        store.close()
        raise


def hash_logs(
    logs: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str],
    from_: Literal["openai", "litellm", "otlp", "sglang"] | None = None,
    block_size: int = 16,
    chat_template: str | PathLike[str] | None = None,
    salt_file: str | PathLike[str] | None = None,
    strict: bool = False,
    max_bad: Share = 0.01,
) -> int:
    """Write the trace of logs with prompts: hashes, lengths and times; return its requests."""
    from kvscope.app.hash_logs import HashOptions
    from kvscope.app.hash_logs import hash_logs as run

    named = {name: fspath(value) for name, value in locals().items() if isinstance(value, PathLike)}
    paths = [logs] if isinstance(logs, str | PathLike) else logs
    with _arguments():
        options = parsed(HashOptions, locals() | named)
    return run([fspath(path) for path in paths], options, LogMonitor()).requests


def analyze(
    trace: Source,
    *,
    from_: Time = None,
    until: Time = None,
    memory: Amount = None,
    hbm: Amount = None,
    capacity: Amounts = None,
    capacity_blocks: Amounts = None,
    compat: Literal["kvcache-simulator", "libcachesim"] | None = None,
    outputs: Literal["carried", "ignored"] = "carried",
    warmup: Share = 0.0,
    db: str = MEMORY,
    **of: Unpack[DeploymentArguments],
) -> AnalysisResult:
    """Characterize a trace: what is reused, what caching can give, how large it must be."""
    with _arguments():
        from kvscope.app.requests import analyze_request

        request = analyze_request(_parsed(AnalyzeOptions, locals()))
    from kvscope.app.analyze import analyze as run
    from kvscope.app.analyze import in_range

    with _opened(trace, db) as opened:
        part = in_range(opened.store, opened.facts, request, LogMonitor())
        return AnalysisResult(run(opened.store, part, request))


def explain(
    trace: Source,
    *,
    request: int | str | None = None,
    pooled: bool = False,
    policy: str = "lru",
    param: Sequence[str] | None = None,
    capacity: Amount = None,
    capacity_blocks: Amount = None,
    outputs: Literal["carried", "ignored"] = "carried",
    db: str = MEMORY,
    **of: Unpack[DeploymentArguments],
) -> ExplanationResult:
    """Explain why input tokens missed the cache: every missed token has one cause."""
    with _arguments():
        from kvscope.app.requests import explain_request

        asked = explain_request(_parsed(ExplainOptions, locals()))
    from kvscope.app.explain import explain as run
    from kvscope.app.explain import read_evidence
    from kvscope.app.traces import replayable

    with _opened(trace, db) as opened:
        evidence = read_evidence(opened.store, opened.facts, asked)
        prompts = replayable(opened.store, opened.facts)
        return ExplanationResult(run(opened.facts, prompts, asked, LogMonitor(), evidence))


def advise_retention(
    trace: Source,
    *,
    model: str | None = None,
    kv_dtype: KvDtype | None = None,
    capacity: Amount = None,
    capacity_blocks: Amount = None,
    latency: str | None = None,
    outputs: Literal["carried", "ignored"] = "carried",
    db: str = MEMORY,
) -> RetentionResult:
    """Find how long blocks should live: hits and memory of every TTL, the best ones, and prices."""
    with _arguments():
        from kvscope.app.requests import retention_request

        asked = retention_request(parsed(RetentionOptions, locals()))
    from kvscope.app.retention import retention as run
    from kvscope.app.traces import replayable

    with _opened(trace, db) as opened:
        prompts = replayable(opened.store, opened.facts)
        return RetentionResult(run(opened.facts, prompts, asked))


def diff(
    left: str | PathLike[str],
    right: str | PathLike[str],
    *,
    model: str | None = None,
    kv_dtype: KvDtype | None = None,
    hbm: Amount = None,
    db: str = MEMORY,
) -> DiffResult:
    """Compare two traces, two stored runs (`run:7`) or two files of `kvscope tune`."""
    with _arguments():
        from kvscope.app.requests import analyze_request

        sizes = {"model": model, "kv_dtype": kv_dtype, "hbm": hbm}
        request = analyze_request(parsed(AnalyzeOptions, sizes))
    from kvscope.app.diff import diff as run
    from kvscope.store.file import StoreFile

    with StoreFile(db) as store:
        return DiffResult(run(store, fspath(left), fspath(right), request, LogMonitor()))


def fit(
    trace: Source,
    *,
    window: Time = None,
    warmup: Share = 0.0,
    db: str = MEMORY,
) -> FitResult:
    """Fit models of reuse and of conversations: which one to use, and how stable it is."""
    with _arguments():
        from kvscope.app.fit import exported_policy, fit_trace

        options = parsed(FitOptions, locals())
        exported_policy(options)
    with _opened(trace, db) as opened:
        return FitResult(fit_trace(opened.store, opened.facts, options, None, LogMonitor()))


def simulate(
    trace: Source,
    *,
    policies: Texts = None,
    param: Sequence[str] | None = None,
    capacity: Amounts = None,
    capacity_blocks: Amounts = None,
    points: int | None = None,
    capacity_model: Literal["cache", "engine"] = "cache",
    tiers: Texts = None,
    tier_mode: Literal["exclusive", "write-through"] | None = None,
    offload: str | None = None,
    slo: Time = None,
    recommendation: str | None = None,
    refit: Time = None,
    rate_scale: float = 1.0,
    warmup: Share = 0.0,
    outputs: Literal["carried", "ignored"] = "carried",
    compat: Literal["kvcache-simulator", "libcachesim"] | None = None,
    isolate: Literal["user", "conversation"] | None = None,
    sample: Share = 1.0,
    coarsen: int = 1,
    on: str | None = None,
    db: str = MEMORY,
    **of: Unpack[DeploymentArguments],
) -> SimulationResult:
    """Replay a trace under eviction policies at several capacities: hits, TTFT, gap to oracles."""
    with _arguments():
        from kvscope.app.requests import simulate_request

        request = simulate_request(_parsed(SimulateOptions, locals()))
    from kvscope.app.simulate import simulate as run
    from kvscope.app.traces import sampleable

    with _opened(trace, db) as opened:
        prompts = sampleable(opened.store, opened.facts, request.setting, LogMonitor())
        return SimulationResult(run(opened.store, opened.facts, prompts, request, LogMonitor()))


def tune(
    trace: Source,
    *,
    slo: str | float,
    percentile: str | float | None = None,
    max_violations: Share | None = None,
    tpot_slo: Time = None,
    also: Texts = None,
    view: Literal["unloaded", "queued"] | None = None,
    capacity: Amounts = None,
    capacity_blocks: Amounts = None,
    capacity_range: str | tuple[int, int] | None = None,
    hbm: Amount = None,
    policies: Texts = None,
    param: Sequence[str] | None = None,
    rate_scale: float = 1.0,
    outputs: Literal["carried", "ignored"] = "carried",
    isolate: Literal["user", "conversation"] | None = None,
    warmup: Share | None = None,
    validation: Share | None = None,
    judge: Share | None = None,
    max_p50_regression: Share = 0.25,
    min_throughput: Share = 0.95,
    fleet: bool = False,
    router: Texts = None,
    tiers: bool = False,
    tier_sizes: Texts = None,
    offload: Texts = None,
    dram_price: float | None = None,
    ssd_price: float | None = None,
    ssd_writes_per_day: float | None = None,
    on: str | None = None,
    db: str = MEMORY,
    **of: Unpack[DeploymentArguments],
) -> TuneResult:
    """Recommend policy, parameters and capacity for an SLO, with the gain and its uncertainty."""
    with _arguments():
        from kvscope.app.requests import tune_request

        request = tune_request(_parsed(TuneOptions, locals()))
    from kvscope.app.traces import replayable
    from kvscope.app.tune import tune as run

    with _opened(trace, db) as opened:
        prompts = replayable(opened.store, opened.facts)
        return TuneResult(run(opened.facts, prompts, request, LogMonitor()), prompts)


def simulate_fleet(
    trace: Source,
    *,
    slo: str | float,
    percentile: str | float | None = None,
    tpot_slo: Time = None,
    replicas: str | int | Sequence[int] = tuple(range(1, 17)),
    router: Texts = None,
    policy: Texts = "lru",
    capacity: Amount = None,
    capacity_blocks: Amount = None,
    param: Sequence[str] | None = None,
    time_model: Literal["queue", "engine"] | None = None,
    closed_loop: bool = False,
    seeds: int = 3,
    warmup: Share = 0.5,
    on: str | None = None,
    db: str = MEMORY,
    **of: Unpack[ReplicaArguments],
) -> FleetResult:
    """Find the fewest replicas that meet an SLO, and the router in front of them: `kvscope fleet`.

    `kvscope.fleet` is a package, so the function has another name than the command.
    """
    with _arguments():
        from kvscope.app.requests import fleet_request

        request = fleet_request(_parsed(FleetOptions, locals(), ReplicaArguments.__optional_keys__))
    from kvscope.app.fleet import fleet as run
    from kvscope.app.traces import replayable

    with _opened(trace, db) as opened:
        prompts = replayable(opened.store, opened.facts)
        return FleetResult(run(opened.facts, prompts, request, LogMonitor()))


def tune_fleet(trace: Source, **options: Any) -> TuneResult:
    """Return `tune` with `fleet=True`; goes with the next version."""
    return tune(trace, **{**options, "fleet": True})


def tune_tiers(trace: Source, **options: Any) -> TuneResult:
    """Return `tune` with `tiers=True`; goes with the next version."""
    return tune(trace, **{**options, "tiers": True})


def _parsed(
    kind: type[T],
    arguments: Mapping[str, Any],
    known: frozenset[str] = DeploymentArguments.__optional_keys__,
) -> T:
    """Return the options among a function's arguments, those of its deployment included.

    Raises TypeError for an unknown argument, as a call without `**of` does.
    """
    of = arguments["of"]
    if unknown := sorted(of.keys() - known):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    return parsed(kind, {**arguments, **of})


@contextmanager
def _opened(source: Source, db: str) -> Iterator[OpenTrace]:
    """Yield the trace; a store that is opened for it is closed afterwards."""
    if isinstance(source, OpenTrace):
        yield source
        return
    with open_trace(source, db=db) as opened:
        yield opened


@contextmanager
def _arguments() -> Iterator[None]:
    """Name arguments of Python rather than options of the command line in what is refused."""
    try:
        yield
    except UsageError as error:
        where = error.where and error.where.replace("--", "").replace("-", "_")
        remedy = error.remedy and error.remedy.replace("--", "")
        raise UsageError(error.what, where=where, remedy=remedy) from None
