"""Options of the commands that run an engine: which engine, and how to start it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from kvscope.app import options as opt
from kvscope.app import values
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from kvscope.serving.interpreter import Interpreter
    from kvscope.serving.server import Launch, VllmServer

TEN_MINUTES_S = 600.0
GPU_BLOCK, CPU_BLOCK = 16, 32
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 128, 2048


class EngineOptions(opt.Options, frozen=True, kw_only=True):
    """Options that choose an engine: a running server, or the model and flags to start one."""

    url: str | None = opt.Called(
        "A running OpenAI-compatible server, for example http://localhost:8000.", "URL"
    )
    model: str | None = opt.Called(
        "Model to start vLLM with, as vLLM takes it. A folder with only a config.json gets"
        " random weights, which take as long.",
        "MODEL",
    )
    served_model: str | None = opt.option(
        "Which of the server's models to use.", "NAME", default="its first"
    )
    python: str | None = opt.Source(
        "Python interpreter that has the engine.", default="the one that runs kvscope"
    )
    engine_block_size: int | None = opt.option(
        "Tokens per block of the engine (vLLM's --block-size).",
        "TOKENS",
        values.whole(1),
        f"{GPU_BLOCK} on a GPU, {CPU_BLOCK} on a CPU",
    )
    max_num_seqs: int | None = opt.Count(
        "Limit of running requests per replica.",
        default=f"{MAX_NUM_SEQS}; validate: the deployment's",
    )
    max_num_batched_tokens: int | None = opt.Tokens(
        "Limit of tokens per step.",
        default=f"{MAX_NUM_BATCHED_TOKENS}; validate: the deployment's",
    )
    vllm_flags: tuple[str, ...] = opt.option(
        'More flags for vLLM, for example "--gpu-memory-utilization 0.8".',
        "FLAGS",
        lambda text: tuple(shlex.split(text)),
        "none",
        value=(),
    )
    start_timeout: float = opt.Time(
        "Longest time the engine may take to start.", default="10m", value=TEN_MINUTES_S
    )
    timeout: float = opt.Time(
        "Longest time to wait for one answer.", default="10m", value=TEN_MINUTES_S
    )
    server_log: str | None = opt.Target("Keep vLLM's log in this file.")

    def check_engine(self, started: str) -> None:
        """Raise UsageError unless either a valid --url or --model, for `started`, is given."""
        if (self.url is None) == (self.model is None):
            raise UsageError(
                "name one of them",
                where="--url, --model",
                remedy=f"a running server, or the model to start {started} with",
            )
        if self.url is not None:
            from kvscope.serving.client import Endpoint

            Endpoint(self.url)  # so that what is no address is refused first

    def server(self, python: Interpreter, stop: Event) -> Callable[[Launch], VllmServer]:
        """Return a constructor of vLLM servers with the timeouts and the log of these options."""
        from kvscope.serving.server import VllmServer

        return partial(
            VllmServer,
            has=python,
            start_s=self.start_timeout,
            timeout_s=self.timeout,
            log_path=self.server_log,
            stop=stop,
        )
