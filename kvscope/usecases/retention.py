"""Find how long blocks should live: hits and memory of every TTL, and prices of providers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from kvscope.app.options import KvDtype, Model, Options, Outputs
from kvscope.app.requests import hit_definition, kv_model
from kvscope.core.errors import InputError
from kvscope.core.hits import HitDefinition
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.trace import Trace
    from kvscope.deployment import models
    from kvscope.retention.prices import Charge
    from kvscope.retention.ttls import CategoryTtl, TtlPoint

RetentionRequest: TypeAlias = tuple[HitDefinition, "models.Model | None"]
TTLS_S = (60.0, 300.0, 600.0, 1800.0, 3600.0, 86400.0)
CURVE_POINTS = 48


class RetentionOptions(Options, frozen=True, kw_only=True):
    """Options of `retention`."""

    model: Model = None
    kv_dtype: KvDtype = None
    outputs: Outputs = "carried"


class Retention(Struct, frozen=True, kw_only=True):
    """Times to live (TTL): hits and memory of each, overall and by category, and prices.

    A `ttl_s` of null means forever. `curve` has more TTLs than `ttls`; `most` is the shortest TTL,
    rounded up, that keeps 90 % of the hits of an infinite one.
    """

    trace: Trace
    model: models.Model | None
    definition: HitDefinition
    ttls: tuple[TtlPoint, ...]
    curve: tuple[TtlPoint, ...]
    most: TtlPoint
    categories: tuple[CategoryTtl, ...]
    prices_date: str
    charges: tuple[Charge, ...]


def retention_request(options: RetentionOptions) -> RetentionRequest:
    """Return the hit definition, and the model for sizes in memory (None: no sizes)."""
    return hit_definition(None, options.outputs, 0.0), kv_model(options.model, options.kv_dtype)


def run(opened: Opened, request: RetentionRequest, monitor: Monitor) -> Retention:
    """Return every TTL's results, and charges; InputError for sessions without a common clock."""
    import numpy as np

    from kvscope.app.traces import replayable
    from kvscope.replay.traffic import traffic
    from kvscope.retention.prices import charges, prices
    from kvscope.retention.ttls import MOST_OF, TtlPoints, rounded_up, ttl_curves, ttls_by_category

    (definition, model), trace = request, opened.trace
    prompts = replayable(opened.stores, trace)
    if np.any(prompts.clock >= 1):
        raise InputError(
            "its sessions have no common clock, so no TTL can be judged",
            where=trace.name,
            remedy="ingest it with --session-arrivals poisson:RATE",
        )
    requests = traffic(prompts, definition)
    names = prompts.categories
    curves = ttl_curves(requests, len(names))
    points = TtlPoints(requests, curves, model)
    longest_s = max(curves.end_s, 1.0)
    shown = [ttl for ttl in TTLS_S if ttl < longest_s]
    grid = np.geomspace(max(longest_s * 1e-4, 0.1), longest_s, CURVE_POINTS)
    return Retention(
        trace=trace,
        model=model,
        definition=definition,
        ttls=tuple(points.at(ttl) for ttl in (*shown, math.inf)),
        curve=tuple(points.at(float(ttl)) for ttl in grid),
        most=points.at(rounded_up(curves.overall.ttl_for(MOST_OF))),
        categories=ttls_by_category(requests, names, curves),
        prices_date=prices().date,
        charges=charges(prompts),
    )


USE_CASE: UseCase[RetentionOptions, RetentionRequest, Retention] = UseCase(
    name="retention",
    title="Retention",
    schema=2,
    options=RetentionOptions,
    check=retention_request,
    run=run,
    table="curve",
    reporting="retention",
    sections=("summary", "categories", "prices"),
)
