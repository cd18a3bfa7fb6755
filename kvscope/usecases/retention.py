"""Find how long blocks should live: hits and memory of every TTL, the best ones, and prices.

With a capacity, TTLs by category are chosen on the first half and replayed on the second.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from kvscope.app import values
from kvscope.app.options import Blocks, KvDtype, Latency, Model, Option, Outputs
from kvscope.app.requests import (
    Capacities,
    hit_definition,
    kv_model,
    latency_profile,
    stated_capacities,
)
from kvscope.core.errors import InputError
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.records import Beside
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.trace import Trace
    from kvscope.deployment import models
    from kvscope.latency.profile import LatencyProfile
    from kvscope.retention.advice import RetentionAdvice
    from kvscope.retention.prices import Charge
    from kvscope.retention.request_fields import RequestField
    from kvscope.retention.ttls import CategoryTtl, TtlPoint

TTLS_S = (60.0, 300.0, 600.0, 1800.0, 3600.0, 86400.0)
CURVE_POINTS = 48


class RetentionOptions(Struct, frozen=True, kw_only=True):
    """What `retention` takes."""

    model: Model = None
    kv_dtype: KvDtype = None
    capacity: Annotated[
        int | None,
        Option(
            "Capacity of the cache that times to live are chosen for, for example 20GiB; needs"
            " --model.",
            "SIZE",
            values.size,
        ),
    ] = None
    capacity_blocks: Annotated[int | None, Blocks("The same in blocks.")] = None
    latency: Latency = None
    outputs: Outputs = "carried"


class RetentionRequest(Struct, frozen=True):
    """For which model, and for a cache of which size, times to live are to be judged.

    Steps of the engine that judges them too take the time of `profile`.
    """

    profile: LatencyProfile
    definition: HitDefinition = standard()
    model: models.Model | None = None
    capacities: Capacities = Capacities()


class Retention(Struct, frozen=True, kw_only=True):
    """Times to live (TTL): what each hits and holds, the best by category, and prices.

    A `ttl_s` of null means forever, or that no capacity was named. `request_fields` are empty where
    LRU is to be kept.
    """

    trace: Trace
    model: models.Model | None
    definition: HitDefinition
    ttls: tuple[TtlPoint, ...]
    curve: tuple[TtlPoint, ...]
    most: TtlPoint
    categories: tuple[CategoryTtl, ...]
    advice: tuple[RetentionAdvice, ...]
    request_fields: tuple[RequestField, ...]
    prices_date: str
    charges: tuple[Charge, ...]

    stated_ttl_s: Beside[float | None]  # None where LRU is to be kept


def retention_request(options: RetentionOptions) -> RetentionRequest:
    """Return what the options of `retention` ask for."""
    sizes = None if options.capacity is None else (options.capacity,)
    blocks = None if options.capacity_blocks is None else (options.capacity_blocks,)
    return RetentionRequest(
        latency_profile(options.latency),
        hit_definition(None, options.outputs, 0.0),
        kv_model(options.model, options.kv_dtype, sizes_named=sizes is not None),
        stated_capacities(sizes, blocks),
    )


def run(opened: Opened, request: RetentionRequest, monitor: Monitor) -> Retention:
    """Return what every TTL gives, which are best, and what providers would charge.

    Raises InputError for a trace whose sessions have no common clock, or whose TTFTs do not
    determine the latency that they were to, and UsageError for a capacity that holds no block.
    """
    import numpy as np

    from kvscope.app.latency import latency_for
    from kvscope.app.traces import replayable
    from kvscope.replay.replay import touch_history
    from kvscope.replay.traffic import traffic
    from kvscope.retention.advice import advise, best_ttls
    from kvscope.retention.choice import rounded_up
    from kvscope.retention.curves import ttl_curves
    from kvscope.retention.prices import charges, prices
    from kvscope.retention.request_fields import request_fields
    from kvscope.retention.ttls import MOST_OF, TtlPoints, best_by_category, stated_ttl

    trace = opened.trace
    prompts = replayable(opened.stores, trace)
    if np.any(prompts.clock >= 1):
        raise InputError(
            "its sessions have no common clock, so no TTL can be judged",
            where=trace.name,
            remedy="ingest it with --session-arrivals poisson:RATE",
        )
    profile = latency_for(trace, request.profile, None, lambda: prompts).profile
    named = request.capacities.in_blocks(request.model, trace.block_size)
    capacity = named[0] if named else None
    requests = traffic(prompts, request.definition)
    history = touch_history(requests)
    names = prompts.categories
    curves = ttl_curves(requests, len(names), history.segments)
    ttl_s = None if capacity is None else best_ttls(requests, len(names), capacity)
    points = TtlPoints(requests, curves, request.model)
    longest_s = max(curves.end_s, 1.0)
    shown = [ttl for ttl in TTLS_S if ttl < longest_s]
    grid = np.geomspace(max(longest_s * 1e-4, 0.1), longest_s, CURVE_POINTS)
    categories = best_by_category(requests, names, curves, ttl_s)
    advice = (
        ()
        if capacity is None
        else advise(
            prompts,
            requests,
            history,
            request.definition,
            capacity,
            profile,
            None if request.model is None else request.model.bytes_for(capacity * trace.block_size),
        )
    )
    stated_ttl_s = stated_ttl(advice, categories)
    return Retention(
        trace=trace,
        model=request.model,
        definition=request.definition,
        ttls=tuple(points.at(ttl) for ttl in (*shown, math.inf)),
        curve=tuple(points.at(float(ttl)) for ttl in grid),
        most=points.at(rounded_up(curves.overall.ttl_for(MOST_OF))),
        categories=categories,
        advice=advice,
        request_fields=() if stated_ttl_s is None else request_fields(stated_ttl_s),
        prices_date=prices().date,
        charges=charges(prompts),
        stated_ttl_s=stated_ttl_s,
    )


USE_CASE: UseCase[RetentionOptions, RetentionRequest, Retention] = UseCase(
    name="retention",
    title="Retention",
    help=__doc__,
    options=RetentionOptions,
    check=retention_request,
    run=run,
    table="curve",
    reporting="retention",
    sections=("summary", "categories", "prices", "requests"),
)
