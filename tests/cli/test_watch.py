"""`kvscope watch` as its user runs it: metrics over HTTP, who may read them, how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs prometheus_client")

from kvscope.app.watch import Watch, WatchOptions, WatchRequest, measure, watch_request
from kvscope.cli import watch as watch_command
from kvscope.cli.app import run
from kvscope.cli.watch import serving
from kvscope.core.addresses import Address
from kvscope.core.errors import ExitCode
from kvscope.vllm_plugin import kv_events
from kvscope.vllm_plugin.kv_events import BlockStored, EventBatch
from tests.cli.shell import Streams, streams_of
from tests.dashboard.browsing import free_port

ROOT = Path(__file__).parents[2]
ADVICE = ROOT / "tests" / "written_before" / "recommendation-tlru.toml"


def recorded(number: int, *, cached: int | None = 16) -> bytes:
    """Return a line as the recorder writes it: three blocks, two of them shared by all."""
    row = {
        "chat_id": number,
        "timestamp": float(number),
        "input_length": 50,
        "output_length": 4,
        "type": "chat",
        "hash_ids": [1, 2, number + 10],
        "block_size": 16,
    }
    return json.dumps(row | ({} if cached is None else {"cached_tokens": cached})).encode()


def watching(**stated: object) -> Watch:
    """Return a watch of ten requests, replayed once."""
    options = WatchOptions(capacity_blocks=4, **stated)  # type: ignore[arg-type]
    watched = Watch(watch_request(options))
    watched.add(map(recorded, range(10)))
    watched.hits = measure(watched.window, watched.request)
    return watched


def scraped(port: int, path: str = "/metrics", **headers: str) -> dict[str, float]:
    """Return the samples at a port by name."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
        text = answer.read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def refused(port: int, path: str = "/metrics", **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as error:
        scraped(port, path, **headers)
    error.value.close()
    return error.value.code


def test_metrics(tmp_path: Path) -> None:
    """Counts from the beginning; ratios once a window was replayed, worked out by hand."""
    port, watched = (
        free_port(),
        Watch(WatchRequest(WatchOptions(window_requests=9, every=0.0, capacity_blocks=4))),
    )
    with serving(watched, Address("127.0.0.1", port)):
        samples = scraped(port)
        assert samples["kvscope_requests_total"] == 0
        assert not [name for name in samples if "ratio" in name or "cached" in name]
    watched = watching(recommendation=str(ADVICE))
    with serving(watched, Address("127.0.0.1", port)):
        samples = scraped(port)
    assert samples["kvscope_requests_total"] == samples["kvscope_window_requests"] == 10
    assert samples["kvscope_input_tokens_total"] == 500
    assert samples["kvscope_cached_tokens_total"] == 160
    assert samples["kvscope_observed_hit_ratio"] == pytest.approx(16 / 50)
    for capacity in ("x1", "x2", "x4"):
        assert samples[f'kvscope_lru_hit_ratio{{capacity="{capacity}"}}'] == pytest.approx(32 / 50)
    assert samples["kvscope_ideal_hit_ratio"] == pytest.approx(32 / 50)
    assert samples["kvscope_recommended_hit_ratio"] == pytest.approx(32 / 50)
    assert watched.hits is not None
    assert samples["kvscope_drift_ratio"] == pytest.approx(watched.hits.drift)
    assert samples["kvscope_tune_again"] == watched.hits.tune_again


def test_who_may_read() -> None:
    """Without a token those who name this machine; with one those who know it."""
    port, watched = (
        free_port(),
        Watch(WatchRequest(WatchOptions(window_requests=9, every=0.0, capacity_blocks=4))),
    )
    with serving(watched, Address("127.0.0.1", port)):
        assert scraped(port, Host="localhost")
        assert refused(port, Host="evil.example") == 400
    with serving(watched, Address("127.0.0.1", port, "a token")):
        assert refused(port) == 403
        assert refused(port, Authorization="Bearer another") == 403
        assert refused(port, "/metrics?token=another") == 403
        assert scraped(port, Authorization="Bearer a token", Host="kvscope.monitoring.svc")
        assert scraped(port, "/metrics?token=a%20token")


def test_slow_clients_keep_no_other_from_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of too many connections is closed; those that stay silent are, too."""
    monkeypatch.setattr(watch_command, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(watch_command._SilentHandler, "timeout", 2.0)
    port, watched = free_port(), watching()
    threads = threading.active_count()
    with ExitStack() as opened, serving(watched, Address("127.0.0.1", port)):
        slow = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(30)
        ]
        for client in slow:
            with suppress(OSError):  # closed already
                client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert scraped(port)
        closed_s = time.monotonic() + 1.5  # a thread may take a while to see that it is closed
        while threading.active_count() > threads + 1 + 8 and time.monotonic() < closed_s:
            time.sleep(0.02)
        assert threading.active_count() <= threads + 1 + 8
        assert slow[0].recv(1) == b""
        assert slow[-1].recv(100) == b""  # after two seconds


def test_a_pipe_is_no_recording(tmp_path: Path, capsys: Streams) -> None:
    """It could be read once only, and a wait for its writer would be one for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert run(["watch", str(tmp_path / "pipe"), "--capacity-blocks", "4"]) == ExitCode.INPUT
    assert "pipe: neither a file nor a folder; name a recording" in capsys.readouterr().err


def test_another_address_gets_a_token(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the dashboard does: random, and printed."""

    def interrupted(*_: object) -> Generator[bool]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(watch_command, "_lines", interrupted)
    started = ["watch", str(tmp_path), "--capacity-blocks", "4", "--port", str(free_port())]
    assert run([*started, "--host", "0.0.0.0"]) == ExitCode.DONE  # noqa: S104
    assert re.search(r"`Authorization: Bearer [\w-]{20,}`", capsys.readouterr().err)
    assert "Bearer" not in streams_of(capsys, *started).err


def test_kv_events(capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are assembled from events are counted and kept as recorded ones are."""
    watched: list[Watch] = []

    def stream(endpoint: str, patience_s: float) -> Generator[tuple[int, EventBatch] | None]:
        assert endpoint == "tcp://localhost:5557"
        yield 1, EventBatch(1.0, [BlockStored([b"a", b"b"], None, 16)])
        yield None  # time goes on: the chain is a request
        raise KeyboardInterrupt

    def kept(steps: Generator[bool], watch: Watch) -> None:
        watched.append(watch)
        assert all(steps)

    monkeypatch.setattr(kv_events, "batches", stream)
    monkeypatch.setattr(watch_command, "_follow", kept)
    port = ("--port", str(free_port()))
    started = ["watch", "tcp://localhost:5557", "--capacity-blocks", "4", *port]
    assert run(started) == ExitCode.DONE
    assert (watched[0].requests, watched[0].input_tokens, watched[0].bad_lines) == (1, 32, 0)
    assert measure(watched[0].window, watched[0].request).requests == 1
    assert capsys.readouterr().err.endswith("note: 1 requests read\n")


def test_the_page(tmp_path: Path) -> None:
    """The command of docs/watch.md on a recording that grows; Ctrl-C ends it with exit code 0."""
    page = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```sh\nkvscope (.*?)\n```", page)
    (tmp_path / "recommendation.toml").write_text(ADVICE.read_text())
    file = tmp_path / "recording" / "recording-20261123-120000-7-00001.jsonl"
    file.parent.mkdir()
    file.write_bytes(b"".join(recorded(number) + b"\n" for number in range(20)))
    port = free_port()
    arguments = [*shlex.split(command), "--port", str(port), "--every", "1s"]
    started = [sys.executable, "-m", "kvscope", *arguments]
    with subprocess.Popen(started, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        until_s = time.monotonic() + 60
        samples: dict[str, float] = {}
        while "kvscope_ideal_hit_ratio" not in samples:
            assert time.monotonic() < until_s
            assert process.poll() is None
            time.sleep(0.1)
            try:
                samples = scraped(port)
            except urllib.error.URLError:
                continue
        assert samples["kvscope_requests_total"] == 20
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        notes = process.stderr.read().decode()
        assert process.wait(20) == ExitCode.DONE
    assert notes.endswith("note: 20 requests read\n")


@pytest.mark.parametrize(
    ("option", "name"),
    [("--grafana", "kvscope-watch.json"), ("--grafana-alerts", "kvscope-alerts.yaml")],
)
def test_files_for_grafana_are_printed(capsys: Streams, option: str, name: str) -> None:
    """As the package has them."""
    printed = streams_of(capsys, "watch", option).out
    assert printed == (ROOT / "grafana" / name).read_text(encoding="utf-8")
