"""The only import of numba: how kernels are compiled, and where the machine code is kept.

Numba's disk cache looks at the file of the compiled function alone, so an edit in a function that
it calls would leave stale machine code behind. The cache therefore lies in a folder named by a
hash of every source file that takes part in compilation, that is: that imports this module.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba

from kvscope.paths import cache_folder

F = TypeVar("F", bound=Callable[..., object])

_MARK = b"kvscope.jit"


def sources_hash(package: Path) -> str:
    """Digest of every source below `package` that takes part in compilation (16 hex digits)."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if _MARK in text:
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(text)
    return digest.hexdigest()


def _kernel_cache() -> Path:
    name = f"kernels-{sources_hash(Path(__file__).resolve().parent)}"
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: compile once a process family instead of failing
        folder = Path(tempfile.gettempdir()) / f"kvscope-{name}"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


numba.config.CACHE_DIR = str(_kernel_cache())


def kernel(function: F) -> F:
    """Compile `function` to machine code that runs without the interpreter lock.

    The plain Python function stays reachable as `.py_func`, for tests and for the oracles.
    """
    compiled: F = numba.njit(cache=True, nogil=True)(function)
    return compiled


def inlined(function: F) -> F:
    """Compile `function` into every kernel that calls it, at no cost of a call."""
    compiled: F = numba.njit(inline="always")(function)
    return compiled
