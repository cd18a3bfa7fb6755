"""The command line of the dashboard's server, and the files that a page may name.

A page is filled in by whoever has its address, so no path outside of the folder that the server was
started with is opened or looked at.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvscope.core.errors import InputError, UsageError
from kvscope.store.db import DEFAULT_PATH


def arguments() -> argparse.Namespace:
    """Return `host`, `port`, `db` and `folder` as the server was started with them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", default=DEFAULT_PATH)
    parser.add_argument("--folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501)
    return parser.parse_known_args(sys.argv[1:])[0]


def folder() -> Path | None:
    """Return the folder whose files pages may name, None where they may name none."""
    stated = arguments().folder
    return None if stated is None else Path(stated).resolve()


def file_below(text: str, *, folders: bool = False) -> str:
    """Return the path of the regular file that `text` names, absolute or relative to the folder.

    With `folders`, one of these may be named. Symbolic links are followed before the check. Raises
    UsageError for a path outside of the folder, or without one, and InputError for what is no
    regular file; neither opens it.
    """
    root = folder()
    if root is None:
        raise UsageError(
            "pages read no files from the disk",
            where=text,
            remedy="start it with `kvscope dashboard --folder FOLDER`, and name a file in it",
        )
    try:
        path = (root / text).resolve()
        inside = path.is_relative_to(root)
        regular = inside and (path.is_file() or (folders and path.is_dir()))
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a null byte
        raise InputError("not a path", where=repr(text[:80])) from error
    if not inside:
        raise UsageError(
            "lies outside of the folder", where=text, remedy=f"name a file below {root}"
        )
    if not regular:
        raise InputError("no such file", where=text, remedy=f"name a file below {root}")
    return str(path)
