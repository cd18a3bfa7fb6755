"""Where the work of a use case runs: `--on`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kvscope.app.monitor import Monitor

if TYPE_CHECKING:
    from kvscope.core.executor import Executor


@contextmanager
def replays_on(on: str | None, monitor: Monitor) -> Iterator[Executor | None]:
    """Yield the executor of a sweep's replays, None for threads as many as fit into memory."""
    if on is None:
        yield None
        return
    with ray_cluster(on, monitor) as executor:
        yield executor


@contextmanager
def ray_cluster(
    on: str, monitor: Monitor, *, workers: int | None = None, seen_by_all: str | None = None
) -> Iterator[Executor]:
    """Yield the executor at this address (see `RayCluster`), until the block ends."""
    from kvscope.core.ray_cluster import RayCluster

    cluster = RayCluster(on, workers=workers, seen_by_all=seen_by_all)
    with ExitStack() as stack:
        with monitor.steps("connecting to Ray"):
            stack.enter_context(cluster)
        yield cluster
