"""A real router on this machine, in front of scripted workers that answer on command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

_HOST = "127.0.0.1"
_TIMEOUT_S = 60.0
_ANSWER = {
    "text": "",
    "meta_info": {"id": "0", "finish_reason": {"type": "length", "length": 1}}
    | dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), 1),
}
# No path of a model: a router would look for its tokenizer.
_ABOUT = {"model_id": "m", "served_model_name": "m", "is_generation": True}
_MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "sglang"}]}


class RealRouter:
    """A router's own program and N workers, all on loopback, until the context ends.

    `send` passes a request on and returns the worker that it reached, which answers on `finish`.
    """

    def __init__(self, package: str, workers: int, options: Sequence[str]) -> None:
        self.arrived: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self.may_answer: dict[int, threading.Event] = {}
        self._waiting: dict[int, HTTPConnection] = {}
        self._idle: list[HTTPConnection] = []
        self._workers = [_Worker(number, self) for number in range(workers)]
        self._port, metrics = _free_port(), _free_port()
        urls = [f"http://{_HOST}:{worker.server_port}" for worker in self._workers]
        command = [sys.executable, "-m", f"{package}.launch_router", "--worker-urls", *urls]
        command += ["--host", _HOST, "--port", str(self._port)]
        command += ["--prometheus-host", _HOST, "--prometheus-port", str(metrics)]
        self.log: list[str] = []
        self._program = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self.worker_of_url = {url: number for number, url in enumerate(urls)}

    def __enter__(self) -> Self:
        try:
            for worker in self._workers:
                threading.Thread(target=worker.serve_forever, daemon=True).start()
            self._reader.start()
            ready = len(self._workers)
            self._wait(lambda: self._get("/readiness").get("healthy_workers") == ready)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for event in self.may_answer.values():
            event.set()
        for connection in (*self._waiting.values(), *self._idle):
            connection.close()
        self._program.kill()
        self._program.wait()
        self._reader.join()
        assert self._program.stdout is not None
        self._program.stdout.close()
        for worker in self._workers:
            worker.shutdown()
            worker.server_close()

    def send(self, number: int, text: str) -> int:
        """Send a request, and return the worker that it arrived at."""
        self.may_answer[number] = threading.Event()
        connection = self._idle.pop() if self._idle else self._connection()
        body = {"text": text, "sampling_params": {"max_new_tokens": number}}
        connection.request(
            "POST", "/generate", json.dumps(body), {"Content-Type": "application/json"}
        )
        self._waiting[number] = connection
        arrived, worker = self.arrived.get(timeout=_TIMEOUT_S)
        assert arrived == number
        return worker

    def finish(self, numbers: Sequence[int]) -> None:
        """Let workers answer, and return when the router no longer counts these requests."""
        for number in numbers:
            self.may_answer.pop(number).set()
            connection = self._waiting.pop(number)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            self._idle.append(connection)
        if numbers:
            self._wait(lambda: sum(self.loads()) == len(self._waiting))

    def loads(self) -> list[int]:
        """Return how many requests of each worker the router counts."""
        loads = [0] * len(self._workers)
        for worker in self._get("/workers")["workers"]:
            loads[self.worker_of_url[worker["url"]]] = worker["load"]
        return loads

    def _connection(self) -> HTTPConnection:
        return HTTPConnection(_HOST, self._port, timeout=_TIMEOUT_S)

    def _get(self, path: str) -> Any:
        connection = self._idle.pop() if self._idle else self._connection()
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        self._idle.append(connection)
        return answer

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; the program may first have to start."""
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            assert self._program.poll() is None, "".join(self.log[-20:])
            try:
                if condition():
                    return
            except (OSError, HTTPException, json.JSONDecodeError):
                time.sleep(0.05)
            time.sleep(0.0005)
        raise TimeoutError("".join(self.log[-20:]))

    def _read_log(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self.log.append(line)


class _Worker(ThreadingHTTPServer):
    """A server that looks like SGLang's to a router."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, number: int, router: RealRouter) -> None:
        super().__init__((_HOST, 0), _Handler)
        self.number = number
        self.router = router

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: at the end the router's connections break."""


class _Handler(BaseHTTPRequestHandler):
    server: _Worker
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer health checks and queries for names; report no loads."""
        if "load" in self.path or "metrics" in self.path:
            self.send_error(404)
        else:
            self._answer(_MODELS if "models" in self.path else _ABOUT)

    def do_POST(self) -> None:
        """Answer a request when its event is set."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = body["sampling_params"]["max_new_tokens"]
        event = self.server.router.may_answer[number]
        self.server.router.arrived.put((number, self.server.number))
        event.wait()
        self._answer(_ANSWER)

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
