"""Memory: what is left for this process to allocate, and a one-line error before it runs out."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kvscope.core.errors import KvscopeError
from kvscope.core.units import GIB, format_size

LEAST_ADDRESS_SPACE_BYTES = 2 * GIB
"""Least `ulimit -v`: below, libraries end the process by themselves, some while they load."""

_REMEDY = (
    "take a part of the trace (a sample of a dataset: simulate --sample), fewer policies and"
    " capacities at once, or more memory"
)
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_KIB = 1024
_ARENA_MAX = -8  # glibc, malloc/malloc.h: M_ARENA_MAX
_RESERVED_BYTES = GIB // 4  # of the address space: a new thread takes some, and aborts without
# What libraries raise when they get no memory, or no thread, which needs memory for its stack.
_FAILED_ALLOCATION = re.compile(
    r"can't start new thread|cannot allocate memory|failed to map segment|out of memory"
    r"|failed to allocate|bad allocation",
    re.IGNORECASE,
)


class OutOfMemoryError(KvscopeError):
    """The work needs more memory than is available."""


def limit_heaps() -> None:
    """Let glibc use one heap per core instead of eight; call this before threads start.

    Threads that take turns then reuse memory that others freed; else they touch a sixth more pages.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if set_option is not None:
        set_option(_ARENA_MAX, os.cpu_count() or 1)


def require(needed_bytes: float, what: str, remedy: str = _REMEDY) -> None:
    """Raise OutOfMemoryError about `what` if `needed_bytes` is more than is available."""
    available = available_bytes()
    if available is None or needed_bytes <= available[0]:
        return
    raise OutOfMemoryError(
        f"needs about {format_size(needed_bytes)} of memory, {format_size(available[0])}"
        f" {available[1]}",
        where=what,
        remedy=remedy,
    )


def at_once(each_bytes: float, most: int) -> int:
    """Return how many tasks of `each_bytes` fit into memory: 1 to `most`, the latter if unknown."""
    available = available_bytes()
    return most if available is None else max(1, min(most, int(available[0] / each_bytes)))


def available_bytes() -> tuple[int, str] | None:
    """Return the bytes available to this process and a text on their limit; None if unknown.

    The least of three: free memory and swap, the rest below the container's limit, the rest below
    `ulimit -v`. The text is such as "are left in this container".
    """
    return min(_available(), default=None)


def require_address_space() -> None:
    """Raise OutOfMemoryError if `ulimit -v` is too low to load the libraries."""
    limit = _address_space()
    if limit is not None and limit < LEAST_ADDRESS_SPACE_BYTES:
        raise OutOfMemoryError(
            f"the address space is limited to {format_size(limit)}, and kvscope's libraries take"
            f" {format_size(LEAST_ADDRESS_SPACE_BYTES)}",
            where="ulimit -v",
            remedy="raise the limit",
        )


def out_of_memory(error: BaseException) -> OutOfMemoryError | None:
    """Return an OutOfMemoryError if `error` or one of its causes means a lack of memory, else None.

    Libraries raise different errors for it, recognized by type, errno or text.
    """
    if isinstance(error, OutOfMemoryError):
        return error
    is_shortage = (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or _FAILED_ALLOCATION.search(str(error)) is not None
    )
    if not is_shortage:
        return None if error.__cause__ is None else out_of_memory(error.__cause__)
    available = available_bytes()
    limit = "" if available is None else f": {format_size(available[0])} {available[1]}"
    return OutOfMemoryError(f"out of memory{limit}", remedy=_REMEDY)


def _available() -> Iterator[tuple[int, str]]:
    with suppress(OSError, ValueError, IndexError, KeyError):
        fields = dict(
            line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines() if line
        )
        free = sum(int(fields[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
        yield free * _KIB, "are free"
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in {"", "memory"}:
                yield from _left_in_groups(path, version=2 if not controllers else 1)
    with suppress(OSError, ValueError, IndexError):
        limit = _address_space()
        if limit is not None:
            pages = int((_PROC / "self/statm").read_text().split()[0])
            left = limit - pages * os.sysconf("SC_PAGE_SIZE") - _RESERVED_BYTES
            yield max(left, 0), "are left below `ulimit -v`"


def _left_in_groups(path: str, version: int) -> Iterator[tuple[int, str]]:
    """Yield the bytes left below the limit of a cgroup, then of each parent, all with a text.

    The text is "are left in this container", for `available_bytes`. `path` is that of the cgroup in
    /proc/self/cgroup, `version` that of cgroups, 1 or 2. A container may see its own cgroup as the
    root. File caches count as left: they can be dropped.
    """
    root, limit, usage = (
        (_CGROUPS, "memory.max", "memory.current")
        if version == 2
        else (_CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    cached_name = "inactive_file" if version == 2 else "total_inactive_file"
    group = root / path.lstrip("/")
    while group.is_relative_to(root):
        with suppress(OSError, ValueError):  # "max": no limit
            most = int((group / limit).read_text())
            used = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            left = most - used + int(stat.get(cached_name, 0))
            yield max(left, 0), "are left in this container"
        group = group.parent


def _address_space() -> int | None:
    """Return the limit of the address space in bytes, None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
