"""Whether a folder is a dataset. Commands check every path, so this module imports little."""

from __future__ import annotations

from pathlib import Path

MANIFEST, PLAN = "kvscope-manifest.json", "kvscope-plan.json"
STORE = "store.duckdb"


def is_dataset(path: str) -> bool:
    """Return whether `path` is a dataset's folder, finished or not."""
    try:
        return any((Path(path) / name).is_file() for name in (MANIFEST, PLAN))
    except OSError:  # no name of a folder
        return False


def store_path(path: str) -> str:
    """Return the path of the store at `path`, which may be a dataset's folder."""
    return str(Path(path) / STORE) if is_dataset(path) else path


def is_in_dataset(store: str) -> bool:
    """Return whether the store at this path is a dataset's own."""
    path = Path(store)
    return path.name == STORE and is_dataset(str(path.parent))
