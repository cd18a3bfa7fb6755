"""`kvscope dashboard`: the store's traces in a browser."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from kvscope.app import values
from kvscope.app.options import Option
from kvscope.cli.diagnostics import note
from kvscope.cli.options import DEFAULT_DB, Db, Host
from kvscope.cli.terminal import Terminal
from kvscope.core.errors import KvscopeError, StoreBusyError, UsageError
from kvscope.core.files import data_folder

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8501
_SAMPLE = "to-c.jsonl.gz"
_PATIENCE_S = 5.0
_TOKEN_BYTES, _SHORTEST_TOKEN = 16, 8

Port = Annotated[int, Option("Port to listen on.", "N", values.whole(1, 65535))]
Token = Annotated[
    str | None,
    Option(
        "Refuse browsers that do not open /?token=TEXT first. Without it, an address other than"
        " this machine's own gets a random one.",
        "TEXT",
    ),
]
Folder = Annotated[
    str | None,
    Option("Let pages read files below this folder. Without it, pages read uploads only.", "PATH"),
]


def dashboard(
    db: Db = DEFAULT_DB,
    port: Port = DEFAULT_PORT,
    host: Host = DEFAULT_HOST,
    token: Token = None,
    folder: Folder = None,
) -> None:
    """Show the store's traces in a browser, and try policies, capacities and SLOs there.

    An empty store gets a sample trace. Pages read uploads and, below --folder, traces, recordings,
    latency profiles and models. Runs until Ctrl-C.
    """
    require_package("streamlit", "Streamlit", "kvscope dashboard")
    if folder is not None and not Path(folder).is_dir():
        raise UsageError("not a folder", where=f"--folder {folder}", remedy="name one that exists")
    token = usable_token(token, free_address(host, port))
    with _lasting(db) as path:
        _fill(path)
        options = ["--db", path, "--host", host, "--port", str(port)]
        _serve(
            [*options, *(["--folder", folder] if folder else [])], _url(host, port, token), token
        )


def require_package(package: str, name: str, command: str) -> None:
    """Raise KvscopeError if a package that `command` needs is not installed.

    `package` is the name by which Python imports it, `name` its name in the message.
    """
    if importlib.util.find_spec(package) is None:
        raise KvscopeError(
            f"needs {name}, which is not installed",
            where=command,
            remedy=f"install it with: pip install {package.replace('_', '-')}",
        )


def usable_token(token: str | None, address: str) -> str | None:
    """Return `token`; without one, a random token, or None if the address is loopback.

    Raises UsageError for a token that is too short.
    """
    if token is None and not ip_address(address.partition("%")[0]).is_loopback:
        return secrets.token_urlsafe(_TOKEN_BYTES)
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise UsageError(
            "too short to keep others out",
            where="--token",
            remedy=f"write {_SHORTEST_TOKEN} characters or more, or leave it out",
        )
    return token


@contextmanager
def _lasting(db: str) -> Iterator[str]:
    """Yield the store's path; for `:memory:`, a temporary file while the dashboard runs."""
    if db != ":memory:":
        yield db
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "memory.duckdb")


def _fill(db: str) -> None:
    """Put a sample trace into the store if it is empty; note if another process uses it."""
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


def free_address(host: str, port: int) -> str:
    """Return the IP address of `host`. Raises UsageError if host and port cannot be bound."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen there ({error})", where=f"{host}:{port}", remedy="choose another --port"
        ) from error
    return str(address[0])


def _url(host: str, port: int, token: str | None) -> str:
    """Return the address to open in a browser, with the token, if any."""
    name = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}" + (f"/?{urlencode({'token': token})}" if token else "")


def _serve(options: list[str], url: str, token: str | None) -> None:
    """Run the dashboard's server until it ends, or until Ctrl-C or SIGTERM; then end its processes.

    `options` are the server's, `url` is shown with a note. Raises KvscopeError if the server fails.
    """
    note(f"open {url} (Ctrl-C ends it)")
    if token is not None:
        note("anyone with that address can use this dashboard; the connection is not encrypted")
    environment = os.environ | {"PYTHONPATH": _importable()}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "dashboard.serve", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # it would only repeat the address
        env=environment,
        start_new_session=True,  # Ctrl-C comes here alone
    )
    try:
        assert server.stdin is not None  # noqa: S101  (for mypy: it is a pipe)
        server.stdin.write(f"{token or ''}\n".encode())  # command lines are public
        server.stdin.close()
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
    """Return a PYTHONPATH that starts with the folders of this kvscope and its dashboard."""
    import kvscope

    here = [Path(kvscope.__file__).resolve().parents[1], data_folder("dashboard").parent]
    known = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return os.pathsep.join([*dict.fromkeys(map(str, here)), *known])
