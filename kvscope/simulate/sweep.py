"""Many replays over one trace, on all cores, each handed over as soon as it is finished."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from threading import Event

from kvscope.facts import Run
from kvscope.simulate.workload import Asked, Workload

_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = ("policies/**/*.py", "simulate/**/*.py", "prefix.py", "store/prompts.py")


def sweep(
    workload: Workload,
    asked: Sequence[Asked],
    *,
    workers: int | None = None,
    stop: Event | None = None,
) -> Iterator[Run]:
    """Every run asked for, in the order in which they finish (of those found finished, as asked).

    `workers` threads replay at once (default: one a core; kernels run without the interpreter
    lock). Once `stop` is set no further run starts, and the sweep ends with those under way.
    """
    workload.prepare([one.policy for one in asked])
    pool = ThreadPoolExecutor(workers or cores(), thread_name_prefix="replay")
    futures = [pool.submit(_unless, stop or Event(), workload, one) for one in asked]
    place = {future: number for number, future in enumerate(futures)}
    waiting = set(futures)
    try:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(finished, key=place.__getitem__):
                if (run := future.result()) is not None:
                    yield run
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # whoever leaves early need not wait


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def sources_digest() -> str:
    """Digest of the sources that make a run's numbers (16 hex digits)."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern)):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _unless(stop: Event, workload: Workload, asked: Asked) -> Run | None:
    return None if stop.is_set() else workload.run(asked)
