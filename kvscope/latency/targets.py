"""What can be measured: a server, or a decoder of plain torch in a process of its own."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from kvscope.core.errors import EngineError
from kvscope.latency.calibration import Reading
from kvscope.latency.grid import Cell
from kvscope.serving.client import Endpoint, completion
from kvscope.serving.interpreter import Interpreter

_DECODER = str(Path(__file__).with_name("torch_decoder.py"))
TOKENS = (100, 1000)
"""The token ids that prompts are made of: every vocabulary has them, and none as a special one."""


class ServerTarget:
    """A server that is asked over HTTP, one request at a time.

    The same `seed` gives the same tokens; without one they are ones that nobody has sent before.
    """

    def __init__(self, endpoint: Endpoint, model: str, *, seed: int | None = None) -> None:
        self._endpoint, self._model = endpoint, model
        self._rng = np.random.default_rng(None if seed is None else [seed, 1])

    def read(self, cell: Cell) -> Reading:
        """As `Target.read`: a first request fills the prefix, the second one is measured."""
        prefix = self._tokens(cell.cached)
        if prefix:
            self._ask(prefix + self._tokens(1))
        answer = self._ask(prefix + self._tokens(cell.uncached))
        return Reading(answer[0], answer[1])

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._rng.integers(*TOKENS, count)]

    def _ask(self, tokens: list[int]) -> tuple[float, int | None]:
        answer = self._endpoint.complete(completion(self._model, tokens, 1))
        if answer.error:
            raise EngineError(
                f"a prompt of {len(tokens)} tokens: {answer.error}",
                where=self._endpoint.url,
                remedy="see the server's log; --max-tokens asks for shorter ones",
            )
        return answer.ttft_s, answer.cached_tokens


class TorchTarget:
    """A decoder with random weights in the process of another interpreter; a context manager."""

    def __init__(
        self, has: Interpreter, config: Path, device: str | None, *, start_s: float
    ) -> None:
        self._command = [has.python, _DECODER, str(config), device or has.device]
        self._start_s = start_s
        self.told: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        try:
            self.told = self._line()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def read(self, cell: Cell) -> Reading:
        """As `Target.read`."""
        assert self._process.stdin is not None  # noqa: S101  (it was asked for)
        with suppress(OSError):  # which the answer, or its lack, tells better
            self._process.stdin.write(json.dumps(cell) + "\n")
            self._process.stdin.flush()
        return Reading(float(self._line()["ttft_s"]), None)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  (it was asked for)
        line = self._process.stdout.readline()
        told = json.loads(line) if line else {"error": self._last_words()}
        if "error" in told:
            raise EngineError(
                str(told["error"]), where="torch", remedy="see --device, --max-tokens, --model"
            )
        return dict(told)

    def _last_words(self) -> str:
        assert self._process.stderr is not None  # noqa: S101  (it was asked for)
        self._process.wait()
        lines = [line for line in self._process.stderr.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"ended with status {self._process.returncode}"
