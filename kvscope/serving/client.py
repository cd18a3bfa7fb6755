"""Requests to an OpenAI-compatible server, and when each of their tokens came.

Prompts are token ids, answers are streamed. A request is sent by one thread and may be read by
another, so that requests leave in the order in which they are meant to. The standard library's HTTP
client does all of that, one connection a request.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kvscope.core.errors import EngineError, UsageError

API_KEY = "KVSCOPE_API_KEY"
QUICK_S = 10.0  # for what a server answers by itself
_NOT_THERE = "start it, or name another --url"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request; times are those of time.perf_counter, in seconds.

    `first_s` is nan where no token came. `cached_tokens` is None where the server does not tell.
    `error` says what went wrong; `status` is the HTTP status, 0 where there was none.
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
        """From sending the request to its first token."""
        return self.first_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a server serves, and the longest request that it takes, where it tells."""

    model: str
    max_model_len: int | None


class Endpoint:
    """An OpenAI-compatible server at `url` (with or without a `/v1`).

    KVSCOPE_API_KEY in the environment is sent as the key. Raises UsageError for what is no URL.
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
        """Whether the server answers at all."""
        try:
            status, _ = self._ask("GET", "/health")
            if status == http.client.NOT_FOUND:
                status, _ = self._ask("GET", "/v1/models")
        except EngineError:
            return False
        return status < http.client.INTERNAL_SERVER_ERROR

    def served(self, name: str | None = None) -> Served:
        """The model called `name` that the server has, or its first.

        Raises EngineError where there is no such server or model.
        """
        status, body = self._ask("GET", "/v1/models")
        if status != http.client.OK:
            raise EngineError(
                f"says {status} to /v1/models: {_reason(body)}",
                where=self.url,
                remedy=f"is it an OpenAI-compatible server? {API_KEY} names the key for one",
            )
        try:
            models = {str(one["id"]): one for one in json.loads(body)["data"]}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError("does not tell its models as OpenAI does", where=self.url) from error
        if not models or (name is not None and name not in models):
            known = ", ".join(models) or "none"
            raise EngineError(f"serves no {name}", where=self.url, remedy=f"it serves {known}")
        chosen = next(iter(models)) if name is None else name
        longest = models[chosen].get("max_model_len")
        return Served(chosen, int(longest) if longest else None)

    def version(self) -> str | None:
        """What the server says its version is, where it does."""
        with suppress(EngineError, ValueError, KeyError, TypeError):
            status, body = self._ask("GET", "/version")
            if status == http.client.OK:
                return str(json.loads(body)["version"])
        return None

    def metrics(self) -> str:
        """The server's metrics in Prometheus' format; empty where it has none."""
        with suppress(EngineError):
            status, body = self._ask("GET", "/metrics")
            if status == http.client.OK:
                return body.decode(errors="replace")
        return ""

    def reset_cache(self) -> bool:
        """Whether the server emptied its prefix cache (vLLM in development mode does)."""
        with suppress(EngineError):
            status, _ = self._ask("POST", "/reset_prefix_cache")
            return status == http.client.OK
        return False

    def send(self, body: bytes) -> Pending:
        """Send a request as `completion` makes it.

        Raises EngineError where nobody listens.
        """
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
        """Send a request and wait for its end."""
        return self.send(body).read()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s)

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
        return EngineError(f"no answer ({what})", where=self.url, remedy=_NOT_THERE)


class Pending:
    """A request that was sent."""

    def __init__(self, connection: http.client.HTTPConnection, sent_s: float) -> None:
        self.sent_s = sent_s
        self._connection = connection
        self._cancelled = False

    def cancel(self) -> None:
        """Give the request up: `read` returns at once, and the server notices."""
        self._cancelled = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def read(self) -> Answer:
        """The answer, when its last token is there. Never raises for what a server does."""
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
        answer = _answer(lines, self.sent_s, first_s, finished_s, status, failure)
        return answer if not self._cancelled else _failed(answer, "given up")


def completion(
    model: str,
    tokens: Sequence[int],
    outputs: int,
    *,
    xargs: Mapping[str, Any] | None = None,
    session: str | None = None,
) -> bytes:
    """The body of a request for exactly `outputs` tokens behind a prompt of token ids.

    `xargs` go to the engine's own extensions (vLLM's `vllm_xargs`), `session` is the conversation.
    """
    asked: dict[str, Any] = {
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
        asked["vllm_xargs"] = dict(xargs)
    if session is not None:
        asked["session_id"] = session
    return json.dumps(asked, separators=(",", ":")).encode()


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
            chunk = json.loads(line)
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


def _failed(answer: Answer, why: str) -> Answer:
    return Answer(answer.sent_s, answer.first_s, answer.finished_s, status=answer.status, error=why)


def _reason(body: bytes) -> str:
    """What a server says of its refusal, in one line."""
    try:
        return _words(json.loads(body))
    except ValueError:
        return " ".join(body.decode(errors="replace").split())[:200]


def _words(told: object) -> str:
    while isinstance(told, dict):
        told = told.get("error") or told.get("message") or told.get("detail") or json.dumps(told)
    return " ".join(str(told).split())[:300]
