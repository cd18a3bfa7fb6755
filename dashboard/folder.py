"""Files that a page may name: regular files below the folder that the server was started with.

A page is filled in by whoever has its address, so no other path is opened or looked at.
"""

from __future__ import annotations

from pathlib import Path

from dashboard.arguments import arguments
from kvscope.core.errors import InputError, UsageError


def folder() -> Path | None:
    """Return the folder whose files pages may name, None where they may name none."""
    stated = arguments().folder
    return None if stated is None else Path(stated).resolve()


def file_below(text: str) -> str:
    """Return the path of the regular file that `text` names, absolute or relative to the folder.

    Symbolic links are followed before the check. Raises UsageError for a path outside of the
    folder, or without one, and InputError for what is no regular file; neither opens it.
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
        regular = inside and path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a null byte
        raise InputError("not a path", where=repr(text[:80])) from error
    if not inside:
        raise UsageError(
            "lies outside of the folder", where=text, remedy=f"name a file below {root}"
        )
    if not regular:
        raise InputError("no such file", where=text, remedy=f"name a file below {root}")
    return str(path)
