"""Chained, keyed hashes of token blocks, and keyed hashes of the names in a log.

A block's hash covers the block's tokens and the hash before it: equal hashes mean equal prompts up
to the block's end. Without the salt, the hash of a known prompt cannot be computed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kvscope.core.errors import InputError
from kvscope.core.files import is_private
from kvscope.ingest.formats.base import BadLine, Identifier

SALT_BYTES = 32
_SIZE = 2 * SALT_BYTES + 1  # of a salt's file that no other process has read
_CHAIN_BYTES, _ID_BYTES, _TOKEN_BYTES = 16, 8, 4

Tokens: TypeAlias = "array[int]"
"""Token ids as unsigned 32-bit numbers."""


def tokens_of(ids: Sequence[int]) -> Tokens:
    """Return token ids as an array. Raises BadLine for any outside 0 to 2^32 - 1, or no integer."""
    try:
        return array("I", ids)
    except (OverflowError, TypeError) as error:
        raise BadLine("token ids must be integers from 0 to 2^32 - 1") from error


class Hasher:
    """Hashes with one salt: unsigned 64-bit numbers."""

    def __init__(self, salt: bytes, block_size: int) -> None:
        self._step = block_size * _TOKEN_BYTES
        self._blocks = blake2b(key=salt, digest_size=_CHAIN_BYTES, person=b"kvscope block")
        self._last: tuple[bytes, bytes, list[int]] = b"", b"", []  # blocks, chain and their hashes
        self._names = blake2b(key=salt, digest_size=_ID_BYTES, person=b"kvscope name")

    def blocks(self, tokens: Tokens) -> list[int]:
        """Return the hash of each full block, which covers the blocks before it."""
        if sys.byteorder == "big":
            tokens = tokens[:]
            tokens.byteswap()
        text, step, empty = tokens.tobytes(), self._step, self._blocks.copy
        before, chain, numbers = self._last
        if not before or not text.startswith(before):  # no turn that goes on with the last prompt
            before, chain, numbers = b"", b"", []
        ids = []
        for start in range(len(before), len(text) - step + 1, step):
            hashed = empty()
            hashed.update(chain + text[start : start + step])
            chain = hashed.digest()
            ids.append(chain[:_ID_BYTES])
        numbers = [*numbers, *np.frombuffer(b"".join(ids), dtype="<u8").tolist()]
        self._last = text[: len(text) - len(text) % step], chain, numbers
        return numbers

    def name(self, kind: str, identifier: Identifier) -> int:
        """Return the hash of a session, a user or another name, from 0 to 2^63 - 1."""
        hashed = self._names.copy()
        hashed.update(f"{kind}\0{type(identifier).__name__}\0{identifier}".encode())
        return int.from_bytes(hashed.digest(), "little") >> 1


@contextmanager
def salt(path: str | None) -> Iterator[bytes]:
    """Yield the salt in the file at `path` (created if missing, mode 0600); for None a random salt.

    If the `with` block fails, a file created here is removed, unless another process has read it:
    readers append a blank line as a mark. Raises InputError for a file of another user, one that
    other users can read or write, and one that holds no salt.
    """
    if path is None:
        yield secrets.token_bytes(SALT_BYTES)
        return
    file = Path(path)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
        with os.fdopen(handle, "w", encoding="ascii") as made:
            chosen = secrets.token_bytes(SALT_BYTES)
            made.write(chosen.hex() + "\n")
    except FileExistsError:
        yield _read(file)
        return
    try:
        yield chosen
    except BaseException:
        with suppress(FileNotFoundError), file.open("rb") as made_file:
            fcntl.flock(made_file, fcntl.LOCK_EX)
            if os.fstat(made_file.fileno()).st_size == _SIZE:
                file.unlink(missing_ok=True)
        raise


def _read(file: Path) -> bytes:
    """Return the salt in a file and mark it as read. Raises InputError."""
    remedy = "name the file that an earlier `kvscope hash --salt-file` has made"
    if not file.is_file():  # not opened: a pipe would wait for its writer
        raise InputError("no file", where=str(file), remedy=remedy)
    writable = os.access(file, os.W_OK)  # a kept salt may be read-only
    with file.open("r+b" if writable else "rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        status = os.fstat(opened.fileno())
        if not is_private(status) or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InputError("other users can read it", where=str(file), remedy="chmod 600 it")
        if not status.st_nlink:  # the run that made it has failed meanwhile
            raise InputError("no such file", where=str(file), remedy="try again")
        text = opened.read(4 * SALT_BYTES)
        if writable and status.st_size == _SIZE:
            opened.seek(0, os.SEEK_END)
            opened.write(b"\n")
    try:
        chosen = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        chosen = b""
    if len(chosen) != SALT_BYTES:
        raise InputError("holds no salt", where=str(file), remedy=remedy)
    return chosen
