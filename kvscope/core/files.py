"""Files and folders: the places of kvscope's own, and files that appear only when complete.

The data folders are `queries/`, `dashboard/` and `sample_traces/`. A wheel packs them below the
package; a checkout has them next to it. The packed copy is tried first, so that an installed
kvscope never reads a checkout that happens to surround it.
"""

from __future__ import annotations

import atexit
import errno
import glob
import gzip
import json
import os
import shlex
import shutil
import stat
import sys
import tempfile
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvscope.core.background import in_background
from kvscope.core.errors import DiskFullError, InputError, KvscopeError, UsageError
from kvscope.core.units import MIB, format_size

STANDARD_STREAM = "-"
_SCHEMES = ("s3://", "hf://", "gs://", "az://", "https://", "http://")
FULL = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
"""Text by errno of errors for lack of space: a full disk, a quota, a limit of a file's size."""

PIPE_WAIT_S = 10.0
"""How long to wait until another process opens the other end of a named pipe."""
MAX_DOCUMENT_BYTES = 64 * MIB
"""Largest file that is read whole: settings, a document of --json, a template."""
TOML_MARK = "# Written by kvscope "
HTML_MARK = '<!doctype html><html lang="en"><head><meta name="generator" content="kvscope">'
"""First bytes of HTML reports that kvscope wrote and may replace; TOML_MARK, of TOML files."""

_PACKAGE = Path(__file__).resolve().parents[1]
PACKED = _PACKAGE / "_packed"  # in a wheel alone
_HOMES = (PACKED, _PACKAGE.parent)


def data_folder(name: str) -> Path:
    """Return the data folder called `name`. Raises KvscopeError if it is missing."""
    for home in _HOMES:
        if (home / name).is_dir():
            return home / name
    raise KvscopeError(
        f"the folder {name}/ is missing", where=str(_PACKAGE), remedy="reinstall kvscope"
    )


def cache_folder() -> Path:
    """Return the folder for files that kvscope can recreate (`KVSCOPE_CACHE_DIR`)."""
    chosen = os.environ.get("KVSCOPE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvscope"


def private_cache(name: str) -> Path:
    """Return a cache folder that this user owns and that no other user can write to.

    It is in `cache_folder()`, or in the system's temporary folder if the former is not writable or
    belongs to another user. If neither is usable, it is a new folder, removed at exit.
    """
    in_temporary = Path(tempfile.gettempdir()) / f"kvscope-{os.geteuid()}-{name}"
    for folder in (cache_folder() / name, in_temporary):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()  # not of what a symbolic link points to
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and is_private(status) and os.access(folder, os.W_OK):
            return folder
    folder = Path(tempfile.mkdtemp(prefix=f"kvscope-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_private(status: os.stat_result) -> bool:
    """Return True if this user owns the file or folder and no other user can write to it."""
    writable_by_others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.geteuid() and not status.st_mode & writable_by_others


class LineFile:
    """A file that grows by whole lines: after an error, a partly written line is cut off.

    A new file is for its owner alone. `exclusive` refuses an existing path; else lines are added.
    `lines` counts the lines written, `size` is the file's bytes. Errors are OSErrors with the path.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self._file = FileIO(path, "x" if exclusive else "a", opener=partial(os.open, mode=0o600))
        self.size = os.fstat(self._file.fileno()).st_size
        self.lines = 0
        self._path = path

    def write(self, line: str) -> None:
        """Append `line` and a line break."""
        rest = line.encode() + b"\n"
        size = self.size + len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):  # a pipe
                self._file.truncate(self.size)
            error.filename = str(self._path)
            raise
        self.size, self.lines = size, self.lines + 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def opened(path: Path) -> BinaryIO:
    """Open a file for reading, or a named pipe once another process has opened it for writing.

    Raises OSError, and InputError if no process opens the pipe within PIPE_WAIT_S.
    """
    if not path.is_fifo():
        return path.open("rb")
    pipe = in_background(path.open, "rb")  # which waits
    try:
        return cast(BinaryIO, pipe.result(timeout=PIPE_WAIT_S))
    except TimeoutError as error:
        pipe.add_done_callback(_close)
        raise _unopened(path, "write") from error
    finally:
        if not pipe.done():
            with suppress(OSError):  # a writer, for a moment: the waiting `open` returns
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def _close(pipe: Future[Any]) -> None:
    if pipe.exception() is None:
        pipe.result().close()


def _opened_to_write(path: Path) -> BinaryIO:
    """Open a device for writing, or a named pipe once another process has opened it for reading."""
    if not path.is_fifo():
        return path.open("wb")
    until_s = time.monotonic() + PIPE_WAIT_S
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= until_s:
                raise _unopened(path, "read") from error
            time.sleep(0.02)
            continue
        os.set_blocking(handle, True)
        return os.fdopen(handle, "wb")


def _unopened(path: Path, to: str) -> InputError:
    return InputError(
        f"no process has opened this pipe to {to} within {PIPE_WAIT_S:g} s",
        where=str(path),
        remedy=f"start the process that {to}s {'from' if to == 'read' else 'to'} it first",
    )


def content_of(path: Path, most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file or a named pipe.

    Raises OSError, and InputError if there are more than `most` bytes.
    """
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"larger than {format_size(most)}", where=str(path))
    return content


def json_object(path: Path, remedy: str | None = None) -> dict[str, Any]:
    """Return the JSON object in a file. Raises InputError if it is unreadable or no JSON object."""
    try:
        document = json.loads(content_of(path))
        what = None if isinstance(document, dict) else "not a JSON object"
    except OSError as error:
        what = error.strerror or "cannot be read"
    except (ValueError, RecursionError):
        what = "not a JSON document"
    if what is not None:
        raise InputError(what, where=str(path), remedy=remedy)
    return cast(dict[str, Any], document)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, completely or not at all; `-` is standard output."""
    if str(path) == STANDARD_STREAM:
        sys.stdout.write(text)
        return
    with whole_file(path) as file:
        file.write(text.encode())


@contextmanager
def sink(path: str) -> Iterator[BinaryIO]:
    """Open `path` for writing, compressed if it ends in `.gz` or `.zst`; `-` is standard output."""
    if path == STANDARD_STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with whole_file(Path(path)) as file, _compressed(file, Path(path).suffix) as stream:
        yield stream


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; readers of `path` see all of the old or all of the new content.

    The content goes to a temporary file in the same folder, which is renamed to `path` only if the
    `with` block ends without an error. A path that is no regular file (a pipe, /dev/null) is
    written directly. Raises DiskFullError if there is too little space.
    """
    with _place_named(path):
        if path.exists() and not path.is_file():
            with _opened_to_write(path) as file:
                yield file
            return
        real = Path(os.path.realpath(path))  # a link stays one
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # mkstemp's is for its owner alone
            temporary.replace(real)
        finally:
            temporary.unlink(missing_ok=True)


def check_replaceable(path: str, *, force: bool = False) -> None:
    """Raise UsageError for a file at `path` that neither is empty nor begins with kvscope's mark.

    TOML files and HTML reports of kvscope have a mark; `force` allows to replace any other file.
    """
    place = Path(path)
    if force or path == STANDARD_STREAM or not place.is_file():
        return
    try:
        with place.open("rb") as file:
            begin = file.read(len(HTML_MARK) + len(TOML_MARK))
    except OSError:  # which may well be replaced
        begin = b"?"
    if begin and not begin.startswith((TOML_MARK.encode(), HTML_MARK.encode())):
        raise UsageError(
            "exists, and is no report or settings that kvscope wrote",
            where=path,
            remedy="name another file, or replace it with --force",
        )


def check_writable(path: Path) -> None:
    """Raise OSError if `whole_file` could not start to write `path`; create no file."""
    if path.exists() and not path.is_file():  # not opened: a pipe would wait for its reader
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()


@contextmanager
def _place_named(path: Path) -> Iterator[None]:
    """Name `path` instead of its temporary file in errors; raise DiskFullError for a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            raise full_disk(path, str(error)) from error
        if isinstance(error.filename, str) and Path(error.filename).name.startswith(
            f".{path.name}."
        ):
            if error.errno in FULL:
                raise full_disk(path, str(error)) from error
            error.filename = str(path)
        raise
    except KvscopeError:
        raise
    except Exception as error:  # a library's own, around the system's text
        if any(reason in str(error) for reason in FULL.values()):
            raise full_disk(path, str(error)) from error
        raise


@contextmanager
def space_in(folder: Path, kept: str) -> Iterator[None]:
    """Turn an error of the `with` block for lack of space into a DiskFullError about `folder`.

    `kept` is the part of its message on files that were written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise full_disk(folder, str(error), kept) from error
        raise


def full_disk(path: Path, reason: str, kept: str = "nothing was written") -> DiskFullError:
    """Return the error for a file that could not be written, from the system's text `reason`.

    `kept` is the part of the message on files that were written.
    """
    if FULL[errno.EFBIG] in reason:
        what, remedy = "larger than this process may write", "raise the limit: ulimit -f unlimited"
    else:
        kind = "the disk quota is used up" if FULL[errno.EDQUOT] in reason else "the disk is full"
        with suppress(OSError):
            if not path.exists() or path.is_file():  # a device's folder is no place of its content
                kind += f" ({format_size(shutil.disk_usage(path.parent).free)} free)"
        what, remedy = kind, "free some space, or name a file on another disk"
        if path.is_dir():
            remedy = "free some space, and run it again"
    return DiskFullError(what, where=str(path), remedy=f"{kept}; {remedy}")


@contextmanager
def _compressed(file: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    if suffix == ".gz":
        # Neither name nor time in the header: equal traces give equal bytes.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            yield cast(BinaryIO, packed)
    elif suffix == ".zst":
        import zstandard  # reports and recommendations do without it

        with zstandard.ZstdCompressor(level=6).stream_writer(file, closefd=False) as writer:
            yield cast(BinaryIO, writer)
    else:
        yield file


class ChunkReader(RawIOBase):
    """A raw stream of the bytes that `chunk` returns; an empty chunk ends it."""

    @abstractmethod
    def chunk(self, size: int) -> bytes | memoryview:
        """Return up to `size` bytes."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill a part of the buffer; return the number of bytes filled."""
        target = cast(memoryview, buffer)
        data = self.chunk(len(target))
        target[: len(data)] = data
        return len(data)


def size_of(path: str) -> int | None:
    """Return the total bytes of the files at `path`, None if any is remote or no regular file."""
    if any(map(is_remote, parts_of(path))):
        return None
    files = [Path(file) for file in files_of(path)]
    return sum(file.stat().st_size for file in files) if all(map(Path.is_file, files)) else None


def is_remote(path: str) -> bool:
    """Return True for an address such as s3:// or https:// (see `kvscope.core.remote`)."""
    return path.startswith(_SCHEMES)


def one_path(paths: Sequence[str]) -> str:
    """Return `paths` as one text: a single path unchanged, several joined as shell words."""
    return paths[0] if len(paths) == 1 else shlex.join(paths)


def parts_of(path: str) -> list[str]:
    """Return the paths in a text of `one_path`: a single one, or several joined ones."""
    if os.path.lexists(path) or (is_remote(path) and not any(map(str.isspace, path))):
        return [path]
    try:
        return shlex.split(path) or [path]
    except ValueError:  # a quotation mark without its other one
        return [path]


def files_of(path: str) -> list[str]:
    """Return the files at `path`, sorted by name: a file, those of a folder, or of a pattern.

    If `path` joins several (`one_path`), the files of each follow in turn. A file with several
    names is listed once. Hidden files and subfolders are left out. An existing path is no pattern.
    A folder or pattern without files has none; a missing path that is no pattern is listed. Remote
    addresses: see `kvscope.core.remote`.
    """
    parts = parts_of(path)
    if len(parts) > 1:
        files: dict[object, str] = {}
        for file in (each for part in parts for each in files_of(part)):
            files.setdefault(file if is_remote(file) else file_identity(file), file)
        return [*files.values()]
    if is_remote(path):
        from kvscope.core.remote import remote_files  # loads HTTP

        return remote_files(path)
    place = Path(path)
    if place.is_dir():
        path = str(Path(glob.escape(path)) / "*")
    elif place.exists() or not glob.has_magic(path):
        return [path]
    by_file: dict[object, Path] = {}
    for match in sorted(map(Path, _matches(path)), key=lambda match: (len(match.parts), match)):
        if match.is_file():  # by the shortest path
            by_file.setdefault(file_identity(match), match)
    return [*map(str, sorted(by_file.values()))]


def _matches(pattern: str) -> Iterator[str]:
    """Yield the paths that match a pattern; `**` visits each folder once, despite symbolic links.

    `glob` follows links repeatedly: two cyclic links make 2^40 paths.
    """
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from glob.glob(pattern)  # noqa: PTH207 - Path.glob raises for some patterns
        return
    at = parts.index("**")
    begin, rest = os.path.join(*parts[:at], ""), parts[at + 1 :] or ("*",)  # noqa: PTH118
    folders, seen = deque(glob.glob(begin) if at else ["."]), set[object]()  # noqa: PTH207
    while folders:
        folder = Path(folders.popleft())
        if (identity := file_identity(folder)) in seen:
            continue
        seen.add(identity)
        yield from _matches(str(Path(glob.escape(str(folder)), *rest)))
        with suppress(OSError):
            inner = (each for each in folder.iterdir() if not each.name.startswith("."))
            folders.extend(str(each) for each in sorted(inner) if each.is_dir())


def file_identity(path: str | Path) -> object:
    """Return a key that is equal for all paths to the same file: device and inode, or real path."""
    try:
        status = Path(path).stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def missing_from(path: str) -> list[str]:
    """Return the local paths in `path` (see `parts_of`) without any file, folder or match."""
    return [
        part
        for part in parts_of(path)
        if not is_remote(part)
        and not os.path.exists(part)  # noqa: PTH110 - Path.exists raises for names too long
        and not (glob.has_magic(part) and files_of(part))
    ]
