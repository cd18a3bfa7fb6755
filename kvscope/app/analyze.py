"""Analyze a trace: what it consists of, what caching can give, and how large the cache must be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, astuple, replace
from numpy.typing import NDArray

from kvscope.app.latency import latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.options import AS_STORED, Reading
from kvscope.app.requests import AnalyzeRequest
from kvscope.app.traces import dataset_of, load_range, load_trace, replayable
from kvscope.characterize.distributions import Summary
from kvscope.characterize.summary import Characterization, Step, start_characterization
from kvscope.core import memory
from kvscope.core.background import in_background
from kvscope.core.errors import UsageError
from kvscope.core.files import space_in
from kvscope.core.hits import HitDefinition, side_by_side, standard
from kvscope.core.trace import PromptPaths, Trace
from kvscope.core.units import GIB
from kvscope.datasets.place import is_in_dataset
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.ingest.build import NO_COMMON_CLOCK
from kvscope.ingest.clocks import SessionStarts, other_starts, placed
from kvscope.replay.curve import HitCurve, first_counted
from kvscope.replay.footprint import analysis_bytes
from kvscope.replay.misses import MissReasons, at_capacity
from kvscope.replay.path_facts import PathFacts, TracePaths
from kvscope.store.db import Store
from kvscope.store.file import Stores
from kvscope.store.traces import load_prompts

LANDMARKS = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
CURVE_POINTS = 48


_RETENTION = 1024  # tokens, between vLLM's default of 0 and all windows


class HitRate(Struct, frozen=True):
    """One definition's row: its hit rate with an infinite cache."""

    definition: str
    weight: str
    window: str
    partial: bool
    last_token_rule: bool
    outputs: str
    flat: bool
    ideal: float


class CurvePoint(Struct, frozen=True):
    """What LRU hits at one capacity. Sizes that need a model or an HBM size are None without."""

    capacity_blocks: int
    capacity_tokens: int
    capacity_bytes: int | None
    hbm_multiple: float | None
    token_hit_rate: float
    block_hit_rate: float


class Landmark(Struct, frozen=True):
    """The least capacity with which LRU reaches a share of the ideal hit rate.

    With a deployment, `gpus` have the pools that hold it, at `price_hour` where a GPU has a price.
    """

    share_of_ideal: float
    point: CurvePoint
    gpus: int | None = None
    price_hour: float | None = None


class Caching(Struct, frozen=True):
    """What caching gives: LRU at every capacity, under `definition`.

    `lru` is the exact curve in the headline's weight, `lru_by_token` that of `misses_definition`.
    """

    definition: HitDefinition
    ideal: float
    hit_rates: tuple[HitRate, ...]
    curve: tuple[CurvePoint, ...]
    landmarks: tuple[Landmark, ...]
    asked: tuple[CurvePoint, ...]
    misses: tuple[MissReasons, ...]
    misses_definition: HitDefinition
    lru: HitCurve
    lru_by_token: HitCurve

    def misses_at(self, capacity_blocks: int) -> MissReasons:
        """Return what became of the input tokens under LRU at any capacity, exactly."""
        return at_capacity(self.misses[-1], self.lru_by_token, capacity_blocks)

    def rate(self, point: CurvePoint) -> float:
        """Return the hit rate at `point` in the weight of the headline."""
        return point.block_hit_rate if self.definition.weight == "block" else point.token_hit_rate


class LayoutCapacity(SessionStarts, frozen=True):
    """What LRU needs for 90 % of the ideal hits where sessions begin otherwise."""

    capacity_blocks: int


class RetentionIdeal(Struct, frozen=True):
    """What an ample pool of a hybrid model hits; `interval_tokens` None keeps all windows."""

    interval_tokens: int | None
    token_hit_rate: float


class Analysis(Struct, frozen=True):
    """A trace characterized; `caching` is None for a trace of lengths.

    `layouts` are other starts of sessions without a common clock, `retention` what the windows of a
    hybrid model let hit, by vLLM's `prefix_cache_retention_interval`.
    """

    trace: Trace
    model: Model | None
    hbm_bytes: int | None
    characterization: Characterization
    caching: Caching | None
    deployment: ResolvedDeployment | None = None
    layouts: tuple[LayoutCapacity, ...] = ()
    retention: tuple[RetentionIdeal, ...] = ()

    @property
    def present_blocks(self) -> int | None:
        """The blocks of the deployment's pools, or that fit into the HBM; None without both."""
        block_size, where = self.trace.block_size, self.deployment
        if where is not None:
            return where.pool.in_blocks_of(block_size).blocks * where.engines
        if self.model is None or not self.hbm_bytes:
            return None
        return self.model.blocks_in(self.hbm_bytes, block_size)


class StartedCaching:
    """The part of an analysis that needs only a trace's paths, under way in a thread of its own.

    So it can run while the trace is still being stored. `caching` is its future.
    """

    def __init__(
        self, paths: PromptPaths | PathFacts, request: AnalyzeRequest | None = None
    ) -> None:
        self.paths = TracePaths(paths) if isinstance(paths, PromptPaths) else paths
        self.request = request or AnalyzeRequest()
        self.caching = in_background(caching, self.paths, self.request)


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

    What was `started` keeps the request that it was started with. `step` is called with the name of
    each step, as in `characterize`; `monitor` sees how many shards are done. Raises UsageError for
    a capacity that holds no block, and for less memory than a dataset takes.
    """
    work, request = None, started.request if started else request or AnalyzeRequest()
    request.capacities.in_blocks(request.model, trace.block_size)  # what is refused comes first
    deployment = _timed(stores, trace, request.deployment)
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
                given = request.memory_bytes or (free[0] // 2 if free else 4 * GIB)
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
    return Analysis(
        trace=trace,
        model=request.model,
        hbm_bytes=request.hbm_bytes,
        characterization=_sized(characterized, request),
        caching=cached,
        layouts=tuple(_layouts(stores, trace, started.paths, request.definition))
        if started
        else (),
        retention=tuple(_retention(stores, trace, request)),
        deployment=deployment,
    )


def space_for_analysis(work: Path | None) -> AbstractContextManager[None]:
    """Return a context that raises DiskFullError where a dataset's folder has too little space."""
    return nullcontext() if work is None else space_in(work, "the dataset is as it was")


def _timed(
    stores: Stores, trace: Trace, deployment: ResolvedDeployment | None
) -> ResolvedDeployment | None:
    """Return a deployment with the latency for this trace, as other commands take it."""
    if deployment is None:
        return None
    latency = latency_for(trace, deployment.latency, deployment, partial(replayable, stores, trace))
    return latency.deployment


def _retention(stores: Stores, trace: Trace, request: AnalyzeRequest) -> Iterator[RetentionIdeal]:
    """Yield what the deployment's vLLM would hit without eviction, where its model has windows."""
    where = request.deployment
    groups = where.kv_groups_for(trace.block_size) if where else None
    if groups is None or not trace.has_hashes or groups.undivided(trace.block_size):
        return
    if replace(request.definition, warmup=0.0) != standard():
        return
    from kvscope.vllm_sim import hits_without_eviction  # late: few analyses replay an engine

    prompts = replayable(stores, trace)
    first = first_counted(prompts, request.definition)
    tokens = int(prompts.input_tokens[first:].sum())
    for interval in (0, _RETENTION, math.inf) if groups.sparse else (0,):
        kept = groups.retaining(interval)
        hits = hits_without_eviction(prompts, kept)[first:]
        rate = int(hits.sum()) * prompts.block_size / tokens
        yield RetentionIdeal(kept.retention_tokens, rate)


def _layouts(
    stores: Stores, trace: Trace, paths: PathFacts, definition: HitDefinition
) -> Iterator[LayoutCapacity]:
    """Yield what LRU needs where sessions without a common clock begin otherwise."""
    if not any(note.startswith(NO_COMMON_CLOCK) for note in trace.notes):
        return
    with stores.reading() as store:
        timed = store.columns("ingest/prompts", trace_id=trace.trace_id)
    arrival_s, clock = timed["arrival_s"], timed["clock"]
    for starts in other_starts(arrival_s, clock):
        begun_s = placed(arrival_s, clock, starts.sessions_per_s, starts.seed)
        begun = paths.in_order(np.argsort(begun_s, kind="stable"))
        curve = begun.follow([definition]).curve(definition)
        needed = curve.capacity_for(0.9 * curve.ideal)
        yield LayoutCapacity(**asdict(starts), capacity_blocks=needed)


def _check_memory(store: Store, name: str, request: AnalyzeRequest) -> None:
    """Raise UsageError for a limit of memory where a store's traces are no dataset."""
    if request.memory_bytes is not None and not is_in_dataset(store.path):
        raise UsageError(
            f"{name!r} is no dataset, and is analyzed in memory",
            where="--memory",
            remedy="leave it out, or ingest its files with --into DIR",
        )


def in_range(stores: Stores, trace: Trace, request: AnalyzeRequest, monitor: Monitor) -> Trace:
    """Return the trace of the requests that `request` is about: this one, or a range of it."""
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


def analyze_source(
    stores: Stores,
    source: str | None,
    request: AnalyzeRequest,
    monitor: Monitor,
    reading: Reading = AS_STORED,
) -> Analysis:
    """Ingest `source` if the store lacks it, and analyze it.

    LRU's curve of a new trace is computed while the trace is being stored.
    """
    with stores.reading() as store:
        _check_memory(store, source or "the trace", request)
    for doubt in request.deployment.engine_doubts if request.deployment else ():
        monitor.note(doubt)
    if request.from_s is not None or request.until_s is not None:
        trace = load_trace(stores, source, monitor, reading)
        return analyze(stores, in_range(stores, trace, request, monitor), request)
    started: list[StartedCaching] = []
    trace = load_trace(
        stores,
        source,
        monitor,
        reading,
        lambda new: started.append(
            StartedCaching(TracePaths(new.paths(), new.reuse.touched), request)
        ),
    )
    return analyze(stores, trace, request, started=started[0] if started else None, monitor=monitor)


def resized(
    analysis: Analysis,
    model: Model | None,
    hbm_bytes: int | None,
    deployment: ResolvedDeployment | None = None,
) -> Analysis:
    """Return an analysis that was made without a model, with all sizes by this model.

    With a deployment, `hbm_bytes` is the size of its pool.
    """
    request = AnalyzeRequest(model=model, hbm_bytes=hbm_bytes)
    block_size = analysis.trace.block_size

    def sized(point: CurvePoint) -> CurvePoint:
        return _point(
            block_size, request, point.capacity_blocks, point.token_hit_rate, point.block_hit_rate
        )

    known = analysis.caching
    return replace(
        analysis,
        model=model,
        hbm_bytes=hbm_bytes,
        deployment=deployment,
        characterization=_sized(analysis.characterization, request),
        caching=known
        and replace(
            known,
            curve=tuple(map(sized, known.curve)),
            landmarks=tuple(
                _landmark(mark.share_of_ideal, sized(mark.point), deployment)
                for mark in known.landmarks
            ),
            asked=tuple(map(sized, known.asked)),
        ),
    )


def _sized(facts: Characterization, request: AnalyzeRequest) -> Characterization:
    """Return the facts with sizes in bytes, where a model is named."""
    model, hbm_bytes = request.model, request.hbm_bytes
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


def caching(paths: PathFacts, request: AnalyzeRequest) -> Caching:
    """Return LRU's curve, the definitions side by side, and why tokens missed at the landmarks."""
    definition, block_size = request.definition, paths.block_size
    named = request.capacities.in_blocks(request.model, block_size)
    # Why tokens missed is told of whole prompts of the whole trace, whatever is counted elsewhere.
    explained = standard(outputs=definition.outputs)
    compared = side_by_side(definition)
    followed = paths.follow([definition, explained], compared)

    by_token = followed.curve(replace(definition, weight="token"))
    by_block = followed.curve(replace(definition, weight="block"))
    headline = by_block if definition.weight == "block" else by_token

    def points(capacities: NDArray[np.int64]) -> tuple[CurvePoint, ...]:
        rates = zip(capacities, by_token.rate(capacities), by_block.rate(capacities), strict=True)
        return tuple(_point(block_size, request, int(c), float(t), float(b)) for c, t, b in rates)

    at = [headline.capacity_for(share * headline.ideal) for share in LANDMARKS]
    largest = max(int(headline.knots[-1]), 1)
    grid = np.unique(np.geomspace(1, largest, CURVE_POINTS).round().astype(np.int64))
    return Caching(
        definition=definition,
        ideal=headline.ideal,
        hit_rates=tuple(_hit_rate(each, followed.ideal_rate(each)) for each in compared),
        curve=points(grid),
        landmarks=tuple(
            _landmark(share, point, request.deployment)
            for share, point in zip(LANDMARKS, points(np.array(at)), strict=True)
        ),
        asked=points(np.array(named, dtype=np.int64)),
        misses=followed.misses(explained, sorted({*at, *named})),
        misses_definition=explained,
        lru=headline,
        lru_by_token=by_token if definition == explained else followed.curve(explained),
    )


def _landmark(share: float, point: CurvePoint, deployment: ResolvedDeployment | None) -> Landmark:
    if deployment is None:
        return Landmark(share, point)
    gpus = deployment.gpus_for(point.capacity_tokens)
    return Landmark(share, point, gpus, deployment.price_of(gpus))


def _hit_rate(definition: HitDefinition, ideal: float) -> HitRate:
    return HitRate(
        definition=definition.name,
        weight=definition.weight,
        window="whole" if not definition.warmup else f"last {1 - definition.warmup:.0%}",
        partial=definition.partial,
        last_token_rule=definition.last_token_rule,
        outputs=definition.outputs,
        flat=definition.flat,
        ideal=ideal,
    )


def _point(
    block_size: int, request: AnalyzeRequest, capacity: int, by_token: float, by_block: float
) -> CurvePoint:
    tokens = capacity * block_size
    size = request.model.bytes_for(tokens) if request.model else None
    return CurvePoint(
        capacity_blocks=capacity,
        capacity_tokens=tokens,
        capacity_bytes=size,
        hbm_multiple=size / request.hbm_bytes if size is not None and request.hbm_bytes else None,
        token_hit_rate=by_token,
        block_hit_rate=by_block,
    )
