"""Files at s3://, hf://, gs://, az:// and https:// addresses, read as streams; none kept on disk.

S3 takes credentials, region and endpoint where every AWS tool does (`AWS_PROFILE`,
`AWS_ENDPOINT_URL` and others); without credentials requests are not signed, as for public buckets.
A file of the Hugging Face hub is hf://datasets/OWNER/NAME/PATH, with @REVISION behind the name if
need be; `HF_TOKEN` and `HF_ENDPOINT` count. gs://BUCKET/PATH takes the token in
`CLOUDSDK_AUTH_ACCESS_TOKEN`, az://CONTAINER/PATH the account in `AZURE_STORAGE_ACCOUNT` and the
signature in `AZURE_STORAGE_SAS_TOKEN`; without them, files are read that are public.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, InvalidURL
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from kvscope.core.errors import InputError
from kvscope.core.files import ChunkReader

TIMEOUT_S = 30.0
"""How long a server may take to answer, and to go on."""

_S3 = "s3://"
_DENIED = {401, 403}
_GRANTS = {
    "s3": "name credentials, as with AWS_PROFILE",
    "hf": "set HF_TOKEN",
    "gs": "set CLOUDSDK_AUTH_ACCESS_TOKEN",
    "az": "set AZURE_STORAGE_SAS_TOKEN",
}
"""What gives access, by scheme."""


def remote_files(path: str) -> list[str]:
    """Return the file at `path`; of an s3:// folder or pattern the files there, by name.

    A folder ends in a slash; its own folders and hidden files are left out, as on a disk. A file
    whose own name looks like a pattern is that file. Raises InputError where there is none.
    """
    if not path.startswith(_S3) or not (path.endswith("/") or glob.has_magic(path)):
        return [path]
    bucket, _, pattern = path.removeprefix(_S3).partition("/")
    pattern += "*" if path.endswith("/") else ""
    fixed = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    with _refusals(path):
        pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=fixed)
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
    if pattern in keys:
        return [path]
    matches = sorted(
        key
        for key in keys
        if key.count("/") == pattern.count("/")
        and fnmatch.fnmatchcase(key, pattern)
        and not PurePosixPath(key).name.startswith(".")
        and not key.endswith("/")
    )
    if not matches:
        raise InputError("no such file", where=path, remedy="see `aws s3 ls`")
    return [f"{_S3}{bucket}/{key}" for key in matches]


def open_remote(path: str) -> BinaryIO:
    """Return the bytes at an address. Raises InputError where they cannot be had."""
    with _refusals(path):
        if not path.startswith(_S3):
            response = urlopen(_request(path), timeout=TIMEOUT_S)  # noqa: S310 - http or https
            return cast(BinaryIO, _Body(path, response, response.length))
        bucket, _, key = path.removeprefix(_S3).partition("/")
        answer = _s3().get_object(Bucket=bucket, Key=key)
        return cast(BinaryIO, _Body(path, answer["Body"], answer["ContentLength"]))


def _request(path: str) -> Request:
    """Return the request for a file that is at https://, or at an address that stands for one.

    Raises InputError for an address that is none.
    """
    scheme, _, rest = path.partition("://")
    if scheme == "gs":
        address = f"https://storage.googleapis.com/{quote(rest)}"
        return _with_token(address, "CLOUDSDK_AUTH_ACCESS_TOKEN")
    if scheme == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT", "")
        if not re.fullmatch(r"[a-z0-9]{3,24}", account):
            remedy = "name it in AZURE_STORAGE_ACCOUNT"
            raise InputError("no storage account of Azure", where=path, remedy=remedy)
        signature = _secret("AZURE_STORAGE_SAS_TOKEN").removeprefix("?")
        signed = f"{quote(rest)}?{signature}" if signature else quote(rest)
        return Request(f"https://{account}.blob.core.windows.net/{signed}")
    if scheme != "hf":
        return Request(path)  # noqa: S310
    kind, _, name = rest.partition("/")
    if kind not in {"datasets", "spaces"}:
        kind, name = "", rest
    match = re.fullmatch(r"([^/]+/[^/@]+)(?:@([^/]+))?/(.+)", name)
    if match is None:
        remedy = "hf://datasets/OWNER/NAME/PATH"
        raise InputError("no file of the Hugging Face hub", where=path, remedy=remedy)
    repository, revision, file = match.groups()
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    place = "/".join(filter(None, [kind, repository, "resolve", revision or "main", quote(file)]))
    return _with_token(f"{endpoint}/{place}", "HF_TOKEN")


def _with_token(address: str, variable: str) -> Request:
    """Return a request that has the token in an environment variable, where it has one."""
    request = Request(address)  # noqa: S310
    if token := _secret(variable):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return request


def _secret(variable: str) -> str:
    """Return what an environment variable holds. Raises InputError, which does not show it."""
    secret = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[!-~]*", secret):
        raise InputError("no token: it has spaces or other characters", where=variable)
    return secret


class _Body(ChunkReader):
    """The body of a response. Raises InputError where it ends before its length."""

    def __init__(self, path: str, body: Any, length: int | None) -> None:
        self._path, self._body, self._length = path, body, length
        self._read = 0

    def chunk(self, size: int) -> bytes:
        with _refusals(self._path):
            data: bytes = self._body.read(size)
        self._read += len(data)
        if not data and self._length is not None and self._read < self._length:
            raise InputError(
                f"the connection ended after {self._read:,} of {self._length:,} bytes",
                where=self._path,
                remedy="try again",
            )
        return data

    def close(self) -> None:
        self._body.close()
        super().close()


def _s3() -> Any:
    """Return a client. Raises InputError where boto3 is not installed."""
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise InputError(
            "s3:// needs boto3", where="s3://", remedy="pip install 'kvscope[remote]'"
        ) from error
    session = boto3.Session()
    settings = Config(
        connect_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
        retries={"total_max_attempts": 2},
        signature_version=None if session.get_credentials() else UNSIGNED,
    )
    # a region is needed to make a client; buckets of others are found by redirection
    region = session.region_name or "us-east-1"
    return session.client("s3", config=settings, region_name=region)


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Raise what servers, connections and boto3 refuse as InputError about `path`."""
    try:
        yield
    except HTTPError as error:
        raise _refused(path, error.code, error.reason) from error
    except URLError as error:
        raise InputError(
            f"cannot be reached: {error.reason}", where=path, remedy="check the address"
        ) from error
    except TimeoutError as error:
        raise InputError(f"no answer within {TIMEOUT_S:g} s", where=path) from error
    except (InvalidURL, ValueError) as error:  # which repeat what they refuse
        raise InputError("no address that can be asked", where=path) from error
    except (HTTPException, OSError) as error:
        raise InputError(f"cannot be read: {error or type(error).__name__}", where=path) from error
    except Exception as error:
        if not type(error).__module__.startswith(("botocore.", "boto3.", "urllib3.")):
            raise
        answer = getattr(error, "response", None) or {}
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        reason = answer.get("Error", {}).get("Message") or str(error)
        raise _refused(path, status, reason.splitlines()[0]) from error


def _refused(path: str, status: int, reason: str) -> InputError:
    if status in _DENIED:
        remedy = _GRANTS.get(path.partition("://")[0], "take an address that is signed")
        return InputError(f"no access ({reason})", where=path, remedy=remedy)
    if status == 404:
        return InputError(f"no such file ({reason})", where=path)
    return InputError(f"cannot be read ({reason})", where=path)
