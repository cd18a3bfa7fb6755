"""Files of a dataset that appear under their name when whole: a file that exists is complete."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kvscope.core.disk_columns import append_array
from kvscope.core.errors import InputError

Arrays = dict[str, NDArray[Any]]

_NO_ARRAY = (ValueError, TypeError, SyntaxError, TokenError, LookupError, ArithmeticError)
"""What NumPy raises for a file that it did not write."""


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a folder that takes the name `path` only if the block ends without an error."""
    draft = path.with_name(
        f".{path.name}.{uuid4().hex}"
    )  # of no other process, on whatever machine
    draft.mkdir(parents=True)
    try:
        yield draft
        shutil.rmtree(path, ignore_errors=True)  # of an earlier try that was not needed
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def save_arrays(folder: Path, arrays: Arrays) -> None:
    """Write each array to a file of its own, which can be mapped into memory."""
    for name, values in arrays.items():
        save_array(folder / f"{name}.npy", values)


def save_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array as NumPy's own `save` does; OSError where the disk is full."""
    values = np.ascontiguousarray(values)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(values))
        append_array(file, values)


class ArrayFolder(MutableMapping[str, NDArray[Any]]):
    """Arrays by name, each a file in an initially empty folder, mapped into memory while used."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self._names = dict[str, None]()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return load_array(self._folder, name)

    def __setitem__(self, name: str, values: NDArray[Any]) -> None:
        path = self._folder / f"{name}.npy"
        path.unlink(missing_ok=True)  # a file may be mapped, by `values` even
        save_array(path, values)
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        (self._folder / f"{name}.npy").unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._names))

    def __len__(self) -> int:
        return len(self._names)


def load_array(folder: Path, name: str) -> NDArray[Any]:
    """Return the array `name`, mapped into memory; DamagedDatasetError if missing or invalid."""
    path = folder / f"{name}.npy"
    try:
        values = np.asarray(npy.open_memmap(path, mode="r"))
    except FileNotFoundError as error:
        raise DamagedDatasetError(path, "is missing") from error
    except _NO_ARRAY as error:
        raise DamagedDatasetError(path, "is no array") from error
    if values.dtype.kind not in "bif":
        raise DamagedDatasetError(path, "is no array of numbers")
    return values


def digest_of(folder: Path, names: Iterable[str]) -> str:
    """Return a digest (32 hex digits) of arrays' files; DamagedDatasetError if one is missing."""
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        path = folder / f"{name}.npy"
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        except FileNotFoundError as error:
            raise DamagedDatasetError(path, "is missing") from error
    return digest.hexdigest()


class DamagedDatasetError(InputError):
    """A dataset's files differ from those written, or hold impossible values."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            what, where=str(path), remedy="the dataset is damaged: ingest its files into another"
        )

    def __reduce__(self) -> tuple[Any, ...]:  # it comes from other processes
        return type(self), (self.where, self.what)
