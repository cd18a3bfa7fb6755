"""The errors of kvscope: every message names the place, the value and the remedy, in one line.

Messages show addresses without passwords, tokens and signatures.

The command line turns each class into its exit code; nothing else in kvscope calls `sys.exit`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

_ADDRESS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*)://(?:[^\s/?#'\"]*@)?([^\s?'\"]*)(\?[^\s'\"]*)?")
_IN_PARTS = re.compile(  # a space in the user or the query, or a user whose rest is not there
    r"(?i)\b(?!s3:)[a-z][a-z0-9+.-]*://"
    r"(?:[^/?#]*\s[^/?#]*@|[^/?#@\[]*:(?!\d*(?:[/?#]|$))[^/?#@]*(?:[/?#]|$)|[^?]*\?.*\s)"
    r"|\bs3://[^/?#]*\s[^/?#]*@"
)
_USER = re.compile(r"[^\s/@:'\"]+:[^\s/'\"]+@(?=[\w\[])")


def without_secrets(text: str) -> str:
    """Return `text` with user names, passwords and queries removed from its addresses.

    s3:// addresses keep what follows `?`, a wildcard there. `user:password@` is removed everywhere.
    """
    if "://" in text:
        text = _ADDRESS.sub(
            lambda at: f"{at[1]}://{at[2]}{(at[3] or '') if at[1].lower() == 's3' else ''}", text
        )
    return _USER.sub("", text) if "@" in text else text


def require_whole_addresses(arguments: Iterable[str]) -> None:
    """Raise UsageError for an address that may be incomplete: messages could show its secrets.

    Such an address has a space in the user, the password or the query (`https://me:p w@host`), or a
    user and no host: the shell may have cut `https://me:pw` at a space.
    """
    for place, argument in enumerate(arguments, 1):
        if "://" in argument and _IN_PARTS.search(argument):
            remedy = "put it in quotes, and write a space in it as %20"
            raise UsageError("no whole address", where=f"argument {place}", remedy=remedy)


class ExitCode(IntEnum):
    """The exit status of a kvscope process. Scripts depend on these values."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INPUT = 3
    CHECK_FAILED = 4
    ENGINE = 5
    INTERRUPTED = 130


class KvscopeError(Exception):
    """An error with its place and its remedy, in one line."""

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = without_secrets(what)
        self.where = where and without_secrets(where)
        self.remedy = remedy and without_secrets(remedy)
        super().__init__(str(self))

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts of the message instead of a subclass's own constructor arguments."""
        return _remade, (type(self), self.what, self.where, self.remedy)


def _remade(
    kind: type[KvscopeError], what: str, where: str | None, remedy: str | None
) -> KvscopeError:
    error = kind.__new__(kind)
    KvscopeError.__init__(error, what, where=where, remedy=remedy)
    return error


class UsageError(KvscopeError):
    """A command, an option or a value that kvscope does not take."""

    exit_code = ExitCode.USAGE


@contextmanager
def placed(where: str, kind: type[KvscopeError] = UsageError) -> Iterator[None]:
    """Turn a UsageError in the `with` block into an error of `kind` at the place `where`."""
    try:
        yield
    except UsageError as error:
        raise kind(error.what, where=where, remedy=error.remedy) from error


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown name: a similar known name, `otherwise` if there is none."""
    near = get_close_matches(name, [*known], n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def key_values(
    pieces: Iterable[str], known: Collection[str], where: str, *, owner: str, example: str
) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of each piece such as `ttl=10m`, an option of `owner`.

    Raises UsageError at the place `where` for an unknown or repeated key, and for another form with
    the remedy `example`, such as "write for example ttl=10m".
    """
    seen = set()
    for piece in pieces:
        key, equals, value = (side.strip() for side in piece.partition("="))
        if not (equals and value):
            raise UsageError(f"{piece!r} is no option", where=where, remedy=example)
        if key not in known:
            remedy = did_you_mean(key, known, f"it has {', '.join(known)}")
            raise UsageError(f"{owner} has no option {key!r}", where=where, remedy=remedy)
        if key in seen:
            raise UsageError(f"{key} is there twice", where=where, remedy="leave one out")
        seen.add(key)
        yield key, value


class InputError(KvscopeError):
    """A trace, a configuration or a store cannot be read."""

    exit_code = ExitCode.INPUT


class DiskFullError(KvscopeError):
    """A file could not be written whole for lack of space; its earlier content is intact."""


class StoreBusyError(KvscopeError):
    """Another process has the store open."""


class ReadOnlyStoreError(InputError):
    """The store, or its folder, cannot be written."""


class DamagedStoreError(InputError):
    """The store has parts that cannot be read."""


class StoreVersionError(InputError):
    """A newer kvscope, a newer DuckDB, or a kvscope before the oldest schema wrote the store."""


class OutdatedStoreError(StoreVersionError):
    """An older kvscope wrote the store, which is opened read-only and so cannot be upgraded."""


class Stopped(KvscopeError):
    """The user ended the work before it was finished."""

    exit_code = ExitCode.INTERRUPTED


class EngineError(KvscopeError):
    """The inference engine cannot be reached or refuses to serve."""

    exit_code = ExitCode.ENGINE
