"""A small OpenAI-compatible server with a prefix cache, which takes the time it is told to take.

As vLLM does, it caches full blocks, hits at most all but the last token, and keeps what its answers
say. It can also refuse, stall, break off and die.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvscope.core.trace import OUTPUTS

Key = tuple[int, ...]


@dataclass
class Behaviour:
    """What the server does; times in seconds."""

    block_size: int = 16
    blocks: int = 10_000
    base_s: float = 0.0
    per_token_s: float = 0.0
    per_output_s: float = 0.0  # between two output tokens
    outside_s: float = 0.0  # of a request, which its metrics of steps leave out
    tells_hits: bool = True
    caches: bool = True
    tells_blocks: bool = True
    resets: bool = True
    refuses_from: int | None = None  # the request, by number, from which on it refuses
    refuses_at: int | None = None  # this one alone
    health_s: float = 0.0
    dies_at: int | None = None
    stalls_at: int | None = None
    stall_s: float = 0.0
    max_model_len: int | None = 8192
    dead: bool = False
    seen: list[dict[str, Any]] = field(default_factory=list)
    prefills_s: list[float] = field(default_factory=list)


class Cache:
    """LRU over whole prefixes of blocks; a request's tail is older than its head."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.held: OrderedDict[Key, None] = OrderedDict()

    def serve(self, prompt: list[int], output: list[int]) -> int:
        """Keep a request's blocks; the tokens that it hits."""
        size = self.behaviour.block_size
        keys = [tuple(prompt[: end * size]) for end in range(1, (len(prompt) - 1) // size + 1)]
        hits = 0
        while hits < len(keys) and keys[hits] in self.held:
            hits += 1
        kept = prompt + output[:-1]
        for end in range(len(kept) // size, 0, -1):
            key = tuple(kept[: end * size])
            self.held.pop(key, None)
            self.held[key] = None
        while len(self.held) > self.behaviour.blocks:
            self.held.popitem(last=False)
        return hits * size if self.behaviour.caches else 0


class Handler(BaseHTTPRequestHandler):
    """Answers what kvscope asks."""

    protocol_version = "HTTP/1.1"
    behaviour: Behaviour
    cache: Cache
    lock: threading.Lock
    server: ThreadingHTTPServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer a request without a body."""
        if self.path == "/health":
            time.sleep(self.behaviour.health_s)
            self._answer(200, "")
        elif self.path == "/v1/models":
            model = {"id": "fake", "max_model_len": self.behaviour.max_model_len}
            self._answer(200, json.dumps({"data": [model]}))
        elif self.path == "/version":
            self._answer(200, json.dumps({"version": "1.2.3"}))
        elif self.path == "/metrics" and self.behaviour.tells_blocks:
            size, blocks = self.behaviour.block_size, self.behaviour.blocks + 1
            labels = f'engine="0",block_size="{size}",num_gpu_blocks="{blocks}"'
            prefills = self.behaviour.prefills_s
            self._answer(
                200,
                f"vllm:cache_config_info{{{labels}}} 1.0\n"
                'vllm:request_queue_time_seconds_sum{engine="0"} 0.0\n'
                f'vllm:request_prefill_time_seconds_sum{{engine="0"}} {sum(prefills)}\n'
                f'vllm:request_prefill_time_seconds_count{{engine="0"}} {len(prefills)}.0\n',
            )
        else:
            self._answer(404, "{}")

    def do_POST(self) -> None:
        """Completions, and the cache's reset."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache" and not self.behaviour.resets:
            self._answer(404, "{}")
            return
        if self.path == "/reset_prefix_cache":
            self.cache.held.clear()
            self._answer(200, "")
            return
        asked = json.loads(body)
        with self.lock:  # one after the other, as one prefill server
            self._complete(asked)

    def _complete(self, asked: dict[str, Any]) -> None:
        does = self.behaviour
        number = len(does.seen)
        does.seen.append(asked)
        refuses = does.refuses_from is not None and number >= does.refuses_from
        if refuses or number == does.refuses_at:
            self._answer(400, json.dumps({"error": {"message": "not today"}}))
            return
        prompt, count = asked["prompt"], asked["max_tokens"]
        output = (asked.get("vllm_xargs") or {}).get(OUTPUTS) or [7] * count
        hits = self.cache.serve(prompt, output)
        if number == does.stalls_at:
            time.sleep(does.stall_s)
        prefill_s = does.base_s + does.per_token_s * (len(prompt) - hits)
        time.sleep(does.outside_s + prefill_s)
        does.prefills_s.append(prefill_s)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if number == does.dies_at:
            threading.Thread(target=self._die).start()
            self.close_connection = True
            return
        for place in range(count):
            if place:
                time.sleep(does.per_output_s)
            self._event(json.dumps({"choices": [{"text": ""}]}))
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": count}
        if does.tells_hits:
            usage["prompt_tokens_details"] = {"cached_tokens": hits}
        self._event(json.dumps({"choices": [], "usage": usage}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _die(self) -> None:
        self.behaviour.dead = True
        self.server.shutdown()
        self.server.server_close()

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


class Server(ThreadingHTTPServer):
    """One that minds nobody who leaves."""

    daemon_threads = True
    request_queue_size = 256  # connections at once, as real servers take

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that left."""


@contextmanager
def fake_server(behaviour: Behaviour, port: int = 0) -> Iterator[str]:
    """Yield the address of a server that behaves so while the block runs."""
    kind = type("FakeHandler", (Handler,), {})
    kind.behaviour, kind.cache = behaviour, Cache(behaviour)  # type: ignore[attr-defined]
    kind.lock = threading.Lock()  # type: ignore[attr-defined]
    server = Server(("127.0.0.1", port), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
