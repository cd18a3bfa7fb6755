"""Targets of a calibration: a server, or a decoder in plain torch in a separate process."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from kvscope.core.errors import EngineError
from kvscope.core.trace import PROBE
from kvscope.latency.calibration import Cell, TtftReading
from kvscope.latency.decoding import Step
from kvscope.serving.client import Endpoint, completion, time_in_steps
from kvscope.serving.interpreter import Interpreter

_DECODER = str(Path(__file__).with_name("torch_decoder.py"))
TOKENS = (100, 1000)
"""The range of token ids in prompts: in every vocabulary, and never special."""
_FEW, _STEPS = 8, 32  # outputs of every request, and those that are timed
_TRIES, _AGAIN_S = 20, 0.05  # metrics come a little later than answers


class ServerTarget:
    """A server measured over HTTP: TTFT by single requests, steps of decoding by batches.

    With the same `seed` the same tokens are sent, without a seed always new ones. On vLLM the
    requests are marked, so that kvscope's plugin leaves them out of a recording.
    """

    def __init__(self, endpoint: Endpoint, model: str, *, seed: int | None = None) -> None:
        self._endpoint, self._model = endpoint, model
        metrics = endpoint.metrics()
        self._of_vllm = "vllm:" in metrics
        self._before = time_in_steps(metrics)
        self._ttft_s: list[float] = []
        self._rng = np.random.default_rng(None if seed is None else [seed, 1])

    def read(self, cell: Cell) -> TtftReading:
        """Cache the prefix with a first request and measure a second, as `Measurable.read`."""
        prefix = self._tokens(cell.cached)
        if prefix:
            self._send(prefix + self._tokens(1))
        return self._send(prefix + self._tokens(cell.uncached))

    def request_s(self) -> float | None:
        """Return the mean TTFT minus the time from queue to first token in vLLM's metrics.

        None without such metrics, or if other clients sent requests meanwhile.
        """
        before, own = self._before, len(self._ttft_s)
        for _ in range(_TRIES):
            after = time_in_steps(self._endpoint.metrics())
            if before is None or after is None or after.requests - before.requests > own:
                return None
            if after.requests - before.requests == own:
                in_steps_s = after.seconds - before.seconds
                return max(sum(self._ttft_s) - in_steps_s, 0.0) / own if own else None
            time.sleep(_AGAIN_S)
        return None

    def step_s(self, step: Step) -> float:
        """Return (seconds of a batch with 40 outputs each - those with 8) / 32, prompts cached."""
        prompts = [self._tokens(step.context) for _ in range(step.batch)]
        took_s = []
        with ThreadPoolExecutor(step.batch) as threads:
            for outputs in (1, _FEW, _FEW + _STEPS):  # the first fills the cache
                before = time.perf_counter()
                list(threads.map(partial(self._send, outputs=outputs), prompts))
                took_s.append(time.perf_counter() - before)
        return max(took_s[2] - took_s[1], 1e-6) / _STEPS

    def _body(self, tokens: list[int], outputs: int) -> bytes:
        marks = {PROBE: 1} if self._of_vllm else None  # others may refuse vLLM's own fields
        return completion(self._model, tokens, outputs, xargs=marks)

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._rng.integers(*TOKENS, count)]

    def _send(self, tokens: list[int], outputs: int = 1) -> TtftReading:
        answer = self._endpoint.complete(self._body(tokens, outputs))
        if answer.error:
            raise EngineError(
                f"a prompt of {len(tokens)} tokens: {answer.error}",
                where=self._endpoint.url,
                remedy="see the server's log, or shorten the prompts with --max-tokens",
            )
        self._ttft_s.append(answer.ttft_s)
        return TtftReading(answer.ttft_s, answer.cached_tokens)


class TorchTarget:
    """A decoder with random weights in a process of another interpreter; a context manager.

    Raises EngineError where the process ends, or does not answer: within `start_s` at first, within
    `timeout_s` for a measurement.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        config: Path,
        device: str | None,
        *,
        start_s: float,
        timeout_s: float,
    ) -> None:
        self._command = [interpreter.python, _DECODER, str(config), device or interpreter.device]
        self._start_s, self._timeout_s = start_s, timeout_s
        self.description: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # an undrained pipe fills up
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="decoder")
        try:
            self.description = self._answer(self._start_s)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.shutdown()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def read(self, cell: Cell) -> TtftReading:
        """Measure one cell, as `Measurable.read`."""
        return TtftReading(self._seconds(cell._asdict()), None)

    def request_s(self) -> float:
        """Return 0: a plain decoder spends no time outside of its steps."""
        return 0.0

    def step_s(self, step: Step) -> float:
        """Measure one step, as `Measurable.step_s`."""
        return self._seconds(step._asdict())

    def _seconds(self, asked: dict[str, int]) -> float:
        assert self._process.stdin is not None  # noqa: S101  (a pipe, as set above)
        with suppress(OSError):  # the answer, or its lack, says more
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        return float(self._answer(self._timeout_s)["seconds"])

    def _answer(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  (a pipe, as set above)
        try:
            line = self._reader.submit(self._process.stdout.readline).result(within_s)
        except TimeoutError:
            self._process.kill()
            raise EngineError(
                f"no answer within {within_s:g} s",
                where="torch",
                remedy="raise --start-timeout or --timeout, or lower --max-tokens",
            ) from None
        answer = json.loads(line) if line else {"error": self._last_line()}
        if "error" in answer:
            raise EngineError(
                str(answer["error"]), where="torch", remedy="see --device, --max-tokens, --model"
            )
        return dict(answer)

    def _last_line(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"ended with status {self._process.returncode}"
