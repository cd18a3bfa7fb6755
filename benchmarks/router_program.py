"""Run a real router in front of workers on loopback, and ask it for the load that it counts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any, Self

from kvscope.serving import guard
from kvscope.serving.server import HOST, free_port

TIMEOUT_S = 60.0


class RouterProgram:
    """A router of `package` in front of the workers at `urls`, until the context ends.

    Entering waits until all workers have joined. `log` has the lines that it printed.
    """

    def __init__(self, package: str, urls: Sequence[str], options: Sequence[str]) -> None:
        self._port, metrics = free_port(), free_port()
        self.worker_of_url = {url: number for number, url in enumerate(urls)}
        self.log: list[str] = []
        self._idle: list[HTTPConnection] = []
        command = [sys.executable, "-m", f"{package}.launch_router", "--worker-urls", *urls]
        command += ["--host", HOST, "--port", str(self._port)]
        command += ["--prometheus-host", HOST, "--prometheus-port", str(metrics)]
        self._command = [sys.executable, guard.__file__, *command, *options]

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        workers = len(self.worker_of_url)
        try:
            self.wait(lambda: self._get("/readiness").get("healthy_workers") == workers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._idle:
            connection.close()
        assert self._program.stdin is not None  # noqa: S101  (a pipe, as set above)
        assert self._program.stdout is not None  # noqa: S101  (a pipe, as set above)
        self._program.stdin.close()  # the guard ends the router then
        self._program.wait()
        self._reader.join()
        self._program.stdout.close()

    def connection(self) -> HTTPConnection:
        """Return a connection to the router that is not in use; give it back by `release`."""
        try:
            return self._idle.pop()
        except IndexError:
            return HTTPConnection(HOST, self._port, timeout=TIMEOUT_S)

    def release(self, connection: HTTPConnection) -> None:
        """Let others use a connection whose answer was read."""
        self._idle.append(connection)

    def loads(self) -> list[int]:
        """Return how many requests of each worker the router counts."""
        loads = [0] * len(self.worker_of_url)
        for worker in self._get("/workers")["workers"]:
            loads[self.worker_of_url[worker["url"]]] = worker["load"]
        return loads

    def wait_for_load(self, requests: int) -> None:
        """Wait until the router counts so many requests in flight."""
        self.wait(lambda: sum(self.loads()) == requests)

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so. Raise TimeoutError with the log's end if it never is."""
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until and self._program.poll() is None:
            try:
                if is_so():
                    return
            except (OSError, HTTPException, json.JSONDecodeError):
                time.sleep(0.05)  # it is not up yet
            time.sleep(0.0005)
        raise TimeoutError("".join(self.log[-20:]))

    def _get(self, path: str) -> Any:
        connection = self.connection()
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        self.release(connection)
        return answer

    def _read_log(self) -> None:
        assert self._program.stdout is not None  # noqa: S101  (a pipe, as set above)
        for line in self._program.stdout:
            self.log.append(line)
