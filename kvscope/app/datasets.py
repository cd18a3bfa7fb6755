"""Datasets: traces larger than memory, ingested into a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvscope.app.monitor import Monitor
from kvscope.app.options import IntoOptions, Reading
from kvscope.app.traces import ingest_options, noting_unusable_lines
from kvscope.core import memory
from kvscope.core.units import GIB

if TYPE_CHECKING:
    from kvscope.datasets.ingest import IngestedDataset


def ingest_into(
    paths: Sequence[str], folder: str, options: IntoOptions, reading: Reading, monitor: Monitor
) -> IngestedDataset:
    """Make the dataset of all files at `paths` in a folder, or go on with it where it ended.

    Bad lines, inferences, and a dataset that is finished already become notes. Raises as
    `ingest_dataset`.
    """
    from kvscope.datasets.executor import LocalProcesses
    from kvscope.datasets.ingest import DatasetOptions, ingest_dataset

    free = memory.available_bytes()
    chosen = DatasetOptions(
        memory_bytes=options.memory or (free[0] // 2 if free else 4 * GIB),
        shards=options.shards,
        read=ingest_options(reading),
    )
    workers = options.workers or os.cpu_count() or 1
    with noting_unusable_lines(monitor), LocalProcesses(workers) as executor:
        made = ingest_dataset(paths, folder, chosen, executor, monitor)
    if not made.created:
        monitor.note(f"{folder}: finished already, as {made.dataset.trace.name!r}")
        return made
    notes = list(made.dataset.trace.notes)
    if made.out_of_order:
        notes.append(f"{made.out_of_order:,} requests were out of order, now sorted by time")
    for text in (*made.rejects.in_words(), *(f"{folder}: {text}" for text in notes)):
        monitor.note(text)
    return made
