"""Datasets: traces larger than memory, ingested into a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.app.cluster import ray_cluster
from kvscope.app.monitor import Monitor
from kvscope.app.options import IntoOptions, Reading
from kvscope.app.traces import ingest_options, note_ingested, noting_unusable_lines
from kvscope.core.files import is_remote
from kvscope.core.units import GIB
from kvscope.datasets.folder import PLAN

if TYPE_CHECKING:
    from kvscope.core.executor import Executor
    from kvscope.ingest.pipeline import Ingested


def ingest_into(
    paths: Sequence[str], folder: str, options: IntoOptions, reading: Reading, monitor: Monitor
) -> Ingested:
    """Make the dataset of all files at `paths` in a folder, or go on with it where it ended.

    Bad lines, inferences, and a dataset that is finished already become notes. Raises as
    `ingest_dataset`.
    """
    from kvscope.core.executor import LocalProcesses
    from kvscope.datasets.ingest import DatasetOptions, ingest_dataset

    processes: AbstractContextManager[Executor]
    if options.on is None:
        processes = LocalProcesses(options.workers or os.cpu_count() or 1)
    else:  # nodes have other working directories
        folder = str(Path(folder).absolute())
        paths = [path if is_remote(path) else str(Path(path).absolute()) for path in paths]
        plan = str(Path(folder) / PLAN)
        processes = ray_cluster(options.on, monitor, workers=options.workers, seen_by_all=plan)
    with noting_unusable_lines(monitor), processes as executor:
        free = executor.free_bytes
        chosen = DatasetOptions(
            memory_bytes=options.memory or (free // 2 if free else 4 * GIB),
            shards=options.shards,
            read=ingest_options(reading),
        )
        made = ingest_dataset(paths, folder, chosen, executor, monitor)
    if not made.created:
        monitor.note(f"{folder}: finished already, as {made.trace.name!r}")
    note_ingested(folder, made, monitor)
    return made
