"""How much figures of a trace vary by chance: their spread over eighths of its conversations.

The eighths are random, or consecutive in time, which also shows bursts and waves.

Source: K. M. Wolter, Introduction to Variance Estimation, 2nd ed., chapter 2 (random groups).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from kvscope.core.trace import Trace
from kvscope.ingest.build import build
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.base import ReadOptions, Records, Rejects
from kvscope.ingest.formats.exporter import as_traced
from kvscope.ingest.pipeline import Origin, write
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.file import Stores

GROUPS = 8
LEAST_CONVERSATIONS = 2 * GROUPS
MOST_REQUESTS = 200_000  # figures of more hardly vary
_QUANTILE = 4.4  # of Student's t, 14 degrees of freedom: 99 % that none of 14 figures is beyond


def random_groups(stores: Stores, trace: Trace, *, in_time: bool) -> Iterator[tuple[Store, Trace]]:
    """Yield eighths of a trace's conversations, each as a trace in a store in memory.

    `in_time` groups by when conversations begin, instead of at random. Yields nothing for a trace
    with few conversations or very many requests.
    """
    if trace.requests > MOST_REQUESTS:
        return
    with stores.reading() as store:
        columns = store.columns("ingest/prompts", trace_id=trace.trace_id)
        conversation, arrival_s = columns["conversation"], columns["arrival_s"]
        if len(np.unique(conversation)) < LEAST_CONVERSATIONS:
            return
        group = np.random.default_rng(0).integers(GROUPS, size=trace.requests)
        if in_time and trace.span_s:
            group = np.minimum(GROUPS * arrival_s / trace.span_s, GROUPS - 1).astype(np.int64)
        group = group[conversation]
        rejects = Rejects(trace.name, strict=True)
        parts = [
            Columns(trace.block_size, ReadOptions(), rejects, isolated=True) for _ in range(GROUPS)
        ]
        request = 0
        for chunk in as_traced(store, trace):
            records = [Records() for _ in parts]
            for row in chunk:
                records[group[request]].add(0, (row,))
                request += 1
            for part, some in zip(parts, records, strict=True):
                part.add(some)
    with open_store(MEMORY) as own:
        for number, part in enumerate(part for part in parts if len(part)):
            origin = Origin(f"{trace.name}/{number}", trace.source, 0, str(number), trace.format)
            yield own, write(own, origin, build(part, []), Rejects(trace.name))


def noise(left: list[float], right: list[float], *, relative: bool) -> float | None:
    """Return the largest change of a figure, between two traces, that chance explains.

    `left` and `right` are its values in each trace's groups. The change is absolute, or `relative`
    to the left trace; with 99 % probability, none of 14 figures changes more by chance. None if a
    side has fewer than GROUPS values or, for a relative change, a mean of 0.
    """
    squares = 0.0
    for values in (left, right):
        mean = abs(fmean(values)) if values else 0.0
        if len(values) < GROUPS or (relative and not mean):
            return None
        squares += (stdev(values) / (mean if relative else 1.0)) ** 2
    return _QUANTILE * sqrt(squares / GROUPS)
