"""Requests to an OpenAI-compatible server, timed to the first token and to the last.

Prompts are token ids, answers are streamed. One thread may send a request and another read the
answer, so that requests leave in the intended order. `http.client` allows this, with a connection
per request; the usual HTTP libraries send and read in one call.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from kvscope.core.errors import EngineError, UsageError

API_KEY = "KVSCOPE_API_KEY"
QUICK_S = 10.0  # for what takes no prefill
_PREFILLS = re.compile(
    r"^vllm:request_(queue|prefill)_time_seconds(_sum|_count)(?:\{.*\})? (\S+)$", re.MULTILINE
)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\}", re.MULTILINE)


class Answer(Struct, frozen=True):
    """The result of one request; times are those of time.perf_counter, in seconds.

    `first_s` is NaN if no token came. `cached_tokens` is None if the server does not report them.
    `error` is empty for a complete answer. `status` is the HTTP status, 0 without a response.
    """

    sent_s: float
    first_s: float
    finished_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    status: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Return the seconds from sending the request to its first token, NaN without a token."""
        return self.first_s - self.sent_s


class ModelCard(Struct, frozen=True):
    """A served model, and its longest request in tokens, None if the server does not report it."""

    name: str
    max_model_len: int | None


class BlockPool(Struct, frozen=True):
    """An engine's KV blocks that requests can use, and the tokens per block."""

    usable_blocks: int
    block_size: int


class InSteps(Struct, frozen=True):
    """Number of requests that an engine answered, and their total seconds in queue and prefill."""

    requests: int
    seconds: float


class Endpoint:
    """An OpenAI-compatible server at `url`, with or without `/v1` at its end.

    The API key is KVSCOPE_API_KEY from the environment. Raises UsageError for an invalid URL.
    """

    def __init__(self, url: str, *, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise UsageError(
                f"{url!r} is no address of a server",
                where="--url",
                remedy="write for example http://localhost:8000",
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout_s = timeout_s
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        key = os.environ.get(API_KEY)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def healthy(self) -> bool:
        """Return whether the server answers with a status below 500."""
        try:
            status, _ = self._ask("GET", "/health")
            if status == http.client.NOT_FOUND:
                status, _ = self._ask("GET", "/v1/models")
        except EngineError:
            return False
        return status < http.client.INTERNAL_SERVER_ERROR

    def model(self, name: str | None = None) -> ModelCard:
        """Return the server's model called `name`, by default its first.

        Raises EngineError if there is no such server or model.
        """
        status, body = self._ask("GET", "/v1/models")
        if status != http.client.OK:
            raise EngineError(
                f"answered {status} to /v1/models: {_reason(body)}",
                where=self.url,
                remedy=f"is it an OpenAI-compatible server? Set {API_KEY} to its key",
            )
        try:
            models = {str(card["id"]): card for card in _decoded(body)["data"]}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError("/v1/models is not in OpenAI's format", where=self.url) from error
        if not models or (name is not None and name not in models):
            known = ", ".join(models) or "none"
            raise EngineError(f"serves no {name}", where=self.url, remedy=f"it serves {known}")
        name = name or next(iter(models))
        longest = models[name].get("max_model_len")
        return ModelCard(name, int(longest) if longest else None)

    def version(self) -> str | None:
        """Return the version that the server reports, None if it reports none."""
        with suppress(ValueError, KeyError, TypeError):
            return str(_decoded(self._body("GET", "/version") or b"")["version"])
        return None

    def metrics(self) -> str:
        """Return the server's metrics in Prometheus' text format, empty if it has none."""
        return (self._body("GET", "/metrics") or b"").decode(errors="replace")

    def reset_cache(self) -> bool:
        """Ask the server to empty its prefix cache; return whether it did (vLLM in dev mode)."""
        return self._body("POST", "/reset_prefix_cache") is not None

    def send(self, body: bytes) -> Pending:
        """Send a body from `completion`; return its request. Raises EngineError if unreachable."""
        connection = self._connection(self.timeout_s)
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            connection.connect()
            sent_s = time.perf_counter()
            connection.request("POST", f"{self._path}/v1/completions", body, headers)
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from error
        return Pending(connection, sent_s)

    def complete(self, body: bytes) -> Answer:
        """Send a body from `completion`, wait for the last token and return the answer."""
        return self.send(body).read()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s)

    def _body(self, method: str, path: str) -> bytes | None:
        """Return the body of a response; None if there is none, or its status is not 200."""
        with suppress(EngineError):
            status, body = self._ask(method, path)
            return body if status == http.client.OK else None
        return None

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = self._connection(min(self.timeout_s, QUICK_S))
        try:
            connection.request(method, self._path + path, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _unreachable(self, error: Exception) -> EngineError:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        remedy = "start it, or name another --url"
        return EngineError(f"no answer ({what})", where=self.url, remedy=remedy)


class Pending:
    """A request that was sent, and whose answer was not read yet."""

    def __init__(self, connection: http.client.HTTPConnection, sent_s: float) -> None:
        self.sent_s = sent_s
        self._connection = connection
        self._cancelled = False

    def cancel(self) -> None:
        """Close the connection: `read` returns at once, and the server aborts the request."""
        self._cancelled = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def read(self) -> Answer:
        """Wait for the last token and return the answer; failures are in its `error`."""
        first_s, lines, status, failure = float("nan"), list[bytes](), 0, ""
        try:
            response = self._connection.getresponse()
            status = response.status
            if status != http.client.OK:
                failure = f"status {status}: {_reason(response.read())}"
            else:
                while line := response.readline():
                    if line.startswith(b"data:"):
                        if not lines:
                            first_s = time.perf_counter()
                        lines.append(line[5:].strip())
        except TimeoutError:
            failure = "timed out"
        except (OSError, http.client.HTTPException) as error:
            failure = f"broke off ({type(error).__name__})"
        finally:
            self._connection.close()
        finished_s = time.perf_counter()
        if self._cancelled:
            return Answer(self.sent_s, first_s, finished_s, status=status, error="given up")
        return _answer(lines, self.sent_s, first_s, finished_s, status, failure)


def completion(
    model: str,
    tokens: Sequence[int],
    outputs: int,
    *,
    xargs: Mapping[str, Any] | None = None,
    session: str | None = None,
) -> bytes:
    """Return the body of a request for exactly `outputs` tokens after a prompt of token ids.

    `xargs` become the key `vllm_xargs`, `session` (a conversation's id) `session_id`, both for
    kvscope's plugin in vLLM; None: without the key.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(tokens),
        "max_tokens": outputs,
        "min_tokens": outputs,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if xargs:
        body["vllm_xargs"] = dict(xargs)
    if session is not None:
        body["session_id"] = session
    return json.dumps(body, separators=(",", ":")).encode()


def _answer(
    lines: Sequence[bytes], sent_s: float, first_s: float, finished_s: float, status: int, why: str
) -> Answer:
    usage: dict[str, Any] = {}
    ended = False
    for line in (*lines[:1], *lines[-3:]):
        if line == b"[DONE]":
            ended = True
            continue
        try:
            chunk = _decoded(line)
        except ValueError:
            why = why or "the stream is not JSON"
            continue
        if not isinstance(chunk, dict):
            why = why or "the stream is not OpenAI's"
        elif chunk.get("error"):
            why = why or _words(chunk["error"])
        elif chunk.get("usage"):
            usage = chunk["usage"]
    if not why and not ended:
        why = "broke off"
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return Answer(
        sent_s=sent_s,
        first_s=first_s,
        finished_s=finished_s,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=None if cached is None else int(cached),
        status=status,
        error=why,
    )


def block_pool(metrics: str) -> BlockPool | None:
    """Return the block pool that Prometheus metrics state, None if they state none.

    Source: vLLM 0.32.0, the gauge vllm:cache_config_info; it counts block 0, which no request uses.
    """
    gauge = _CACHE_CONFIG.search(metrics)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', gauge["labels"])) if gauge else {}
    try:
        return BlockPool(int(labels["num_gpu_blocks"]) - 1, int(labels["block_size"]))
    except (KeyError, ValueError):
        return None


def time_in_steps(metrics: str) -> InSteps | None:
    """Return the queue and prefill time in the metrics of a vLLM server, summed over its engines.

    None for metrics of other servers.

    Source: vLLM 0.26.0 and 0.32.0, vllm/v1/metrics/loggers.py (PrometheusStatLogger).
    """
    sums: dict[str, list[float]] = {}
    for name, which, value in _PREFILLS.findall(metrics):
        sums.setdefault(name + which, []).append(float(value))
    queued, prefilled = (sum(sums.get(f"{name}_sum", ())) for name in ("queue", "prefill"))
    counts = sums.get("prefill_count")
    return InSteps(int(sum(counts)), queued + prefilled) if counts else None


def _decoded(body: bytes) -> Any:
    """Return decoded JSON. Raises ValueError, also for too deep nesting."""
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("nests too deep") from error


def _reason(body: bytes) -> str:
    """Return the error message in a server's response as one line."""
    try:
        return _words(_decoded(body))
    except ValueError:
        return " ".join(body.decode(errors="replace").split())[:200]


def _words(error: object) -> str:
    while isinstance(error, dict):
        nested = error.get("error") or error.get("message") or error.get("detail")
        error = nested or json.dumps(error)
    return " ".join(str(error).split())[:300]
