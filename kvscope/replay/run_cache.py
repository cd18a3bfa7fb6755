"""Runs of a trace that the store already has, and runs still to be replayed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.replay.workload import ReplayRequest
from kvscope.store import results
from kvscope.store.db import Store

_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = (
    "core/prefix.py",
    "core/trace.py",
    "learning/**/*.py",
    "policies/**/*.py",
    "replay/**/*.py",
    "vllm_sim/**/*.py",
)


class PendingRuns(Struct, frozen=True):
    """Requested runs without repeats: `known` are in the store, `missing` have to be replayed."""

    known: tuple[Run, ...]
    missing: tuple[ReplayRequest, ...]

    @property
    def count(self) -> int:
        """Number of requested runs."""
        return len(self.known) + len(self.missing)


def pending_runs(
    store: Store, trace: Trace, setting: RunSetting, requests: Sequence[ReplayRequest]
) -> PendingRuns:
    """Return the requested runs: those stored by the present kvscope sources, and the rest."""
    by_digest = {
        results.request_digest(
            request.policy.name,
            request.policy.evicts,
            request.policy.values,
            request.capacity_blocks,
            setting,
        ): request
        for request in requests
    }
    known = results.known_runs(store, trace, list(by_digest), sources_digest())
    missing = tuple(request for digest, request in by_digest.items() if digest not in known)
    return PendingRuns(tuple(known.values()), missing)


def save_run(store: Store, trace: Trace, run: Run) -> Run:
    """Store a run made by the present kvscope sources, and return it as stored."""
    return results.add_run(store, trace, run, sources_digest())


@cache
def sources_digest() -> str:
    """Return the digest of the sources that make a run's numbers (16 hex digits)."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern)):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
