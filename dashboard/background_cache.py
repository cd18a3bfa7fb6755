"""Analyze traces in the background and keep what was found for the last few of them.

The analysis of a trace starts as soon as it is selected, so that most pages find it done. A page
that comes earlier shows how far it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NoReturn, cast

import streamlit as st

from dashboard import work
from dashboard.job import SOON_S, Job, show_progress
from dashboard.wording import escape
from kvscope.characterize.sources import Prefix
from kvscope.core.errors import StoreBusyError
from kvscope.core.trace import Trace
from kvscope.replay.metrics import LruAnywhere
from kvscope.usecases.analyze import Analysis

_MOST = 4  # traces
_ONE_AT_A_TIME = threading.Lock()


class TraceFindings(Job):
    """What is known of one trace: `lru`, `analysis` and `prefixes`, each as soon as it is found.

    A later job may add its own.
    """

    def __init__(self, trace: Trace) -> None:
        self._findings: dict[str, Any] = {}
        self._changed = threading.Condition()
        super().__init__(
            work.analyze_trace,
            (trace,),
            title="Analyze",
            trace=trace.name,
            page="views/overview.py",
            address={"trace": trace.name},
        )

    def await_finding(self, name: str, seconds: float | None = None) -> bool:
        """Wait for a finding, at most so long, or until the end; return whether it is there."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._findings or self.ended, seconds)
        return name in self._findings

    def get(self, name: str) -> Any:
        """Return a finding, None where it is not there."""
        return self._findings.get(name)

    def add_part(self, name: str, value: Any) -> None:
        """Add a finding."""
        with self._changed:
            self._findings[name] = value
            self._changed.notify_all()

    def end(self) -> None:
        """Mark the work as ended and wake those who wait."""
        with self._changed:
            super().end()
            self._changed.notify_all()

    def _run(self) -> None:
        with _ONE_AT_A_TIME:
            super()._run()


def findings(trace: Trace) -> TraceFindings:
    """Return the findings of a trace; start its analysis if it is not cached."""
    lock, cached = _cache()
    with lock:
        if trace not in cached:
            cached[trace] = TraceFindings(trace)
        cached.move_to_end(trace)
        while len(cached) > _MOST:
            cached.popitem(last=False)[1].stop.set()
        return cached[trace]


def analyses() -> list[TraceFindings]:
    """Return the analyses that are cached or under way, the last used first."""
    lock, cached = _cache()
    with lock:
        return list(reversed(cached.values()))


def settle() -> None:
    """Wait until no analysis is under way."""
    for each in analyses():
        each.await_finding("")


def analysis(trace: Trace) -> Analysis:
    """Return the analysis without a model; the page ends here with progress if it takes long."""
    return cast("Analysis", _finding(trace, "analysis"))


def lru(trace: Trace) -> LruAnywhere:
    """Return LRU at every capacity, and the prompts; the page may end here, as in `analysis`."""
    return cast("LruAnywhere", _finding(trace, "lru"))


def prefixes(trace: Trace) -> tuple[Prefix, ...]:
    """Return the prefixes that are reused most; the page may end here, as in `analysis`."""
    return cast("tuple[Prefix, ...]", _finding(trace, "prefixes"))


def _finding(trace: Trace, name: str) -> Any:
    pending = findings(trace)
    if not pending.await_finding(name, SOON_S):
        _end_page(trace, pending)
    return pending.get(name)


def _end_page(trace: Trace, pending: TraceFindings) -> NoReturn:
    """End the page with the progress of the analysis, or why there is none."""
    if not pending.ended:
        show_progress(pending, "analysis")
    elif pending.stopped:
        st.warning("The analysis was stopped, so this page is incomplete.")
        st.button("Analyze", type="primary", key="analyze", on_click=_forget, args=(trace,))
    else:
        _forget(trace)  # the next visit tries again
        if pending.busy:
            raise StoreBusyError(pending.error)
        st.error(escape(pending.error))
    st.stop()


def _forget(trace: Trace) -> None:
    lock, cached = _cache()
    with lock:
        cached.pop(trace, None)


@st.cache_resource(show_spinner=False)
def _cache() -> tuple[threading.Lock, OrderedDict[Trace, TraceFindings]]:
    """Return the findings by trace, least recently used first, and the lock to hold meanwhile."""
    return threading.Lock(), OrderedDict()
