"""Read what is known of requests a stretch of them at a time, where memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvscope.core.disk_columns import AT_ONCE, Columns, stretches
from kvscope.core.trace import Trace
from kvscope.store.db import Store


def by_requests(
    store: Store, trace: Trace, work: Path | None, name: str, **parameters: Any
) -> Iterator[Columns]:
    """Yield the columns of the query `name`: of all requests, or of stretches with `work`."""
    requests = max(trace.requests, 1)
    for part in stretches(requests, requests if work is None else AT_ONCE):
        yield store.columns(
            f"characterize/{name}",
            trace_id=trace.trace_id,
            first=part.start,
            end=part.stop,
            **parameters,
        )
