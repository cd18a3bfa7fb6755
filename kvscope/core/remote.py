"""Files at s3://, hf://, gs://, az:// and https:// addresses, read as streams, not kept on disk.

S3 takes credentials, region and endpoint from the usual AWS settings (`AWS_PROFILE`,
`AWS_ENDPOINT_URL` and others). Files of the Hugging Face hub are at hf://datasets/OWNER/NAME/PATH,
with @REVISION after the name if needed; `HF_TOKEN` and `HF_ENDPOINT` count. gs://BUCKET/PATH and
az://CONTAINER/PATH take the variables named below. Without credentials, public files are read.

A connection that ends early is repeated once if the file has an ETag; a second early end, or a
changed ETag, is an error. Calls run in the background, since obstore blocks Ctrl-C meanwhile.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from kvscope.core.background import in_background
from kvscope.core.errors import InputError
from kvscope.core.files import ChunkReader

TIMEOUT_S = 30.0
"""How long a server may take to begin its answer, and between two parts of it."""

_GRANTS = {
    "s3": "name credentials, as with AWS_PROFILE",
    "hf": "set HF_TOKEN",
    "gs": "set CLOUDSDK_AUTH_ACCESS_TOKEN",
    "az": "set AZURE_STORAGE_SAS_TOKEN",
}
"""Remedy in errors of refused access, by scheme of the address."""
_REMEDIES = {"region": "name the bucket's in AWS_REGION", "Content-Length": "download it first"}
"""Remedy in other errors, by a word in obstore's message."""
_VARIABLES = {
    "gs": {"bearer_token": "CLOUDSDK_AUTH_ACCESS_TOKEN"},
    "az": {"sas_key": "AZURE_STORAGE_SAS_TOKEN", "account_key": "AZURE_STORAGE_KEY"},
}
"""By scheme: options of obstore, and the environment variable that states each."""
_READ_BY_OBSTORE = {"gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_CLIENT_ID"}
_FILE = re.compile(r"((?:s3|gs|az)://[\w.-]+/|hf://(?:(?:datase|spac).s/)?[^/]+/[^/]+/)(.*)")
_HTTP = re.compile(r"https?://([^/?#\\]*@)?[\w.:\[\]-]+([/?#].*)?")


def remote_files(path: str) -> list[str]:
    """Return the files at `path`, sorted by name: one file, those of a folder, or of a pattern.

    A folder ends in a slash; its subfolders, hidden and empty files are left out. An existing file
    and any https:// address are no patterns. Raises InputError if nothing matches.
    """
    if path.startswith("http") or not (path.endswith("/") or glob.has_magic(path)):
        return [path]
    base, pattern = _parts(path)
    pattern += "*" if path.endswith("/") else ""
    folder = re.split(r"[*?[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    with _refusals(path):
        names = in_background(_names, base, folder).result()
    if pattern in names:
        return [path]
    matches = sorted(
        name
        for name in names
        if name.count("/") == pattern.count("/")
        and fnmatch.fnmatchcase(name, pattern)
        and not PurePosixPath(name).name.startswith(".")
    )
    if not matches:
        raise InputError("no such file", where=path)
    return [base + name for name in matches]


def open_remote(path: str) -> BinaryIO:
    """Return a stream of the bytes at an address. Raises InputError if it cannot be opened."""
    base, name = (path, "") if path.startswith("http") else _parts(path)
    with _refusals(path):
        store = _hub_file(base, name) if path.startswith("hf") else _store(base)
        answer = in_background(store.get, "" if path.startswith("h") else name).result()
        return cast(BinaryIO, _Body(path, answer))


def _parts(path: str) -> tuple[str, str]:
    """Return the address of a bucket or repository and the name in it, or raise InputError."""
    match = _FILE.fullmatch(path) if path.isprintable() else None
    if match is None:
        scheme = path[:2]
        remedy = f"{scheme}://{'datasets/OWNER/NAME' if scheme == 'hf' else 'BUCKET'}/PATH"
        raise InputError("cannot be read (no address of a file)", where=path, remedy=remedy)
    return match[1], match[2]


def _names(base: str, folder: str) -> list[str]:
    """Return the names, relative to `base`, of non-empty files in a folder and its subfolders."""
    if base.startswith("hf"):
        from huggingface_hub import HfFileSystem

        hub = HfFileSystem(
            endpoint=os.environ.get("HF_ENDPOINT"), token=_secret("HF_TOKEN") or None
        )
        root = hub.resolve_path(base.removesuffix("/")).unresolve() + "/"
        files = hub.find(root + folder, detail=True)
        return [name.removeprefix(root) for name, facts in files.items() if facts["size"]]
    listed = _store(base).list(folder or None)
    # a folder that a console has made is a file without a byte
    return [each["path"] for part in listed for each in part if each["size"]]


def _store(base: str, **headers: str) -> Any:
    """Return a reader for the files of a bucket, or for the file at an https:// address."""
    from obstore.store import HTTPStore, from_url

    wait, ever = dt.timedelta(seconds=TIMEOUT_S), dt.timedelta(days=30)
    client = {"allow_http": True, "connect_timeout": wait, "read_timeout": wait, "timeout": ever}
    retries = {"max_retries": 1, "retry_timeout": ever}
    scheme = base[:2]
    signed: dict[str, Any] = {}
    place: dict[str, str] = {}
    if scheme == "s3":
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = boto3.Session()
        place["region"] = session.region_name or "us-east-1"
        s3 = session.client("s3", region_name=place["region"])
        place["endpoint"] = s3.meta.endpoint_url
        if session.get_credentials():
            signed["credential_provider"] = Boto3CredentialProvider(session)
    elif variables := _VARIABLES.get(scheme):
        signed = {option: value for option, name in variables.items() if (value := _secret(name))}
    elif not (base.isprintable() and _HTTP.fullmatch(base)):  # which obstore would panic at
        raise InputError("cannot be read (no address of a file)", where=base)
    if scheme == "az":
        place["account_name"] = account = os.environ.get("AZURE_STORAGE_ACCOUNT", "")
        if not re.fullmatch(r"[a-z0-9]{3,24}", account):
            remedy = "name it in AZURE_STORAGE_ACCOUNT"
            raise InputError("no storage account of Azure", where=base, remedy=remedy)
    if scheme in _GRANTS and not (signed or os.environ.get(_READ_BY_OBSTORE.get(scheme, ""))):
        signed["skip_signature"] = True
    client["default_headers"] = headers
    reader = HTTPStore if base.startswith("http") else from_url  # which takes no // in a path
    return reader(base, client_options=client, retry_config=retries, **place, **signed)


def _hub_file(base: str, name: str) -> Any:
    """Return a reader for a file of the Hugging Face hub; only the hub receives the token."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    *kind, owner, repository = base.split("/")[2:-1]
    repository, _, revision = repository.partition("@")
    url = hf_hub_url(
        f"{owner}/{repository}",
        name,
        repo_type=kind[0].removesuffix("s") if kind else None,
        revision=unquote(revision) or None,
        endpoint=os.environ.get("HF_ENDPOINT"),
    )
    return _store(url, **build_hf_headers(token=_secret("HF_TOKEN") or None))


def _secret(variable: str) -> str:
    """Return an environment variable's value, "" if unset. Raises InputError without showing it."""
    secret = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[!-~]*", secret):
        raise InputError("no token: it has spaces or other characters", where=variable)
    return secret


class _Body(ChunkReader):
    """The body of a response. Raises InputError if the connection fails before its end."""

    def __init__(self, path: str, answer: Any) -> None:
        self._path, self._length = path, answer.meta["size"]
        self._chunks = iter(answer.stream(min_chunk_size=1))
        self._ready, self._read = memoryview(b""), 0

    def chunk(self, size: int) -> memoryview:
        if not self._ready:
            with _refusals(self._path, f"{self._read:,} of {self._length:,} bytes"):
                self._ready = memoryview(in_background(next, self._chunks, b"").result())
            self._read += len(self._ready)
        ready, self._ready = self._ready[:size], self._ready[size:]
        return ready


@contextmanager
def _refusals(path: str, read: str = "") -> Iterator[None]:
    """Turn errors of libraries and servers in the `with` block into InputErrors about `path`.

    `read` is the size read so far, such as "5 of 9 bytes". Of the libraries' messages only parts
    are shown, since the rest may contain the signature of a request.
    """
    scheme = path.partition("://")[0]
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        remedy = "pip install 'kvscope[remote]'"
        raise InputError(f"{scheme}:// needs {error.name}", where=path, remedy=remedy) from error
    except Exception as error:
        raise _refused(path, error, read) from error


def _refused(path: str, error: Exception, read: str) -> InputError:
    text = str(error)
    if "kind: Timeout" in text:
        return InputError(f"no answer within {TIMEOUT_S:g} s", where=path)
    if "kind: Connect" in text:
        detail = re.search(r'(?:message|error): "([^"]+)"', text)
        reason = detail[1] if detail else "no connection"
        if "InvalidCertificate" in text:
            reason = "its certificate is not trusted"
        return InputError(f"cannot be reached: {reason}", where=path, remedy="check the address")
    if read:
        return InputError(f"the connection ended after {read}", where=path, remedy="try again")
    answer = re.search(r"(?s)status code: (\d+) ([\w ]*)(?:.*?<Message>([^<\n]+))?", text)
    if answer is not None:
        status, reason = int(answer[1]), str(answer[3] or answer[2])
    else:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        first = text.partition("\n")[0].rpartition(" - ")[2]
        reason = re.sub(r"^Generic \w+ error: ", "", first)[:200]
    if status in {401, 403} or type(error).__name__ == "UnauthenticatedError":
        remedy = _GRANTS.get(path[:2], "take an address that is signed")
        return InputError(f"no access ({reason})", where=path, remedy=remedy)
    if status == 404 or isinstance(error, FileNotFoundError):
        return InputError(f"no such file ({reason})", where=path)
    remedies = (text for word, text in _REMEDIES.items() if word in reason)
    return InputError(f"cannot be read ({reason})", where=path, remedy=next(remedies, None))
