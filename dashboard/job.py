"""Long work beside a page: it runs in a thread, tells how far it is, and can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from kvscope.errors import KvscopeError

_EVERY_S = 0.5
_TROUBLE = "Something went wrong; the terminal that runs the dashboard has the details."


class Job:
    """One run of `work(job)`. `result` is what it returned, `error` the sentence it failed with."""

    def __init__(self, work: Callable[[Job], Any]) -> None:
        self.stop = threading.Event()
        self.label = "preparing"
        self.done = 0
        self.total: int | None = None
        self.result: Any = None
        self.error = ""
        self.notes: list[str] = []
        self._work = work
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    @contextmanager
    def steps(self, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Work called `label`; the callable says how much of it was done."""
        self.label, self.done, self.total = label, 0, total

        def advance(amount: int) -> None:
            self.done += amount

        yield advance

    def _run(self) -> None:
        try:
            self.result = self._work(self)
        except KvscopeError as error:
            self.error = str(error)
        except BaseException:
            self.error = _TROUBLE
            raise


def current(key: str) -> Job | None:
    """The job that this session began last under `key`."""
    found: Job | None = st.session_state.get(f"job {key}")
    return found


def start(key: str, work: Callable[[Job], Any]) -> None:
    """Begin a job; one that still runs is told to stop."""
    before = current(key)
    if before is not None:
        before.stop.set()
    st.session_state[f"job {key}"] = Job(work)
    st.rerun()


def finished(key: str) -> Job | None:
    """The job, once it has ended well; its progress and a stop button until then."""
    job = current(key)
    if job is None:
        return None
    if job.running:
        _watch(key)
        return None
    for text in job.notes:
        st.caption(text)
    if job.error:
        st.error(job.error)
        return None
    return job


@st.fragment(run_every=_EVERY_S)
def _watch(key: str) -> None:
    job = current(key)
    if job is None or not job.running:
        st.rerun()
        return
    share = min(job.done / job.total, 1.0) if job.total else 0.0
    of = f" {job.done:,} of {job.total:,}" if job.total else f" {job.done:,}" if job.done else ""
    st.progress(share, text=f"{job.label}{of} …" + (" stopping" if job.stop.is_set() else ""))
    if st.button("Stop", key=f"stop {key}", disabled=job.stop.is_set()):
        job.stop.set()
        st.rerun(scope="fragment")
