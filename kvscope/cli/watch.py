"""`kvscope watch`: follow a recording and serve its actual and possible hit rates to Prometheus."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import typer

from kvscope.app import values
from kvscope.app.options import Option
from kvscope.app.watch import Watch, WatchOptions, check_path, watch_request
from kvscope.cli import output
from kvscope.cli.dashboard import DEFAULT_HOST, Port, free_address, require_package, usable_token
from kvscope.cli.diagnostics import note
from kvscope.cli.options import Host, parsed_by
from kvscope.core.addresses import Address, hostname, is_same
from kvscope.core.errors import UsageError
from kvscope.core.files import data_folder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client.core import Metric


DEFAULT_PORT = 9464
POLL_S = 0.5
MOST_CONNECTIONS = 64
CLIENT_TIMEOUT_S = 10.0
"""How long a client may stay silent before its connection is closed."""
_ENDPOINTS = ("tcp://", "ipc://")

Recording = Annotated[
    str | None,
    typer.Argument(
        metavar="RECORDING|KV-EVENTS",
        parser=parsed_by(values.called),
        help="A recording's file or folder, or vLLM's KV events: ipc:///tmp/kv-events.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    Option(
        "Refuse scrapes without `Authorization: Bearer TEXT`. Without it, an address other than"
        " this machine's own gets a random one.",
        "TEXT",
    ),
]
Grafana = Annotated[
    bool, Option("Print a Grafana dashboard of these metrics as JSON.", flags=("--grafana",))
]
Alerts = Annotated[
    bool, Option("Print Grafana's alert rules on them as YAML.", flags=("--grafana-alerts",))
]


def watch(
    recording: Recording = None,
    *,
    options: WatchOptions,
    port: Port = DEFAULT_PORT,
    host: Host = DEFAULT_HOST,
    token: Token = None,
    grafana: Grafana = False,
    grafana_alerts: Alerts = False,
) -> None:
    """Follow a recording that grows and serve Prometheus metrics of its latest requests.

    Among the metrics are hit rates (of the cache, an infinite cache, LRU at one, two and four times
    the capacity, and a recommendation), how far the recommendation's is from the expected one, and
    whether to tune again. Runs until Ctrl-C; --grafana and --grafana-alerts print a file instead.
    """
    if grafana or grafana_alerts:
        name = "kvscope-watch.json" if grafana else "kvscope-alerts.yaml"
        output.emit_text((data_folder("grafana") / name).read_text(encoding="utf-8"))
        return
    if recording is None:
        raise UsageError(
            "there is nothing to watch",
            where="kvscope watch",
            remedy="name a recording (docs/record.md) or vLLM's KV events",
        )
    require_package("prometheus_client", "prometheus_client", "kvscope watch")
    token = usable_token(token, free_address(host, port))
    watched = Watch(watch_request(options))
    is_stream = recording.startswith(_ENDPOINTS)
    if not is_stream:
        check_path(Path(recording))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(watched, Address(host, port, token)):
            _announce(Address(host, port, token))
            steps = _events(recording, watched) if is_stream else _lines(Path(recording), watched)
            with closing(steps):
                _follow(steps, watched)
    except KeyboardInterrupt:  # the usual end
        note(f"{watched.requests:,} requests read")
    finally:
        signal.signal(signal.SIGTERM, before)


def _announce(address: Address) -> None:
    name = f"[{address.host}]" if ":" in address.host else address.host
    note(f"metrics at http://{name}:{address.port}/metrics (Ctrl-C ends it)")
    if address.token is not None:
        note(f"scrape with the header `Authorization: Bearer {address.token}`, which is not secret")
        note("on its way: the connection is not encrypted")


def _follow(steps: Iterator[bool], watched: Watch) -> None:
    """Read requests until `steps` end; whenever all are read, replay the latest ones if it is due.

    Each of `steps` reads some requests into `watched`, and yields whether these were all.
    """
    failure = None
    for is_up_to_date in steps:
        if is_up_to_date:
            watched.refresh()
        if watched.failure is not None and str(watched.failure) != failure:
            note(f"the window could not be replayed: {watched.failure}")
        failure = None if watched.failure is None else str(watched.failure)


def _lines(path: Path, watched: Watch) -> Generator[bool]:
    """Read new lines of a recording; yield after each step whether all are read; if so, wait."""
    from kvscope.ingest.follow import Follower

    if not path.exists():
        note(f"waiting for {path}")
    with closing(Follower(path)) as follower:
        while True:
            up_to_date = watched.take(follower)
            yield up_to_date
            if up_to_date:
                time.sleep(POLL_S)


def _events(endpoint: str, watched: Watch) -> Generator[bool]:
    """Assemble requests from vLLM's KV events; yield True (all are read) after each batch."""
    import msgspec

    from kvscope.vllm_plugin.kv_events import BlockChains, batches

    chains = BlockChains()
    with closing(batches(endpoint, POLL_S)) as stream:
        for numbered in stream:
            ended = chains.ended(time.time()) if numbered is None else chains.take(numbered[1])
            watched.add(map(msgspec.json.encode, ended))
            yield True


@contextmanager
def serving(watched: Watch, address: Address) -> Iterator[None]:
    """Serve the metrics of a watch at an address, in a thread, during the `with` block."""
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry: Any = CollectorRegistry()
    registry.register(WatchCollector(watched))
    family, *_ = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    server_type = type("_Server", (_ThreadingServer,), {"address_family": family})
    with server_type((address.host, address.port), _SilentHandler) as server:
        server.set_app(guarded(make_wsgi_app(registry), address))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def guarded(app: WSGIApplication, address: Address) -> WSGIApplication:
    """Return `app` behind a check of the token or, if the address has none, of the Host header.

    Without this check, a page in a browser on this machine could read the metrics through a host
    name that resolves to this server (DNS rebinding).
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        refusal = _refusal(environ, address)
        if refusal is None:
            return app(environ, start_response)
        start_response(refusal, [("Content-Type", "text/plain")])
        return [f"{refusal}\n".encode()]

    return answer


def _refusal(environ: WSGIEnvironment, address: Address) -> str | None:
    if address.token is None:
        named = address.names(hostname(environ.get("HTTP_HOST", "")))
        return None if named else "400 This server does not answer to that host"
    scheme, _, credentials = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.casefold() == "bearer" and is_same(credentials.strip(), address.token):
        return None
    (written,) = parse_qs(environ.get("QUERY_STRING", "")).get("token", [""])[:1]
    return None if is_same(written, address.token) else "403 This server needs its token"


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """A server with a thread per connection; beyond the limit it closes the oldest connection."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[Any, None] = {}  # connections, the oldest first
        self._changing = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            oldest = next(iter(self._open)) if len(self._open) >= MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnect or are too slow."""


class _SilentHandler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  (its name)
        """Log nothing: standard error has notes only."""


class WatchCollector:
    """The Prometheus collector of a watch: its current metrics at each scrape.

    Hit ratios (0 to 1) cover the later half of `Watch.window`. An unknown figure has no sample.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; those of the window only once it was replayed."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def gauge(name: str, words: str, value: float) -> Metric:
            return GaugeMetricFamily(f"kvscope_{name}", words, value=value)

        watch, hits = self.watch, self.watch.hits
        cached = "Input tokens that the engine found in its cache."
        for name, words, count in (
            ("requests", "Requests read from the recording.", watch.requests),
            ("input_tokens", "Input tokens of these requests.", watch.input_tokens),
            ("cached_tokens", cached, watch.cached_tokens),
            ("bad_lines", "Lines that are no requests.", watch.bad_lines),
            ("restarts", "New recordings: the window began again.", watch.restarts),
        ):
            if count is not None:
                yield CounterMetricFamily(f"kvscope_{name}", words, value=count)
        failed = "Whether the latest window could not be replayed."
        yield gauge("window_failed", failed, float(watch.failure is not None))
        if hits is None:
            return
        when = "When the window was replayed last, in seconds since 1970."
        drift = "Relative change of the recommendation's hit ratio from the expected one."
        again = "Whether the drift exceeds its limit: run kvscope tune again."
        rejected = "Requests that need more blocks than the recommended engine has."
        for name, words, value in (
            ("window_requests", "Requests in the window.", hits.requests),
            ("window_seconds", "Time that the window spans.", hits.span_s),
            ("window_replay_seconds", "Time that the latest replay took.", hits.duration_s),
            ("window_timestamp_seconds", when, hits.computed_at_s),
            ("capacity_blocks", "Capacity x1.", hits.capacity_blocks),
            ("ideal_hit_ratio", "Hit ratio of an infinite cache.", hits.ideal),
            ("observed_hit_ratio", "Hit ratio that the engine reported.", hits.observed),
            ("recommended_hit_ratio", "Hit ratio of the recommendation.", hits.recommended),
            ("drift_ratio", drift, hits.drift),
            ("recommended_rejected_requests", rejected, hits.rejected),
            ("tune_again", again, None if hits.drift is None else float(hits.tune_again)),
        ):
            if value is not None:
                yield gauge(name, words, value)
        lru = GaugeMetricFamily(
            "kvscope_lru_hit_ratio",
            "Hit ratio of LRU at multiples of the capacity, in idle cached blocks.",
            labels=["capacity"],
        )
        for factor, ratio in hits.lru.items():
            lru.add_metric([f"x{factor}"], ratio)
        yield lru
