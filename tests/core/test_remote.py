"""Traces at addresses of stores: one trace, or one line of error and exit code 3."""

from __future__ import annotations

import datetime as dt
import gzip
import ipaddress
import json
import logging
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import zstandard

pytest.importorskip("boto3", reason="make setup installs it")
pytest.importorskip("moto", reason="make setup installs it")
pytest.importorskip("obstore", reason="make setup installs it")

import boto3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto.server import ThreadedMotoServer

import kvscope
from kvscope.cli.app import run
from kvscope.core import remote
from kvscope.core.errors import ExitCode, InputError
from tests.cli.shell import Streams

LINES = [
    b'{"timestamp":%d,"input_length":1024,"output_length":5,"hash_ids":[1,%d]}\n' % (at * 1000, at)
    for at in range(9)
]
TRACE = b"".join(LINES)
BODIES = {
    "/day.jsonl": TRACE,
    "/day.jsonl.gz": gzip.compress(TRACE),
    "/bomb": zstandard.compress(TRACE + bytes(260 << 20)),
}


_BLOB = (
    "<Blob><Name>{}</Name><Properties><Last-Modified>Wed, 01 Jan 2025 00:00:00 GMT</Last-Modified>"
    "<Etag>1</Etag><Content-Length>{}</Content-Length><Content-Type>x</Content-Type>"
    "<BlobType>BlockBlob</BlobType></Properties></Blob>"
)
_CONTENTS = (
    "<Contents><Key>{}</Key><Size>{}</Size><ETag>1</ETag>"
    "<LastModified>2025-01-01T00:00:00.000Z</LastModified></Contents>"
)
_LISTED = {
    "logs/a.jsonl": 9,
    "logs/b.jsonl": 9,
    "logs/old": 0,
    "logs/.c.jsonl": 9,
    "logs/old/d.jsonl": 9,
}


class _Handler(BaseHTTPRequestHandler):
    """Answers as Google Cloud Storage, Azure and the Hugging Face hub do, and as servers fail."""

    asked: ClassVar[list[tuple[str, str | None]]] = []
    elsewhere: ClassVar[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append((self.path, self.headers["Authorization"]))
        begin = int((self.headers["Range"] or "bytes=0-").partition("=")[2].partition("-")[0])
        if path == "/silent":
            time.sleep(1)
        if path == "/gone" or path.startswith("/secret"):
            self.send_error(404 if path == "/gone" else 403)
            return
        if path.endswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.elsewhere)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = self._listing() or BODIES.get(path, TRACE)
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        if path.startswith(("/resumed", "/replaced", "/traces/")):
            self.send_header("ETag", '"2"' if begin and path == "/replaced" else '"1"')
        if path != "/endless":
            missing = path == "/broken"
            self.send_header("Content-Length", str(len(body) - begin + missing))
        with suppress(OSError):  # of a client that has given up
            self.end_headers()
            whole = begin or path not in {"/resumed", "/replaced"}
            self.wfile.write(body[begin : None if whole else 100])

    def _listing(self) -> bytes:
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            files = "".join(_CONTENTS.format(*file) for file in _LISTED.items())
            return f"<ListBucketResult>{files}</ListBucketResult>".encode()
        if "comp=list" in query:
            files = "".join(_BLOB.format(*file) for file in _LISTED.items())
            return f"<EnumerationResults><Blobs>{files}</Blobs></EnumerationResults>".encode()
        if "/tree/" in path:
            files = [
                {"type": "file", "path": at, "size": n, "oid": "1"} for at, n in _LISTED.items()
            ]
            return json.dumps(files).encode()
        return b'{"id": "o/n", "sha": "1"}' if path.startswith("/api/") else b""

    def log_message(self, *_: object) -> None:
        pass


def _certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - dt.timedelta(days=1))
        .not_valid_after(today + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    unencrypted = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted)
    path = folder / "certificate.pem"
    path.write_bytes(private + built.public_bytes(pem))
    return path


_SECRETS = (
    "CLOUDSDK_AUTH_ACCESS_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_CLIENT_ID",
    "HF_TOKEN",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve BODIES over TLS; return the address and the certificate."""
    certificate = _certificate(tmp_path_factory.mktemp("tls"))
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    http.socket = context.wrap_socket(http.socket, server_side=True)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{http.server_port}", certificate
    http.shutdown()
    http.server_close()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Serve a bucket called `traces`; return the endpoint."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
    endpoint = "http://{}:{}".format(*moto.get_host_and_port())
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",  # noqa: S106
    )
    client.create_bucket(Bucket="traces")
    for key, body in {
        "logs/b.jsonl": b"".join(LINES[:4]),
        "logs/a.jsonl.gz": gzip.compress(b"".join(LINES[4:])),
        "logs/.hidden": b"no trace",
        "logs/older/c.jsonl": b"no trace",
        "days/day[1].jsonl": TRACE,
        "days/day1.jsonl": b"no trace",
    }.items():
        client.put_object(Bucket="traces", Key=key, Body=body)
    yield endpoint
    moto.stop()


@pytest.fixture(autouse=True)
def _environment(
    server: tuple[str, Path], s3: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    for name, value in {
        "SSL_CERT_FILE": str(server[1]),
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "GOOGLE_BASE_URL": server[0],
        "AZURE_STORAGE_ENDPOINT": server[0],
        "AZURE_STORAGE_ACCOUNT": "kvscope1",
        "HF_ENDPOINT": server[0],
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", *_SECRETS):
        monkeypatch.delenv(name, raising=False)
    # Read from the environment once; tests of engines set it there.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    _Handler.asked.clear()
    return


def test_addresses_are_traces(server: tuple[str, Path]) -> None:
    """A file, a folder, a pattern, several addresses; the store has no signature of an address."""
    base = server[0]
    for path, name in (
        (f"{base}/day.jsonl.gz?signature=private", "day"),
        ("s3://traces/logs/", "logs"),
        ("s3://traces/logs/*.jsonl*", "jsonl"),
        (["s3://traces/logs/b.jsonl", "s3://traces/logs/"], "b+1"),
    ):
        with kvscope.open_trace(path) as trace:
            assert (trace.facts.requests, trace.facts.span_s) == (9, 8.0)
            assert trace.facts.name == name
            assert "private" not in trace.facts.source


def test_a_file_of_s3_whose_name_looks_like_a_pattern_is_that_file() -> None:
    """The name matches another file; a pattern that is no file's name stays one."""
    path = "s3://traces/days/day[1].jsonl"
    assert remote.remote_files(path) == [path]
    assert remote.remote_files("s3://traces/days/day[12].jsonl") == ["s3://traces/days/day1.jsonl"]


def test_addresses_are_a_dataset(server: tuple[str, Path], tmp_path: Path, capsys: Streams) -> None:
    """The same as one trace, by processes too; the folder has no signature of an address."""
    paths = ["s3://traces/logs/", f"{server[0]}/day.jsonl.gz?signature=private"]
    with kvscope.open_trace(paths) as trace:
        known = kvscope.analyze(trace).to_dict()
    folder = tmp_path / "d"
    asked = ["ingest", *paths, "--into", str(folder), "--workers", "2", "--name"]
    assert run([*asked, known["trace"]["name"]]) == ExitCode.DONE
    assert kvscope.analyze(folder).to_dict() == known
    assert run([*asked, known["trace"]["name"]]) == ExitCode.DONE
    assert "finished already" in capsys.readouterr().err
    for file in folder.glob("*.json"):
        assert "private" not in file.read_text()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/gone", "no such file"),
        ("/secret", "no access"),
        ("/broken", f"the connection ended after {len(TRACE)} of {len(TRACE) + 1} bytes"),
        ("/replaced", f"the connection ended after 100 of {len(TRACE)} bytes"),
        (
            "/endless",
            "cannot be read (Content-Length Header missing from response); download it first",
        ),
        ("/bomb", "decompresses to more than 10,000 times its size"),
        ("/silent", "no answer within 0.2 s"),
        ("https://127.0.0.1:9/x", "cannot be reached"),
        ("https://nowhere.invalid/x", "cannot be reached"),
        ("https://", "cannot be re"),
        ("s3://absent/x.jsonl", "no such file"),
        ("s3://traces/absent.jsonl", "no such file"),
        ("s3://traces/absent/", "no such file"),
        ("s3://traces", "cannot be read"),
        ("s3://", "cannot be read"),
        ("s3://tr*/x", "cannot be read"),
    ],
)
def test_what_cannot_be_read(
    path: str,
    reason: str,
    server: tuple[str, Path],
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line with the address and the reason, exit code 3."""
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.2 if path == "/silent" else 10.0)
    monkeypatch.setattr("kvscope.cli.terminal.LINE_EVERY_S", 600.0)  # no progress, however slow
    address = server[0] + path if path.startswith("/") else path
    assert run(["ingest", address, "--db", ":memory:"]) == ExitCode.INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {address}: {reason}")


def test_a_certificate_that_is_not_trusted(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is refused."""
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(InputError, match=r"cannot be reached.*certificate"):
        kvscope.open_trace(f"{server[0]}/day.jsonl")


def test_s3_without_credentials(monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """Requests are not signed; a bucket that is not public says what to name."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert run(["ingest", "s3://traces/logs/b.jsonl", "--db", ":memory:"]) == ExitCode.INPUT
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith("no access (Forbidden); name credentials, as with AWS_PROFILE")


def test_a_connection_that_breaks_is_taken_up_again(server: tuple[str, Path]) -> None:
    """Where the server says that the file is the same; `/replaced` is another."""
    with kvscope.open_trace(f"{server[0]}/resumed") as trace:
        assert trace.facts.requests == len(LINES)
    assert len(_Handler.asked) == 2


@pytest.mark.parametrize(
    ("folder", "file", "secrets", "url", "sent"),
    [
        ("gs://traces/", "logs/a.jsonl", {}, "/traces/logs%2Fa%2Ejsonl", None),
        (
            "gs://traces/",
            "logs/a.jsonl",
            {"CLOUDSDK_AUTH_ACCESS_TOKEN": "ya29.x\n"},
            "/traces/logs%2Fa%2Ejsonl",
            "Bearer ya29.x",
        ),
        ("az://traces/", "logs/a.jsonl", {}, "/traces/logs/a.jsonl", None),
        (
            "az://traces/",
            "logs/a.jsonl",
            {"AZURE_STORAGE_SAS_TOKEN": "?sv=2&sig=a%2B"},
            "/traces/logs/a.jsonl?sv=2&sig=a%2B",
            None,
        ),
        (
            "hf://datasets/o/n/",
            "logs/a.jsonl",
            {"HF_TOKEN": "hf_x"},
            "/datasets/o/n/resolve/main/logs/a.jsonl",
            "Bearer hf_x",
        ),
        (
            "hf://datasets/o/n@v1/",
            "logs/a.jsonl",
            {"HF_TOKEN": "hf_x"},
            "/datasets/o/n/resolve/v1/logs/a.jsonl",
            "Bearer hf_x",
        ),
        ("hf://o/n/", "logs/a.jsonl", {}, "/o/n/resolve/main/logs/a.jsonl", None),
    ],
)
def test_files_folders_and_patterns_of_each_store(
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    file: str,
    secrets: Mapping[str, str],
    url: str,
    sent: str | None,
) -> None:
    """Signed where there is a secret; without folders, hidden and empty files."""
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    for pattern in ("logs/", "logs/[ab].*", "*/?.jsonl"):
        files = remote.remote_files(folder + pattern)
        assert files == [folder + file, f"{folder}logs/b.jsonl"]
    with pytest.raises(InputError, match="no such file"):
        remote.remote_files(f"{folder}logs/x*")
    with kvscope.open_trace(folder + file) as trace:
        assert trace.facts.requests == len(LINES)
    assert _Handler.asked[-1] == (url, sent)
    with remote.open_remote(f"{folder}a b+c.jsonl") as odd:
        assert odd.read() == TRACE
    assert "a%20b" in _Handler.asked[-1][0]


def test_a_token_goes_to_the_hub_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where it redirects to."""
    other = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        _Handler, "elsewhere", f"http://127.0.0.1:{other.server_port}/", raising=False
    )
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    with remote.open_remote("hf://datasets/o/n/moved") as body:
        assert body.read() == TRACE
    other.shutdown()
    other.server_close()
    assert [sent for _, sent in _Handler.asked] == ["Bearer hf_x", None]


def test_addresses_and_secrets_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent; a secret is in no message, whatever it is."""
    for name, address in (
        ("AZURE_STORAGE_SAS_TOKEN", "az://logs/t.jsonl"),
        ("CLOUDSDK_AUTH_ACCESS_TOKEN", "gs://logs/t.jsonl"),
        ("HF_TOKEN", "hf://datasets/o/n/t.jsonl"),
    ):
        monkeypatch.setenv(name, "se cret")
        with pytest.raises(InputError, match=rf"^{name}: no token") as caught:
            remote.open_remote(address)
        assert "cret" not in str(caught.value)
    monkeypatch.delenv("AZURE_STORAGE_SAS_TOKEN")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "evil.example/")
    with pytest.raises(InputError, match="no storage account of Azure"):
        remote.open_remote("az://logs/t.jsonl")
    for address in ("hf://datasets/owner", "https://h\n/t", "gs://b{}/t", 'https://"~$/t'):
        with pytest.raises(InputError, match="no address of a file"):
            remote.open_remote(address)
    assert not _Handler.asked


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("az://secret", "set AZURE_STORAGE_SAS_TOKEN"),
        ("gs://secret", "set CLOUDSDK_AUTH_ACCESS_TOKEN"),
    ],
)
def test_what_is_not_public_names_what_gives_access(
    capsys: Streams, address: str, remedy: str
) -> None:
    assert run(["ingest", f"{address}/t", "--db", ":memory:"]) == ExitCode.INPUT
    assert capsys.readouterr().err.rstrip().endswith(remedy)
