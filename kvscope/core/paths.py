"""Locate kvscope's folders: data (`queries/`, `dashboard/`, `sample_traces/`) and caches.

A wheel packs the data folders below the package; a checkout has them next to it. The packed copy
is tried first, so that an installed kvscope never reads a checkout that happens to surround it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

from kvscope.core.errors import KvscopeError

_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "_packed", _PACKAGE.parent)


def data_folder(name: str) -> Path:
    """Return the folder called `name` (`queries`, `dashboard` or `sample_traces`)."""
    for home in _HOMES:
        if (home / name).is_dir():
            return home / name
    raise KvscopeError(
        f"the folder {name}/ is missing", where=str(_PACKAGE), remedy="reinstall kvscope"
    )


def cache_folder() -> Path:
    """Return the folder for files that kvscope can always make again (`KVSCOPE_CACHE_DIR`)."""
    chosen = os.environ.get("KVSCOPE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvscope"


def private_cache(name: str) -> Path:
    """Return a cache folder that this user owns and that no other user can write to.

    It lies below `cache_folder()`, or in the system's temporary folder where that is not writable
    or belongs to another user. If both names are taken, the folder lives as long as the process.
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
