"""Long work in another process: pages show its progress and can stop it, whichever tab started it.

One registry holds the jobs of this process. A page that has none of its own shows the one that was
started for the same question, or the one that is running on its trace: so a reload, a second tab or
a tab opened later finds it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import streamlit as st

from dashboard import connection, query_params
from dashboard.wording import escape, in_page_words
from kvscope.app.monitor import Monitor, Unit
from kvscope.app.worker_process import in_process
from kvscope.core import units
from kvscope.core.errors import KvscopeError, Stopped, StoreBusyError

SOON_S = 0.8  # a page waits so long before it shows progress
_EVERY_S = 1.0  # drawing progress takes time from other pages
_MOST_ENDED = 12  # jobs that are listed, with their results
_FAILED = "kvscope failed here. The terminal that runs the dashboard shows the details."


class Job(Monitor):
    """One call of `work(database, *request, monitor)` in another process; its monitor here.

    `result` is what it returned, `error` why it failed, `busy` whether because another process
    writes the store. `address` are the query parameters of the page (a file) that shows the job,
    `trace` the name of the trace it works on, empty for none.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        request: tuple[Any, ...],
        *,
        key: str = "",
        title: str = "",
        trace: str = "",
        page: str = "",
        address: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.request = request
        self.key, self.title, self.trace = key, title, trace
        self.page, self.address = page, dict(address or {})
        self.session: object = None
        self.started_at = self.step_began_at = time.time()
        self.ended_at: float | None = None
        self.label = "preparing"
        self.done = 0
        self.total: int | None = None
        self.result: Any = None
        self.error = ""
        self.stopped = False
        self.busy = False
        self.notes: list[str] = []
        self._ended = threading.Event()
        self._work = partial(in_process, work, connection.database(), *request, monitor=self)
        threading.Thread(target=self._run, name="job", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Return whether the work has ended."""
        return self._ended.is_set()

    @property
    def share(self) -> float:
        """Share of the present step that is done, 0 where that is not known."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    @property
    def progress(self) -> str:
        """The present step, how far it is, and how long it still takes at that rate."""
        done = f" {self.done:,}" if self.done or self.total else ""
        of = f" of {self.total:,}" if self.total else ""
        left_s = (time.time() - self.step_began_at) * (1 / self.share - 1) if self.share else 0
        left = f", about {units.duration_in_words(round(left_s))} left" if left_s >= 1 else ""
        stopping = ", stopping" if self.stop.is_set() else ""
        return f"{self.label}{done}{of}{left}{self.compiling}{stopping}"

    @property
    def started_here(self) -> bool:
        """Return whether this session started the job."""
        return self.session is not None and self.session is st.session_state.get("session")

    @property
    def duration_s(self) -> float:
        """Seconds since the start, or from the start to the end."""
        return (self.ended_at or time.time()) - self.started_at

    @contextmanager
    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> Iterator[Callable[[int], None]]:
        """Show `label` and the number of steps done of `total`."""
        self.label, self.done, self.total = in_page_words(label), 0, total
        self.step_began_at = time.time()

        def advance(amount: int) -> None:
            self.done += amount

        yield advance

    def note(self, text: str) -> None:
        """Show the sentence with the result."""
        self.notes.append(in_page_words(text))

    def wait(self, seconds: float) -> None:
        """Wait for the end, at most so long."""
        self._ended.wait(seconds)

    def end(self) -> None:
        """Mark the work as ended."""
        self.ended_at = time.time()
        self._ended.set()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except KvscopeError as error:
            self.error, self.stopped = in_page_words(str(error)), isinstance(error, Stopped)
            self.busy = isinstance(error, StoreBusyError)
        except BaseException:
            self.error = _FAILED
            raise
        finally:
            self.end()


class _Registry:
    """The jobs of this process, the latest first: all that run, and the last that ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.jobs: list[Job] = []

    def add(self, job: Job) -> None:
        with self._lock:
            jobs = [job, *self.jobs]
            ended = [each for each in jobs if each.ended][:_MOST_ENDED]
            self.jobs = [each for each in jobs if not each.ended or each in ended]


@st.cache_resource(show_spinner=False)
def _registry() -> _Registry:
    return _Registry()


def all_jobs() -> list[Job]:
    """Return the jobs of this process, the latest first, without failed uploads."""
    return [each for each in _registry().jobs if not (each.key == "add" and each.error)]


def current(key: str, request: Any = None) -> Job | None:
    """Return the job that this session shows under `key`, for the trace that is selected.

    Else the latest job of any session that answers `request`, or that runs on this trace.
    """
    trace = st.session_state.get("trace", "")
    job: Job | None = st.session_state.get(f"job {key}")
    if job is not None and job.trace in {"", trace}:
        return job
    known = [each for each in all_jobs() if each.key == key and not each.stopped]
    same = [each for each in known if request is not None and each.request == request]
    running = [each for each in known if not each.ended and each.trace in {"", trace}]
    job = next(iter([*same, *running]), None)
    if job is not None:
        attach(job)
    return job


def attach(job: Job) -> None:
    """Let this session show a job of any session."""
    st.session_state[f"job {job.key}"] = job


def start(
    key: str, title: str, work: Callable[..., Any], *request: Any, on_trace: bool = True
) -> None:
    """Start a job and draw the page anew; stop the one before, if it still runs.

    The job works on the selected trace unless `on_trace` is False.
    """
    before = current(key, request)
    if before is not None:
        before.stop.set()
    job = Job(
        work,
        request,
        key=key,
        title=title,
        trace=st.session_state.get("trace", "") if on_trace else "",
        page=st.session_state.get("page", ""),
        address=query_params.address() | {query_params.shown(key): "1"},
    )
    job.session = st.session_state.setdefault("session", object())
    _registry().add(job)
    attach(job)
    job.wait(SOON_S)
    st.rerun()


def forget(key: str) -> None:
    """Forget the job under `key`."""
    st.session_state.pop(f"job {key}", None)


def completed(key: str, request: Any = None) -> Job | None:
    """Return the job once it has ended well; until then, show its progress or its error."""
    job = current(key, request)
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
    key: str,
    title: str,
    work: Callable[..., Any],
    request: tuple[Any, ...] | None,
    button: str,
    *,
    clicked: bool,
) -> Job | None:
    """Return the job `key` once it has ended well, with its result.

    `work` is started for `request`, if there is one, on a click of `button` or for an address that
    shows the result.
    """
    linked = current(key, request) is None and query_params.shows_result(key)
    if request is not None and (clicked or linked):
        start(key, title, work, *request)
    job = completed(key, request)
    if job is not None:
        query_params.set_shows_result(key, shows=job.request == request)
        if job.request != request:
            st.info(f"These results are for earlier settings. {button} updates them.")
    return job


@st.fragment(run_every=_EVERY_S)
def show_progress(job: Job, key: str) -> None:
    """Show how far a job is, and a stop button; draw the page anew when the job has ended."""
    if job.ended:
        redraw()
    st.progress(job.share, text=escape(f"{_capitalized(job.progress)} …"))
    # As a callback: it is called though the progress is drawn anew at the same time.
    st.button("Stop", key=f"stop {key}", on_click=job.stop.set, disabled=job.stop.is_set())


def redraw() -> None:
    """Draw the whole page anew from a part that is drawn at intervals.

    A click on another page that waits is followed first: `st.rerun` alone forgets it.
    """
    st.empty()
    st.rerun()


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
