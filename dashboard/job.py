"""Long work in a thread: pages show its progress and can stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from dashboard import query_params
from dashboard.markdown import escape
from kvscope.app.monitor import Monitor, Unit
from kvscope.core.errors import KvscopeError, Stopped

_EVERY_S = 0.3
_FAILED = "kvscope failed here. The terminal that runs the dashboard shows the details."


class Job(Monitor):
    """One call of `work(job)` in a thread; the monitor of what it runs.

    `request` is what the work answers. `result` is what it returned, `error` why it failed.
    """

    def __init__(self, work: Callable[[Any], Any], request: Any = None) -> None:
        super().__init__()
        self.request = request
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
        """Return whether the work has ended."""
        return self._ended.is_set()

    def check(self) -> None:
        """Raise Stopped once the job is to stop."""
        if self.stop.is_set():
            raise Stopped("stopped before it was finished")

    @contextmanager
    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> Iterator[Callable[[int], None]]:
        """Show `label` and the number of steps done of `total`."""
        self.label, self.done, self.total = label, 0, total

        def advance(amount: int) -> None:
            self.done += amount

        yield advance

    def note(self, text: str) -> None:
        """Show the sentence with the result."""
        self.notes.append(text)

    def wait(self, seconds: float) -> None:
        """Wait for the end, at most so long."""
        self._ended.wait(seconds)

    def end(self) -> None:
        """Mark the work as ended."""
        self._ended.set()

    def _run(self) -> None:
        try:
            self.result = self._work(self)
        except KvscopeError as error:
            self.error, self.stopped = str(error), isinstance(error, Stopped)
        except BaseException:
            self.error = _FAILED
            raise
        finally:
            self.end()


def current(key: str) -> Job | None:
    """Return the job that this session last started under `key`."""
    job: Job | None = st.session_state.get(f"job {key}")
    return job


def start(key: str, work: Callable[[Job], Any], request: Any = None) -> None:
    """Start a job and draw the page anew; stop the one before, if it still runs."""
    before = current(key)
    if before is not None:
        before.stop.set()
    job = st.session_state[f"job {key}"] = Job(work, request)
    job.wait(_EVERY_S)  # no progress bar for what is done by then
    st.rerun()


def forget(key: str) -> None:
    """Forget the job under `key`."""
    st.session_state.pop(f"job {key}", None)


def completed(key: str) -> Job | None:
    """Return the job once it has ended well; until then, show its progress or its error."""
    job = current(key)
    if job is None:
        return None
    if not job.ended:
        show_progress(job, key)
        return None
    if job.notes:
        st.caption("  \n".join(map(escape, job.notes)))
    if job.stopped:
        st.warning(escape(f"{_capitalized(job.error)}."))
    elif job.error:
        st.error(escape(job.error))
    return None if job.error else job


def answer(
    key: str, request: Any | None, work: Callable[[Job], Any], button: str, *, clicked: bool
) -> Job | None:
    """Return the job `key` once it has ended well, with its result.

    `work` is started for `request`, if there is one, on a click of `button` or for an address that
    shows the result.
    """
    linked = current(key) is None and query_params.shows_result(key)
    if request is not None and (clicked or linked):
        start(key, work, request)
    job = completed(key)
    if job is not None:
        query_params.set_shows_result(key, shown=job.request == request)
        if job.request != request:
            st.info(f"These results are for earlier settings. {button} updates them.")
    return job


@st.fragment(run_every=_EVERY_S)
def show_progress(job: Job, key: str) -> None:
    """Show how far a job is, and a stop button; draw the page anew when the job has ended."""
    if job.ended:
        st.rerun()
    share = min(job.done / job.total, 1.0) if job.total else 0.0
    of = f" {job.done:,} of {job.total:,}" if job.total else f" {job.done:,}" if job.done else ""
    stopping = ", stopping" if job.stop.is_set() else ""
    st.progress(share, text=escape(f"{_capitalized(job.label)}{of}{stopping} …"))
    if st.button("Stop", key=f"stop {key}", disabled=job.stop.is_set()):
        job.stop.set()
        st.rerun(scope="fragment")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
