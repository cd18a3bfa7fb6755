"""`kvscope dashboard`: the store's traces in a browser."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

from kvscope.app.options import Count, Option
from kvscope.cli.diagnostics import note
from kvscope.cli.options import DEFAULT_DB, Db
from kvscope.cli.terminal import Terminal
from kvscope.core.errors import KvscopeError, StoreBusyError, UsageError
from kvscope.core.files import data_folder

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8501
_SAMPLE = "to-c.jsonl.gz"
_PATIENCE_S = 5.0
_BLUE, _SKY = "#0072B2", "#56B4E9"  # of the charts

Port = Annotated[int, Count("Port to listen on.")]
Host = Annotated[str, Option("Bind address; the default lets only this machine in.", "ADDRESS")]


def dashboard(db: Db = DEFAULT_DB, port: Port = DEFAULT_PORT, host: Host = DEFAULT_HOST) -> None:
    """Show the store's traces in a browser, and try policies, capacities and SLOs there.

    An empty store gets a sample trace. Runs until Ctrl-C.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise KvscopeError(
            "needs Streamlit, which is not installed",
            where="kvscope dashboard",
            remedy="install it with: pip install streamlit",
        )
    _refuse_taken(host, port)
    with _lasting(db) as path:
        _fill(path)
        _serve(path, host, port)


@contextmanager
def _lasting(db: str) -> Iterator[str]:
    """Yield the store's path; one in memory becomes a file while the dashboard runs."""
    if db != ":memory:":
        yield db
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "memory.duckdb")


def _fill(db: str) -> None:
    """Put a sample trace into an empty store."""
    from kvscope.app.traces import ingest_file
    from kvscope.store import traces
    from kvscope.store.file import StoreFile

    try:
        with StoreFile(db, note) as store:
            with store.reading() as opened:
                is_empty = not traces.all_traces(opened)
            if is_empty:
                note(f"{db} holds no traces yet: it gets a sample")
                ingest_file(store, str(data_folder("sample_traces") / _SAMPLE), Terminal())
    except StoreBusyError as error:  # the pages say so too, until it is free
        note(str(error))


def _refuse_taken(host: str, port: int) -> None:
    """Raise UsageError where nothing can listen, before anything is started."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen there ({error})", where=f"{host}:{port}", remedy="choose another --port"
        ) from error


def _command(db: str, host: str, port: int) -> list[str]:
    settings = {
        "server.address": host,
        "server.port": port,
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "logger.level": "warning",  # where it listens has been said
        "client.showErrorDetails": "none",
        "client.toolbarMode": "viewer",
        "theme.light.primaryColor": _BLUE,  # a colour for both would leave no dark theme
        "theme.dark.primaryColor": _SKY,
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    folder = data_folder("dashboard")
    run = [sys.executable, "-P", "-m", "dashboard.serve", "run", str(folder / "app.py")]
    return [*run, *options, "--", "--db", db]


def _serve(db: str, host: str, port: int) -> None:
    """Run Streamlit until it ends, or until Ctrl-C or SIGTERM, which end it cleanly."""
    note(f"open http://{host}:{port} (Ctrl-C ends it)")
    environment = os.environ | {"PYTHONPATH": _importable()}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = subprocess.Popen(
        _command(db, host, port),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # it would only repeat the address
        env=environment,
        start_new_session=True,  # Ctrl-C comes here alone
    )
    try:
        code = server.wait()
    except KeyboardInterrupt:
        note("the dashboard ends")
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(server)
    if code:
        raise KvscopeError(
            f"ended with code {code}", where="streamlit", remedy="see its messages above"
        )


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)  # and its worker processes
        try:
            server.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _importable() -> str:
    """Return a PYTHONPATH with this very kvscope and its dashboard first."""
    import kvscope

    here = [Path(kvscope.__file__).resolve().parents[1], data_folder("dashboard").parent]
    known = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return os.pathsep.join([*dict.fromkeys(map(str, here)), *known])
