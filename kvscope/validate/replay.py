"""Send a trace to an engine: sequentially, with N requests in flight, or at the trace's times."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import BoundedSemaphore, Event, Lock
from typing import Literal

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from kvscope.core.errors import EngineError
from kvscope.core.trace import ARRIVAL, OUTPUTS, TURN, TYPE
from kvscope.serving.client import Answer, Endpoint, Pending, completion
from kvscope.validate.tokens import TokenTrace

MOST_IN_FLIGHT = 512
HOPELESS = 5  # failures of all requests so far, from which on none will succeed
_STEP_S = 0.05
_SHORT_S = 0.001


class Pace(Struct, frozen=True):
    """When requests are sent: `sequential`, `in-flight` (`in_flight` at once), or as `recorded`.

    In flight, a turn waits for the answer before it. `rate_scale` speeds up `recorded` arrivals.
    """

    kind: Literal["sequential", "in-flight", "recorded"]
    in_flight: int = 1
    rate_scale: float = 1.0

    @property
    def at_once(self) -> int:
        """Return the maximum number of requests in flight."""
        return {"sequential": 1, "in-flight": self.in_flight}.get(self.kind, MOST_IN_FLIGHT)

    @property
    def in_words(self) -> str:
        """Return the pace as text for a report."""
        if self.kind == "sequential":
            return "one after the other"
        if self.kind == "in-flight":
            return f"{self.in_flight} at once"
        return "as recorded" + (f", {self.rate_scale:g} times as fast" * (self.rate_scale != 1))


class Measurement(Struct, frozen=True):
    """Measured times and tokens of R requests; every array has R entries.

    Times are in seconds, `sent_s` and `finish_s` since the first request was sent; nan without an
    answer. `hit_tokens` (cached prompt tokens) are -1 without an answer, or if not reported.
    `errors` has the error texts of unanswered requests by number; `ended` is why the replay ended
    early, or empty.
    """

    sent_s: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    hit_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    errors: dict[int, str]
    ended: str = ""

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Return a mask of the requests with a complete answer."""
        return np.isfinite(self.finish_s)

    @property
    def answer_s(self) -> NDArray[np.float64]:
        """Return the time from sending to the last token."""
        return self.finish_s - self.sent_s


class TraceReplay(Struct):
    """Sends every request of a trace, in order, and reads the answers in threads.

    `advance` counts answers; a set `stop` ends the replay.
    """

    endpoint: Endpoint
    model: str
    trace: TokenTrace
    pace: Pace
    advance: Callable[[int], None]
    stop: Event
    _answers: dict[int, Answer] = field(default_factory=dict)
    _pending: dict[int, Pending] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _room: BoundedSemaphore = field(default_factory=BoundedSemaphore)
    _ended: str = ""

    def __post_init__(self) -> None:
        self._room = BoundedSemaphore(self.pace.at_once)

    def run(self) -> Measurement:
        """Replay the trace and return the measurements; never raises for failures of the engine.

        Measurements up to a failure are kept; `Measurement.ended` states the failure.
        """
        with ThreadPoolExecutor(self.pace.at_once, thread_name_prefix="answers") as readers:
            try:
                reading = self._send_all(readers)
                while not self._over() and wait(reading, timeout=_STEP_S).not_done:
                    pass
            finally:
                with self._lock:
                    pending = list(self._pending.values())
                for request in pending:
                    request.cancel()
        return self._measurement()

    def _send_all(self, readers: ThreadPoolExecutor) -> list[Future[None]]:
        reading: list[Future[None]] = []
        prompts, pace = self.trace.prompts, self.pace
        start_s = time.perf_counter()
        for request in range(len(self.trace)):
            body = self._body(request)
            parent = int(prompts.parent[request])
            if pace.kind == "in-flight" and parent >= 0:
                while parent not in self._answers and not self._over():
                    self.stop.wait(_SHORT_S)
            if pace.kind == "recorded":
                due_s = (prompts.arrival_s[request] - prompts.arrival_s[0]) / pace.rate_scale
                self.stop.wait(max(0.0, start_s + due_s - time.perf_counter()))
            while not self._room.acquire(timeout=_STEP_S):
                if self._over():
                    return reading
            if self._over():
                return reading
            try:
                sent = self.endpoint.send(body)
            except EngineError as error:
                self._room.release()
                self._ended = str(error)
                return reading
            with self._lock:
                self._pending[request] = sent
            reading.append(readers.submit(self._read, request, sent))
        return reading

    def _over(self) -> bool:
        if self.stop.is_set() and not self._ended:
            self._ended = "interrupted"
        return bool(self._ended)

    def _read(self, request: int, sent: Pending) -> None:
        answer = sent.read()
        with self._lock:
            self._pending.pop(request, None)
            self._answers[request] = answer
        if answer.error and not self._ended:
            self._ended = self._failure(answer) or self._ended
        self._room.release()
        self.advance(1)

    def _failure(self, answer: Answer) -> str:
        """Return why no further request can succeed after an error; empty to go on.

        Called without the lock: a slow answer to the health check must not delay the sender.
        """
        if not self.endpoint.healthy():
            return f"the engine died ({answer.error})"
        with self._lock:
            answers = list(self._answers.values())
        if len(answers) >= HOPELESS and all(other.error for other in answers):
            return f"no request was served: {answer.error}"
        return ""

    def _body(self, request: int) -> bytes:
        trace = self.trace
        output = trace.output(request)
        xargs: dict[str, object] = {TYPE: trace.kind(request), TURN: int(trace.turns[request])}
        if self.pace.kind == "sequential":  # the engine is faster or slower than the trace
            xargs[ARRIVAL] = float(trace.prompts.arrival_s[request])
        if trace.forced:
            xargs[OUTPUTS] = output.tolist()
        return completion(
            self.model,
            trace.prompt(request).tolist(),
            len(output),
            xargs=xargs,
            session=str(trace.prompts.conversation[request]),
        )

    def _measurement(self) -> Measurement:
        count = len(self.trace)
        times = np.full((3, count), np.nan)
        hits = np.full(count, -1, dtype=np.int64)
        outputs = np.zeros(count, dtype=np.int64)
        errors = {}
        first_s = min((answer.sent_s for answer in self._answers.values()), default=0.0)
        for request, answer in self._answers.items():
            if answer.error:
                errors[request] = answer.error
                continue
            times[:, request] = answer.sent_s - first_s, answer.ttft_s, answer.finished_s - first_s
            hits[request] = -1 if answer.cached_tokens is None else answer.cached_tokens
            outputs[request] = answer.output_tokens
        sent_s, ttft_s, finish_s = times
        return Measurement(sent_s, ttft_s, finish_s, hits, outputs, errors, self._ended)
