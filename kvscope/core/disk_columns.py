"""Columns on disk that are read slice by slice, and sorting by one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Protocol, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1 << 20
"""Most entries in a slice of `stretches`."""

Columns = Mapping[str, NDArray[Any]]


def append_array(file: BinaryIO, values: NDArray[Any]) -> None:
    """Append the values to a file. Raises OSError for a full disk, now or when the file is flushed.

    NumPy's own `tofile` does not report a full disk for arrays of a few kilobytes.
    """
    file.write(np.ascontiguousarray(values).data)


def close_quietly(file: BinaryIO) -> None:
    """Close a file that is no longer read; ignore errors, such as a full disk."""
    with suppress(OSError):
        file.close()


class Column(Protocol):
    """An array, or a column on disk; slices of both are arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Any]: ...


class TemporaryColumns:
    """An unnamed temporary `file` for columns, removed with the last reference to this object."""

    def __init__(self, folder: Path) -> None:
        self.file = cast("BinaryIO", TemporaryFile(dir=folder))  # noqa: SIM115 - see above
        finalize(self, close_quietly, self.file)


class DiskColumn:
    """A column of `length` entries in a file, from byte `begin` on; slices are read on access."""

    def __init__(
        self, file: TemporaryColumns, dtype: np.dtype[Any], length: int, begin: int = 0
    ) -> None:
        self._file, self._dtype, self._length, self._begin = file, dtype, length, begin

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        begin, end, _ = part.indices(self._length)
        size = self._dtype.itemsize
        self._file.file.flush()
        data = bytearray(max(end - begin, 0) * size)
        view, at = memoryview(data), self._begin + begin * size
        while view:  # a read may end early
            count = os.preadv(self._file.file.fileno(), [view], at)
            if not count:
                raise OSError("a temporary file has become shorter")
            view, at = view[count:], at + count
        return np.frombuffer(data, self._dtype)


def stretches(length: int, at_once: int = AT_ONCE) -> Iterator[slice]:
    """Yield slices of at most `at_once` entries that cover `length` entries."""
    return (slice(k, min(k + at_once, length)) for k in range(0, length, at_once))


def sorted_columns(parts: Iterable[Columns], key: str) -> dict[str, NDArray[Any]]:
    """Return the columns of all parts by ascending `key`; equal keys keep their order."""
    every = list(parts)
    whole = every[0]
    if len(every) > 1:
        whole = {name: np.concatenate([part[name] for part in every]) for name in whole}
    order = stable_order(whole[key])
    return {name: values[order] for name, values in whole.items()}


def stable_order(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the indices that sort up to 2^31 values stably, faster than NumPy; none may be NaN."""
    order = np.argsort(values)
    ordered = values[order]
    rank = np.cumsum(np.append(False, ordered[1:] != ordered[:-1]))[: len(order)]
    keyed = rank << 32 | order
    keyed.sort()
    return keyed & (2**32 - 1)


def in_order(parts: Iterable[Columns], key: str, folder: Path | None) -> Mapping[str, Column]:
    """Return the columns of all parts by ascending `key`: in memory, or in files in `folder`."""
    return sorted_columns(parts, key) if folder is None else sorted_on_disk(parts, key, folder)


def sorted_on_disk(
    parts: Iterable[Columns], key: str, folder: Path, at_once: int = 2 * AT_ONCE
) -> dict[str, DiskColumn]:
    """Return sorted columns on disk: sort part by part, then merge by ranges of the key.

    Memory holds one part, or about `at_once` entries while merging; more only if more entries have
    the same key, since these are merged together.
    """
    runs = [_written(sorted_columns([part], key), folder) for part in parts]
    every = sum(len(run[key]) for run in runs)
    files = {name: TemporaryColumns(folder) for name in runs[0]}
    step = max(at_once // (8 * len(runs)), 1)
    known = np.sort(np.concatenate([_every(run[key], step) for run in runs]))
    bounds = np.unique(known[:: max(at_once // step, 1)])[1:].tolist()
    begin = [0] * len(runs)
    for bound in [*bounds, None] if every else []:
        end = [
            len(run[key]) if bound is None else _search(run[key], bound, first)
            for run, first in zip(runs, begin, strict=True)
        ]
        spans = [slice(*ends) for ends in zip(begin, end, strict=True)]
        some = (
            {name: run[name][span] for name in run} for run, span in zip(runs, spans, strict=True)
        )
        for name, values in sorted_columns(some, key).items():
            append_array(files[name].file, values)
        begin = end
    dtype = {name: column[:0].dtype for name, column in runs[0].items()}
    return {name: DiskColumn(file, dtype[name], every) for name, file in files.items()}


def _written(columns: Columns, folder: Path) -> dict[str, DiskColumn]:
    written, file = {}, TemporaryColumns(folder)
    for name, values in columns.items():
        written[name] = DiskColumn(file, values.dtype, len(values), file.file.tell())
        append_array(file.file, values)
    return written


def _every(column: DiskColumn, step: int) -> NDArray[Any]:
    parts = [
        column[part][::step] for part in stretches(len(column), AT_ONCE // step * step or step)
    ]
    return np.concatenate([column[:0], *parts])


def _search(column: DiskColumn, bound: float, begin: int) -> int:
    """Return the first index from `begin` on whose entry is at least `bound`; else the length."""
    end = len(column)
    while begin < end:
        middle = (begin + end) // 2
        if column[middle : middle + 1][0] < bound:
            begin = middle + 1
        else:
            end = middle
    return begin
