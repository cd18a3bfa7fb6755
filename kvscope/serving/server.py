"""A vLLM server as a context manager: start it, wait until it answers, end all its processes."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import IO, Self

from msgspec import Struct, field

from kvscope.core.errors import EngineError
from kvscope.core.files import json_object
from kvscope.serving import guard
from kvscope.serving.client import Endpoint
from kvscope.serving.interpreter import Interpreter

START_S = 600.0
TAIL_LINES = 15
_STEP_S = 0.1
_GIB = 2**30
HOST = "127.0.0.1"
_FORCED = "kvscope.vllm_plugin.adapter:ForcedOutputs"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json")


class EngineDied(EngineError):
    """The server ended by itself or does not answer (in time); `log` has its last lines."""

    def __init__(self, what: str, *, remedy: str, log: tuple[str, ...] = ()) -> None:
        self.log = log
        super().__init__(what, where="vLLM", remedy=remedy)


class Launch(Struct, frozen=True):
    """A vLLM command line and environment.

    `model` is a folder, or a name that vLLM resolves; a folder without weights gets random ones.
    `blocks` is the number that requests can use (vLLM's own count is one more); None lets vLLM take
    as many as fit. On a CPU, `kv_bytes_per_token` sizes the memory for them; None: 1 GiB. With
    `forced_outputs`, requests can state their output tokens. `flags` and `environment` are added.
    """

    model: str
    block_size: int
    blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    forced_outputs: bool = False
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    kv_bytes_per_token: int | None = None

    def command(self, has: Interpreter, port: int) -> list[str]:
        """Return the command line, in words, for vLLM in the interpreter `has`."""
        module = "vllm.entrypoints.openai.api_server"
        address = ("--host", HOST, "--port", str(port))
        return [has.python, "-m", module, *address, *self.options(has)]

    def options(self, has: Interpreter) -> list[str]:
        """Return vLLM's options, in words, for the device of `has`; without host and port."""
        numbers: dict[str, int | None] = {
            "--block-size": self.block_size,
            "--num-gpu-blocks-override": None if self.blocks is None else self.blocks + 1,
            "--max-model-len": self.max_model_len,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
        }
        return [
            *("--model", str(model_folder(self.model) or self.model)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *(word for flag, value in numbers.items() if value for word in (flag, str(value))),
            *([] if has.device == "cuda" else ["--enforce-eager"]),
            *_random_weights(self.model),
            *(["--logits-processors", _FORCED] if self.forced_outputs else []),
            *self.flags,
        ]

    def process_environment(self, has: Interpreter) -> dict[str, str]:
        """Return the variables: local defaults, replaced by this process's, then `environment`."""
        defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
        if model_folder(self.model):
            defaults["HF_HUB_OFFLINE"] = "1"
        if has.device == "cpu":
            space = str(self._gib())
            defaults |= {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": space}
        paths = [str(Path(guard.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        python_path = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        return {**defaults, **os.environ, **python_path, **self.environment}

    def _gib(self) -> int:
        """Return the GiB for all KV blocks, rounded up; 1 if their number or size is unknown."""
        if self.kv_bytes_per_token is None or self.blocks is None:
            return 1
        tokens = (self.blocks + 1) * self.block_size
        return max(1, math.ceil(tokens * self.kv_bytes_per_token / _GIB))


class VllmServer:
    """A vLLM server that runs during the `with` block; then all of its processes end.

    `has` is the interpreter that runs `launch`. The log is appended to the file at `log_path`;
    None: it is kept only until the end. A request may take `timeout_s`. Entering starts the server
    and waits until it answers. Raises EngineDied if it ends earlier or does not answer within
    `start_s`, KeyboardInterrupt once `stop` is set.
    """

    def __init__(
        self,
        launch: Launch,
        has: Interpreter,
        *,
        start_s: float = START_S,
        timeout_s: float = 600.0,
        log_path: str | None = None,
        stop: Event | None = None,
    ) -> None:
        self.launch = launch
        self._has, self._start_s, self._timeout_s = has, start_s, timeout_s
        self._log_path, self._stop = log_path, stop or Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        port = free_port()
        self.endpoint = Endpoint(f"http://{HOST}:{port}", timeout_s=self._timeout_s)
        command = self.launch.command(self._has, port)
        self._log = Path(self._log_path).open("ab+") if self._log_path else tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.launch.process_environment(self._has),
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and all of its processes; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None  # noqa: S101  (a pipe, as set above)
            process.stdin.close()  # the guard ends the group then
            try:
                process.wait(2 * guard.PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def alive(self) -> bool:
        """Return whether the server's process still runs."""
        return self._process is not None and self._process.poll() is None

    def tail(self, lines: int = TAIL_LINES) -> tuple[str, ...]:
        """Return the last `lines` of the server's log that are not blank."""
        return tuple(line for line in self.log().splitlines() if line.strip())[-lines:]

    def log(self) -> str:
        """Return the server's log as text, empty once the server was closed."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def died(self, when: str) -> EngineDied:
        """Return the error for a server that ended by itself or stopped answering.

        `when` is a phrase for its message, such as "before it was ready". Waits up to
        `guard.PATIENCE_S` for the server's exit status.
        """
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(guard.PATIENCE_S)
        how = " (it does not answer)" if code is None else f" ({_exit_in_words(code)})"
        return EngineDied(f"ended {when}{how}", remedy="see its last lines above", log=self.tail())

    def _wait(self) -> None:
        until = time.monotonic() + self._start_s
        while not self.endpoint.healthy():
            if not self.alive:
                raise self.died("before it was ready")
            if self._stop.is_set():
                raise KeyboardInterrupt
            if time.monotonic() > until:
                raise EngineDied(
                    f"did not answer within {self._start_s:g} s",
                    remedy="see its last lines above, or raise --start-timeout",
                    log=self.tail(),
                )
            time.sleep(_STEP_S)


def model_folder(model: str) -> Path | None:
    """Return the absolute folder `model`, or that of `model` if it is a config.json; else None."""
    path = Path(model)
    if path.name == "config.json" and path.is_file():
        return path.resolve().parent
    return path.resolve() if path.is_dir() else None


def config_of(model: str) -> dict[str, object] | None:
    """Return the content of config.json in the folder of a model, None without such a folder.

    Raises InputError if the folder has no readable config.json.
    """
    folder = model_folder(model)
    if folder is None:
        return None
    return json_object(folder / "config.json", "name a model's folder")


def _random_weights(model: str) -> list[str]:
    """Return vLLM's options for a model's folder without weights or without a tokenizer."""
    folder = model_folder(model)
    if folder is None:
        return []
    weights = any(next(folder.glob(kind), None) for kind in _WEIGHTS)
    tokenizer = any((folder / name).is_file() for name in _TOKENIZERS)
    return [
        *([] if weights else ["--load-format", "dummy"]),
        *([] if tokenizer else ["--skip-tokenizer-init"]),
    ]


def _exit_in_words(code: int) -> str:
    if code > 128:
        try:
            return signal.Signals(code - 128).name
        except ValueError:
            pass
    return f"exit status {code}"


def free_port() -> int:
    """Return a loopback port on which no process listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
