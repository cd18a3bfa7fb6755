"""Long work beside a page: it runs in a thread, tells how far it is, and can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from dashboard import query_params
from dashboard.markdown import plain
from kvscope.app.monitor import Unit
from kvscope.core.errors import KvscopeError
from kvscope.tuning.trial import Stopped

_EVERY_S = 0.3
_TROUBLE = "Something went wrong; the terminal that runs the dashboard has the details."


class Job:
    """One run of `work(job)`. `result` is what it returned, `error` the sentence it failed with."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.stop = threading.Event()
        self.label = "preparing"
        self.done = 0
        self.total: int | None = None
        self.result: Any = None
        self.error = ""
        self.stopped = False
        self.notes: list[str] = []
        self._ended = threading.Event()
        self._work = work
        threading.Thread(target=self._run, name="job", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._ended.is_set()

    def check(self) -> None:
        """Raise Stopped where somebody asked for that."""
        if self.stop.is_set():
            raise Stopped("stopped before it was finished")

    @contextmanager
    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> Iterator[Callable[[int], None]]:
        """Work called `label`; the callable says how much of it was done."""
        self.label, self.done, self.total = label, 0, total

        def advance(amount: int) -> None:
            self.done += amount

        yield advance

    def note(self, text: str) -> None:
        """Show the sentence under the result."""
        self.notes.append(text)

    def soon(self) -> None:
        """Wait a moment for its end: what is done by then shows no progress."""
        self._ended.wait(_EVERY_S)

    def end(self) -> None:
        """It is done, one way or another."""
        self._ended.set()

    def _run(self) -> None:
        try:
            self.result = self._work(self)
        except KvscopeError as error:
            self.error, self.stopped = str(error), isinstance(error, Stopped)
        except BaseException:
            self.error = _TROUBLE
            raise
        finally:
            self.end()


def current(key: str) -> Job | None:
    """The job that this session began last under `key`."""
    found: Job | None = st.session_state.get(f"job {key}")
    return found


def wanted(key: str, *, clicked: bool) -> bool:
    """Whether to begin a job: its button was clicked, by somebody here or who gave the address."""
    return clicked or (current(key) is None and query_params.linked(key))


def start(key: str, work: Callable[[Job], Any]) -> None:
    """Begin a job; one that still runs is told to stop."""
    before = current(key)
    if before is not None:
        before.stop.set()
    begun = st.session_state[f"job {key}"] = Job(work)
    begun.soon()
    st.rerun()


def forget(key: str) -> None:
    """What became of the job has been dealt with."""
    st.session_state.pop(f"job {key}", None)


def finished(key: str) -> Job | None:
    """The job, once it has ended well; its progress and a stop button until then."""
    job = current(key)
    if job is None:
        return None
    if not job.ended:
        watch(job, key)
        return None
    for text in job.notes:
        st.caption(text)
    if job.error:
        st.error(plain(job.error))
        return None
    return job


@st.fragment(run_every=_EVERY_S)
def watch(job: Job, key: str) -> None:
    """How far a job is, and a button that stops it; the page is drawn anew when it has ended."""
    if job.ended:
        st.rerun()
    share = min(job.done / job.total, 1.0) if job.total else 0.0
    of = f" {job.done:,} of {job.total:,}" if job.total else f" {job.done:,}" if job.done else ""
    st.progress(share, text=f"{job.label}{of} …" + (" stopping" if job.stop.is_set() else ""))
    if st.button("Stop", key=f"stop {key}", disabled=job.stop.is_set()):
        job.stop.set()
        st.rerun(scope="fragment")
