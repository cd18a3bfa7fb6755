"""Traces at s3:// and https:// addresses: one trace, or one line of error and exit code 3."""

from __future__ import annotations

import datetime as dt
import gzip
import ipaddress
import logging
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import zstandard

pytest.importorskip("boto3", reason="make setup installs it")
pytest.importorskip("moto", reason="make setup installs it")

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


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/silent":
            time.sleep(1)
        if path in {"/gone", "/secret"}:
            self.send_error(404 if path == "/gone" else 403)
            return
        body = BODIES.get(path, TRACE)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (path == "/broken")))
        with suppress(OSError):  # of a client that has given up
            self.end_headers()
            self.wfile.write(body)

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
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
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


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("hf://datasets/o/n/a+b/t.jsonl", "/datasets/o/n/resolve/main/a%2Bb/t.jsonl"),
        ("hf://datasets/o/n@v1/t.jsonl", "/datasets/o/n/resolve/v1/t.jsonl"),
        ("hf://o/n/t.jsonl", "/o/n/resolve/main/t.jsonl"),
    ],
)
def test_files_of_the_hugging_face_hub_are_read(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, address: str, url: str
) -> None:
    """The token goes to the hub alone, not where it redirects to."""
    monkeypatch.setenv("HF_ENDPOINT", server[0])
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    request = remote._request(address)
    assert request.full_url == server[0] + url
    assert request.unredirected_hdrs == {"Authorization": "Bearer hf_x"}
    assert not request.headers
    with kvscope.open_trace(address) as trace:
        assert trace.facts.requests == len(LINES)


def test_addresses_that_stand_for_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is in no message, whatever it is."""
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN", raising=False)
    request = remote._request("gs://bucket/logs/t 1.jsonl")
    assert request.full_url == "https://storage.googleapis.com/bucket/logs/t%201.jsonl"
    assert not request.unredirected_hdrs
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "ya29.x\n")
    request = remote._request("gs://bucket/t.jsonl")
    assert request.unredirected_hdrs == {"Authorization": "Bearer ya29.x"}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "kvscope1")
    monkeypatch.delenv("AZURE_STORAGE_SAS_TOKEN", raising=False)
    address = "https://kvscope1.blob.core.windows.net/logs/a%20b.jsonl"
    assert remote._request("az://logs/a b.jsonl").full_url == address
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2&sig=a%2B")
    assert remote._request("az://logs/a b.jsonl").full_url == f"{address}?sv=2&sig=a%2B"
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "se cret")
    with pytest.raises(InputError, match=r"^AZURE_STORAGE_SAS_TOKEN: no token") as caught:
        remote._request("az://logs/t.jsonl")
    assert "cret" not in str(caught.value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "evil.example/")
    with pytest.raises(InputError, match="no storage account of Azure"):
        remote._request("az://logs/t.jsonl")
    with pytest.raises(InputError, match="no file of the Hugging Face hub"):
        remote._request("hf://datasets/owner")


def test_what_is_not_public_names_what_gives_access(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    asked = remote.Request(f"{server[0]}/secret")
    monkeypatch.setattr(remote, "_request", lambda _: asked)
    assert run(["ingest", "az://logs/t.jsonl", "--db", ":memory:"]) == ExitCode.INPUT
    assert capsys.readouterr().err.rstrip().endswith("set AZURE_STORAGE_SAS_TOKEN")
