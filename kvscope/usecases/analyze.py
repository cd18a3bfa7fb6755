"""Characterize a trace: what is reused, what caching can give, how large it must be.

A path is ingested first if the store does not have it yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from kvscope.app import options as opt
from kvscope.app.deployment import resolved_deployment, with_any_latency
from kvscope.app.gates import Figures, Known
from kvscope.app.requests import Capacities, hit_definition, kv_model, latency_profile
from kvscope.core import memory, units
from kvscope.core.errors import UsageError
from kvscope.core.files import space_in
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.records import Inline
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.store.folder import is_in_dataset
from kvscope.usecases.base import Opened, UseCase
from kvscope.usecases.explain import (
    ExplainOptions,
    ExplainRequest,
    explain,
    explain_request,
    read_evidence,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvscope.app.monitor import Monitor
    from kvscope.characterize.distributions import Summary
    from kvscope.characterize.summary import Characterization, Step
    from kvscope.core.trace import PromptPaths, Trace
    from kvscope.replay.caching import Caching, CurvePoint, Landmark, LayoutCapacity
    from kvscope.replay.findings import CauseTotal, PoolHits
    from kvscope.replay.path_facts import PathFacts
    from kvscope.store.db import Store
    from kvscope.store.file import Stores

_RETENTION = 1024  # tokens, between vLLM's default of 0 and all windows


class AnalyzeOptions(opt.DeploymentOptions, frozen=True, kw_only=True):
    """Options of `analyze`."""

    beside_pool: ClassVar[bool] = True
    from_: float | None = opt.option(
        "Only requests from this time after the trace's start on, as a trace of their own.",
        "TIME",
        units.parse_duration,
        flags=("--from",),
    )
    until: opt.Until = None
    memory: int | None = opt.Size(
        "Of a dataset: memory that the analysis may take, for example 8GiB.",
        default="half of what is free",
    )
    hbm: opt.Hbm = None
    capacity_blocks: opt.CapacitiesBlocks = None
    capacity: opt.Capacities = None
    compat: opt.Compat = None
    outputs: opt.Outputs = "carried"
    warmup: opt.Warmup = 0.0


class AnalyzeRequest(Struct, frozen=True):
    """The request of an analysis; only trace requests from `from_s` to `until_s` are analyzed.

    For a dataset, `memory_bytes` limits memory (None: half of what is free). With a deployment,
    `replayed` is the request to replay LRU in its pools (None for a warm-up or `compat`).
    """

    definition: HitDefinition = standard()
    model: Model | None = None
    hbm_bytes: int | None = None
    capacities: Capacities = Capacities()
    deployment: ResolvedDeployment | None = None
    from_s: float | None = None
    until_s: float | None = None
    memory_bytes: int | None = None
    replayed: ExplainRequest | None = None


class RetentionIdeal(Struct, frozen=True):
    """A hybrid model's hit rate without eviction; `interval_tokens` None keeps all windows."""

    interval_tokens: int | None
    token_hit_rate: float


class Analysis(Struct, frozen=True, kw_only=True):
    """The result of `kvscope analyze`; without block hashes, fields on reuse are null or empty.

    `pool` has LRU's hits in the deployment's pools; `caching` ignores running requests. `layouts`
    are other start times of sessions without a common clock, each with LRU's capacity for 90 % of
    the ideal hits. `retention` has a hybrid model's hit rates without eviction. `causes` are those
    of misses in an infinite cache, if the trace states which messages repeat.
    """

    trace: Trace
    characterization: Inline[Characterization]
    notes: tuple[str, ...]
    model: Model | None
    hbm_bytes: int | None
    deployment: ResolvedDeployment | None = None
    pool: PoolHits | None = None
    caching: Inline[Caching | None]
    layouts: tuple[LayoutCapacity, ...] = ()
    retention: tuple[RetentionIdeal, ...] = ()
    causes: tuple[CauseTotal, ...] = ()

    @property
    def present_blocks(self) -> int | None:
        """The blocks of the deployment's pools, else those that fit into the HBM, else None."""
        block_size, where = self.trace.block_size, self.deployment
        if where is not None:
            return where.pool.in_blocks_of(block_size).blocks * where.engines
        if self.model is None or not self.hbm_bytes:
            return None
        return self.model.blocks_in(self.hbm_bytes, block_size)

    @property
    def engine_replayed(self) -> bool:
        """Whether `pool` includes the blocks of running requests (vLLM, or SGLang's tree)."""
        caching = self.caching
        return self.pool is not None and caching is not None and caching.definition == standard()

    def exceeds(self, share_of_ideal: float) -> bool:
        """Return whether the pool reaches `share_of_ideal` in fewer blocks than on LRU's curve.

        The share (0 to 1) is of the ideal hit rate. If so, a report must not state the curve's
        capacity as necessary. False without a pool, and for unknown hits.
        """
        caching, now, blocks = self.caching, self.present_rate, self.present_blocks
        if caching is None or now is None or blocks is None:
            return False
        target = share_of_ideal * caching.ideal
        return now >= target and blocks < caching.lru.capacity_for(target)

    @property
    def present_rate(self) -> float | None:
        """LRU's hit rate with `present_blocks`, None if these or the hits are unknown.

        By token in the replayed `pool`; else of the curve, in the weight of its hit definition.
        """
        if self.caching is None or not (blocks := self.present_blocks):
            return None
        return self.pool.token_hit_rate if self.pool else float(self.caching.lru.rate(blocks))


def analyze_request(options: AnalyzeOptions) -> AnalyzeRequest:
    """Return the request in the options of `analyze`."""
    if options.until is not None:
        from kvscope.ingest.time_range import check_range  # late: loads NumPy

        check_range(options.from_, options.until)
    request = AnalyzeRequest(
        hit_definition(options.compat, options.outputs, options.warmup),
        capacities=Capacities(options.capacity_blocks or (), options.capacity or ()),
        from_s=options.from_,
        until_s=options.until,
        memory_bytes=options.memory,
    )
    options = with_any_latency(options)
    where = resolved_deployment(options)
    if where is None:
        latency_profile(options.latency)  # only a deployment uses it; a wrong name is refused
        kv = kv_model(options.model, options.kv_dtype)
        if kv is None and (options.hbm or options.capacity):
            option = "--hbm" if options.hbm else "--capacity"
            raise UsageError("needs a model", where=option, remedy="name one with --model")
        return replace(request, model=kv, hbm_bytes=options.hbm)
    if options.hbm is not None:
        what = "the deployment (--gpu) has a pool of its own"
        raise UsageError(what, where="--hbm", remedy="leave --hbm out")
    replayed = None
    if request.definition == standard(outputs=options.outputs):
        stated = {name: getattr(options, name) for name in opt.DeploymentOptions.__struct_fields__}
        replayed = explain_request(ExplainOptions(**stated, outputs=options.outputs))
    return replace(
        request,
        model=where.model,
        hbm_bytes=where.pool_bytes,
        deployment=where.as_cache,
        replayed=replayed,
    )


class StartedCaching:
    """LRU's hits by capacity (future `caching`), in a thread; the trace need not be stored yet."""

    def __init__(
        self, paths: PromptPaths | PathFacts, request: AnalyzeRequest | None = None
    ) -> None:
        from kvscope.core.background import in_background
        from kvscope.core.trace import PromptPaths
        from kvscope.replay.caching import caching
        from kvscope.replay.path_facts import TracePaths

        self.paths = TracePaths(paths) if isinstance(paths, PromptPaths) else paths
        self.request = request or AnalyzeRequest()
        asked, block_size = self.request, self.paths.block_size

        def compute() -> Caching:
            """Return LRU's hits by capacity; UsageError for a capacity that holds no block."""
            named = asked.capacities.in_blocks(asked.model, block_size)
            return caching(self.paths, asked.definition, named)

        self.caching = in_background(compute)


def analyze(
    stores: Stores,
    trace: Trace,
    request: AnalyzeRequest | None = None,
    *,
    started: StartedCaching | None = None,
    step: Step | None = None,
    monitor: Monitor | None = None,
) -> Analysis:
    """Characterize `trace` and compute LRU's curve over it; a dataset's shards one at a time.

    `started`, if given, is that curve already in progress, with a request of its own: `request` is
    ignored. `step` is called with each step's name; `monitor` gets the number of finished shards.
    Raises UsageError for a capacity that holds no block, and for less memory than a dataset needs.
    """
    from kvscope.app.latency import latency_for
    from kvscope.app.traces import dataset_of, replayable
    from kvscope.characterize.summary import start_characterization
    from kvscope.replay.footprint import analysis_bytes
    from kvscope.replay.path_facts import TracePaths
    from kvscope.store.traces import load_prompts

    work, request = None, started.request if started else request or AnalyzeRequest()
    request.capacities.in_blocks(request.model, trace.block_size)  # what is refused comes first
    deployment = request.deployment
    if deployment is not None:  # with the latency for this trace, as other commands take it
        prompts = partial(replayable, stores, trace)
        deployment = latency_for(trace, deployment.latency, deployment, prompts).deployment
    with stores.reading() as store:
        if started is None and trace.has_hashes:
            dataset = dataset_of(store, trace)
            if dataset is None:
                _check_memory(store, trace.name, request)
                memory.require(
                    analysis_bytes(trace),
                    f"an analysis of {trace.name!r}",
                    "take a part of it with --from and --until, or more memory",
                )
                paths: PathFacts = TracePaths(load_prompts(store, trace))
            else:
                work, free = dataset.work, memory.available_bytes()
                given = request.memory_bytes or (free[0] // 2 if free else 4 * units.GIB)
                budget = dataset.analysis_budget(given)
                store.limit_memory(budget.store_bytes, work)
                paths = replace(dataset.paths(), runs_at_once=budget.runs_at_once, progress=monitor)
            started = StartedCaching(paths, request)
        count_deciles = started.paths.deciles if started else None
        with space_for_analysis(work):
            characterization = start_characterization(
                store, trace, count_deciles, step=step, work=work
            )
    with space_for_analysis(work):
        characterized = characterization()
        cached = started.caching.result() if started else None
    analysis = Analysis(
        trace=trace,
        notes=trace.notes,
        model=None,
        hbm_bytes=None,
        characterization=characterized,
        caching=cached,
        layouts=tuple(_layouts(stores, trace, started, request.definition)),
        retention=tuple(_retention(stores, trace, request)),
        causes=() if work is not None else _causes(stores, trace),
    )
    pool = None
    if request.replayed is not None and started is not None and work is None:
        pool = pool_hits(stores, trace, request.replayed, monitor)
    return resized(analysis, request.model, request.hbm_bytes, deployment, pool)


def pool_hits(
    stores: Stores, trace: Trace, request: ExplainRequest, monitor: Monitor | None = None
) -> PoolHits | None:
    """Return LRU's replayed hits in a deployment's pools; None, noted to `monitor`, if too big."""
    from kvscope.app.monitor import Monitor
    from kvscope.app.traces import replayable
    from kvscope.replay.findings import PoolHits

    monitor = monitor or Monitor()
    with monitor.steps("replaying the deployment's pool"):
        try:
            prompts = replayable(stores, trace)
        except memory.OutOfMemoryError as error:  # the analysis itself fitted
            monitor.note(f"the deployment's pool counts as idle: {error}")
            return None
        evidence = read_evidence(stores, trace, request)
        explained = explain(trace, prompts, request, Monitor(), evidence)
    return PoolHits(
        explained.hit_tokens / explained.input_tokens,
        explained.causes,
        explained.workers,
        explained.router,
        explained.attribution.hit_tokens,
    )


def _causes(stores: Stores, trace: Trace) -> tuple[CauseTotal, ...]:
    """Return the causes of misses in an infinite cache, if the trace states which messages repeat.

    Empty if the prompts do not fit into memory, though the analysis itself did.
    """
    from kvscope.app.traces import replayable
    from kvscope.replay.attribution import attribute, lru_cache_lookups
    from kvscope.replay.findings import cause_totals
    from kvscope.store.traces import load_repeated_tokens, load_tenants

    with stores.reading() as store:
        repeated_tokens = load_repeated_tokens(store, trace)
        if repeated_tokens is None:
            return ()
        tenants = load_tenants(store, trace)
    try:
        prompts, definition = replayable(stores, trace), standard()
    except memory.OutOfMemoryError:
        return ()
    cached = lru_cache_lookups(prompts, definition, None)
    causes = attribute(
        prompts, definition, cached, tenants=tenants, repeated_tokens=repeated_tokens
    )
    return cause_totals(causes)


def space_for_analysis(work: Path | None) -> AbstractContextManager[None]:
    """Return a context that turns an error for lack of disk space into a DiskFullError.

    `work` is the folder that a dataset's analysis writes to; for None (no dataset) nothing is done.
    """
    return nullcontext() if work is None else space_in(work, "the dataset is as it was")


def _retention(stores: Stores, trace: Trace, request: AnalyzeRequest) -> Iterator[RetentionIdeal]:
    """Yield a hybrid model's hit rates on vLLM without eviction, by retention interval."""
    where = request.deployment
    groups = where.kv_groups_for(trace.block_size) if where else None
    counts_all = trace.has_hashes and replace(request.definition, warmup=0.0) == standard()
    if where is None or groups is None or not counts_all or groups.undivided(trace.block_size):
        return
    from kvscope.app.traces import replayable
    from kvscope.replay.curve import first_counted
    from kvscope.vllm_sim import hits_without_eviction

    prompts = replayable(stores, trace)
    first = first_counted(prompts, request.definition)
    tokens = int(prompts.input_tokens[first:].sum())
    for interval in (0, _RETENTION, math.inf) if groups.sparse else (0,):
        kept = groups.retaining(interval)
        hits = hits_without_eviction(prompts, kept, where.engine)[first:]
        yield RetentionIdeal(kept.retention_tokens, int(hits.sum()) * prompts.block_size / tokens)


def _layouts(
    stores: Stores, trace: Trace, started: StartedCaching | None, definition: HitDefinition
) -> Iterator[LayoutCapacity]:
    """Yield LRU's capacity for other start times of sessions that have no common clock."""
    import numpy as np

    from kvscope.ingest.build import NO_COMMON_CLOCK
    from kvscope.ingest.clocks import other_starts, placed
    from kvscope.replay.caching import LayoutCapacity

    if started is None or not any(note.startswith(NO_COMMON_CLOCK) for note in trace.notes):
        return
    with stores.reading() as store:
        timed = store.columns("ingest/prompts", trace_id=trace.trace_id)
    arrival_s, clock = timed["arrival_s"], timed["clock"]
    for starts in other_starts(arrival_s, clock):
        begun_s = placed(arrival_s, clock, starts.sessions_per_s, starts.seed)
        begun = started.paths.in_order(np.argsort(begun_s, kind="stable"))
        curve = begun.follow([definition]).curve(definition)
        needed = curve.capacity_for(0.9 * curve.ideal)
        yield LayoutCapacity(**asdict(starts), capacity_blocks=needed)


def _check_memory(store: Store, name: str, request: AnalyzeRequest) -> None:
    """Raise UsageError for a memory limit if the store belongs to no dataset."""
    if request.memory_bytes is not None and not is_in_dataset(store.path):
        raise UsageError(
            f"{name!r} is no dataset, and is analyzed in memory",
            where="--memory",
            remedy="leave it out, or ingest its files with --into DIR",
        )


def in_range(stores: Stores, trace: Trace, request: AnalyzeRequest, monitor: Monitor) -> Trace:
    """Return `trace`, or its time range stated in `request`; UsageError for a dataset's range."""
    from kvscope.app.traces import dataset_of, load_range

    if request.from_s is None and request.until_s is None:
        return trace
    with stores.reading() as store:
        if dataset_of(store, trace) is not None:
            raise UsageError(
                "a dataset is analyzed as a whole",
                where="--from, --until",
                remedy="ingest the files of that time as a dataset, or as one trace",
            )
    return load_range(stores, trace, request.from_s, request.until_s, monitor)


def run(opened: Opened, request: AnalyzeRequest, monitor: Monitor) -> Analysis:
    """Ingest a trace if the store lacks it, and analyze it."""
    from kvscope.replay.path_facts import TracePaths

    stores, load = opened.stores, opened.load
    with stores.reading() as store:
        _check_memory(store, opened.source or "the trace", request)
    for doubt in request.deployment.engine_doubts if request.deployment else ():
        monitor.note(doubt)
    if load is None or request.from_s is not None or request.until_s is not None:
        trace = in_range(stores, opened.trace, request, monitor)
        return analyze(stores, trace, request, monitor=monitor)
    started: list[StartedCaching] = []
    trace = load(
        lambda new: started.append(
            StartedCaching(TracePaths(new.paths(), new.reuse.touched), request)
        )
    )
    return analyze(stores, trace, request, started=started[0] if started else None, monitor=monitor)


def resized(
    analysis: Analysis,
    model: Model | None,
    hbm_bytes: int | None,
    deployment: ResolvedDeployment | None = None,
    pool: PoolHits | None = None,
) -> Analysis:
    """Return an analysis made without a model, with sizes for this model added.

    With a deployment, `hbm_bytes` is the size of its pool, and `pool` has LRU's hits there.
    """
    known = analysis.caching
    return replace(
        analysis,
        model=model,
        hbm_bytes=hbm_bytes,
        deployment=deployment,
        pool=pool,
        characterization=_sized(analysis.characterization, model, hbm_bytes),
        caching=known and _sized_caching(known, model, hbm_bytes, deployment),
    )


def _sized_caching(
    caching: Caching,
    model: Model | None,
    hbm_bytes: int | None,
    deployment: ResolvedDeployment | None,
) -> Caching:
    """Return `caching`, with bytes (by the model) and, at landmarks, GPUs and their price."""
    from kvscope.replay.caching import Landmark

    def point(known: CurvePoint) -> CurvePoint:
        size = model.bytes_for(known.capacity_tokens) if model else None
        multiple = size / hbm_bytes if size is not None and hbm_bytes else None
        return replace(known, capacity_bytes=size, hbm_multiple=multiple)

    def landmark(known: Landmark) -> Landmark:
        gpus = deployment.gpus_for(known.point.capacity_tokens) if deployment else None
        price = None if deployment is None or gpus is None else deployment.price_of(gpus)
        return Landmark(known.share_of_ideal, point(known.point), gpus, price)

    return replace(
        caching,
        curve=tuple(map(point, caching.curve)),
        landmarks=tuple(map(landmark, caching.landmarks)),
        asked=tuple(map(point, caching.asked)),
    )


def _sized(facts: Characterization, model: Model | None, hbm_bytes: int | None) -> Characterization:
    """Return the facts with sizes in bytes and multiples of the HBM; unchanged without a model."""
    import dataclasses

    from kvscope.characterize.distributions import Summary

    if model is None:
        return facts

    def times(summary: Summary, factor: float) -> Summary:
        return Summary(*(value * factor for value in astuple(summary)))

    sizes = []
    for size in facts.request_sizes:
        in_bytes = times(size.tokens, model.bytes_per_token)
        multiple = times(in_bytes, 1 / hbm_bytes) if hbm_bytes else None
        sizes.append(replace(size, bytes=in_bytes, hbm_multiple=multiple))
    alive, block_size = facts.working_set, facts.trace.block_size
    if alive is not None:
        peak = model.bytes_for(alive.peak_blocks * block_size)
        alive = replace(
            alive,
            peak_bytes=peak,
            mean_bytes=alive.mean_blocks * block_size * model.bytes_per_token,
            p99_bytes=model.bytes_for(alive.p99_blocks * block_size),
            peak_hbm_multiple=peak / hbm_bytes if hbm_bytes else None,
        )
    return dataclasses.replace(facts, request_sizes=tuple(sizes), working_set=alive)


def known_figures(request: AnalyzeRequest) -> Known:
    """Return the names of figures: an infinite cache's and, if one capacity is named, LRU's."""
    if len(request.capacities.blocks) + len(request.capacities.sizes_bytes) == 1:
        return Known(("hit-rate", "lru.hit-rate"))
    missing = ("needs one capacity", "name one with --capacity-blocks or --capacity")
    return Known(("hit-rate",), missing={"lru.hit-rate": missing})


def figures(analysis: Analysis) -> Figures:
    """Return the headline's hit rates: of an infinite cache and, at one named capacity, of LRU."""
    caching = analysis.caching
    if caching is None:
        return {}
    known = {"hit-rate": caching.ideal}
    if len(caching.asked) == 1:
        known["lru.hit-rate"] = caching.rate(caching.asked[0])
    return known


USE_CASE: UseCase[AnalyzeOptions, AnalyzeRequest, Analysis] = UseCase(
    name="analyze",
    title="kvscope",
    options=AnalyzeOptions,
    check=analyze_request,
    run=run,
    table="curve",
    reporting="overview",
    sections=(
        *("summary", "capacity", "misses", "definitions", "categories", "contribution"),
        *(
            "last-touch",
            "skew",
            "reuse-gaps",
            "lifetimes",
            "stability",
            "where-in-the-prompt",
            "working-set",
        ),
        *("size-of-requests", "requests", "over-time", "conversations"),
    ),
    known=known_figures,
    figures=figures,
    remembers=True,
)
