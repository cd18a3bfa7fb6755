"""Where kvscope's data folders lie: `queries/`, `dashboard/` and `sample_traces/`.

A wheel packs them below the package; a checkout has them beside it. The packed copy is tried
first, so that an installed kvscope never reads a checkout that happens to surround it.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvscope.core.errors import KvscopeError

_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "_packed", _PACKAGE.parent)


def data_folder(name: str) -> Path:
    """The folder called `name` (`queries`, `dashboard` or `sample_traces`)."""
    for home in _HOMES:
        if (home / name).is_dir():
            return home / name
    raise KvscopeError(
        f"the folder {name}/ is missing", where=str(_PACKAGE), remedy="reinstall kvscope"
    )


def cache_folder() -> Path:
    """Where kvscope may keep what it can always make again (`KVSCOPE_CACHE_DIR` overrides)."""
    chosen = os.environ.get("KVSCOPE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvscope"
