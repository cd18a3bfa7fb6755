"""What is costly to find of a trace, found once beside the pages and kept by its content.

It begins as soon as a trace is chosen, so that most pages find it ready. A page that does not says
how far it is, and is usable meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NoReturn, Self

import streamlit as st

from dashboard import job
from dashboard.connection import reading
from dashboard.markdown import plain
from kvscope.app.analyze import Analysis, StartedCaching, analyze
from kvscope.characterize.prefixes import Prefix, hot_prefixes
from kvscope.characterize.summary import STEPS
from kvscope.core.errors import KvscopeError
from kvscope.core.trace import Trace
from kvscope.replay.metrics import LruAnywhere
from kvscope.store.traces import load_prompts

_MOST = 4  # traces whose findings are kept
_SOON_S = 0.8  # a page waits so long before it says how far it is
_TURN = threading.Lock()  # one trace after the other


class Prepared(job.Job):
    """The work on one trace. Each finding is there as soon as it is made."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._found: dict[str, Any] = {}
        self._changed = threading.Condition()
        super().__init__(Prepared._prepare)

    def wait(self, name: str, seconds: float | None = None) -> bool:
        """Whether the finding is there, at the latest after so many seconds, or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._found or self.ended, seconds)
        return name in self._found

    def finding(self, name: str) -> Any:
        """A finding that is there; None where it is not."""
        return self._found.get(name)

    def end(self) -> None:
        """Those who wait are told."""
        with self._changed:
            super().end()
            self._changed.notify_all()

    def _prepare(self) -> None:
        with _TURN:
            self._step("requests")
            with reading() as store:
                if not self._trace.has_hashes:
                    self._tell("analysis", analyze(store, self._trace, step=self._step))
                    return
                prompts = load_prompts(store, self._trace)
                self._tell("lru", LruAnywhere.over(prompts))
                found = analyze(
                    store, self._trace, started=StartedCaching(prompts), step=self._step
                )
                self._tell("analysis", found)
                self._step("prefixes")
                self._tell("prefixes", hot_prefixes(store, self._trace))

    def _step(self, what: str) -> None:
        self.check()
        self.label, self.total = f"Analyzing the trace: {what}", STEPS + 2
        self.done += 1

    def _tell(self, name: str, found: Any) -> None:
        with self._changed:
            self._found[name] = found
            self._changed.notify_all()


def of(trace: Trace) -> Prepared:
    """The work on this trace, begun if nobody has."""
    with _known() as known:
        if trace not in known:
            known[trace] = Prepared(trace)
        known.move_to_end(trace)
        while len(known) > _MOST:
            known.popitem(last=False)[1].stop.set()
        return known[trace]


def settle() -> None:
    """Return once nothing is under way."""
    with _known() as known:
        begun = list(known.values())
    for work in begun:
        work.wait("")


def lru_for(one: job.Job, trace: Trace) -> LruAnywhere:
    """What a job needs of LRU, awaited. Raises what stands in the way, and Stopped."""
    work = of(trace)
    while not work.wait("lru", _SOON_S) and not work.ended:
        one.check()
    found: LruAnywhere | None = work.finding("lru")
    if found is None:
        raise KvscopeError(work.error)
    return found


def analysis(trace: Trace) -> Analysis:
    """What `kvscope analyze` finds, without a model."""
    found: Analysis = _shown(trace, "analysis")
    return found


def lru(trace: Trace) -> LruAnywhere:
    """LRU at any capacity, and the prompts it was read from."""
    found: LruAnywhere = _shown(trace, "lru")
    return found


def prefixes(trace: Trace) -> tuple[Prefix, ...]:
    """The prefixes that are reused most."""
    found: tuple[Prefix, ...] = _shown(trace, "prefixes")
    return found


def _shown(trace: Trace, name: str) -> Any:
    """The finding, for a page: which ends here with the progress, where it takes longer."""
    work = of(trace)
    if not work.wait(name, _SOON_S):
        _excused(trace, work)
    return work.finding(name)


def _excused(trace: Trace, work: Prepared) -> NoReturn:
    """End the page with what is known of a work that has not found what was asked for."""
    if not work.ended:
        job.watch(work, "analysis")
    elif work.stopped:
        st.warning("The analysis was stopped: what this page tells of it is missing.")
        st.button("Analyze", type="primary", key="analyze", on_click=_forget, args=(trace,))
    else:
        _forget(trace)  # whoever asks next begins anew
        st.error(plain(work.error))
    st.stop()


def _forget(trace: Trace) -> None:
    with _known() as known:
        known.pop(trace, None)


class _Known(OrderedDict[Trace, Prepared]):
    """By trace, content and all, those longest unused first; to be used one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        self.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@st.cache_resource(show_spinner=False)
def _known() -> _Known:
    return _Known()
