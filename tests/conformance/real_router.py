"""A real router on this machine, in front of scripted workers that answer on command."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Self

from benchmarks.router_program import TIMEOUT_S, RouterProgram
from kvscope.serving.server import HOST

_ANSWER = {
    "text": "",
    "meta_info": {"id": "0", "finish_reason": {"type": "length", "length": 1}}
    | dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), 1),
}
# No path of a model: a router would look for its tokenizer.
_ABOUT = {"model_id": "m", "served_model_name": "m", "is_generation": True}
_MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "sglang"}]}


class RealRouter(RouterProgram):
    """A router's own program and N workers, all on loopback, until the context ends.

    `send` passes a request on and returns the worker that it reached, which answers on `finish`.
    """

    def __init__(self, package: str, workers: int, options: Sequence[str]) -> None:
        self.arrived: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self.may_answer: dict[int, threading.Event] = {}
        self._waiting: dict[int, HTTPConnection] = {}
        self._workers = [_Worker(number, self) for number in range(workers)]
        urls = [f"http://{HOST}:{worker.server_port}" for worker in self._workers]
        super().__init__(package, urls, options)

    def __enter__(self) -> Self:
        for worker in self._workers:
            threading.Thread(target=worker.serve_forever, daemon=True).start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        for event in self.may_answer.values():
            event.set()
        for connection in self._waiting.values():
            connection.close()
        super().__exit__(*error)
        for worker in self._workers:
            worker.shutdown()
            worker.server_close()

    def send(self, number: int, text: str) -> int:
        """Send a request, and return the worker that it arrived at."""
        self.may_answer[number] = threading.Event()
        connection = self.connection()
        body = {"text": text, "sampling_params": {"max_new_tokens": number}}
        connection.request(
            "POST", "/generate", json.dumps(body), {"Content-Type": "application/json"}
        )
        self._waiting[number] = connection
        arrived, worker = self.arrived.get(timeout=TIMEOUT_S)
        assert arrived == number
        return worker

    def finish(self, numbers: Sequence[int]) -> None:
        """Let workers answer, and return when the router counts these requests no longer."""
        for number in numbers:
            self.may_answer.pop(number).set()
            connection = self._waiting.pop(number)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            self.release(connection)
        if numbers:
            self.wait_for_load(len(self._waiting))


class _Worker(ThreadingHTTPServer):
    """A server that looks like SGLang's to a router."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, number: int, router: RealRouter) -> None:
        super().__init__((HOST, 0), _Handler)
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
