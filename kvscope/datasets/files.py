"""Files of a dataset that appear under their name when whole: what is there, is finished."""

from __future__ import annotations

import hashlib
import math
import mmap
import shutil
from ast import literal_eval
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kvscope.core.disk_columns import append_array
from kvscope.core.errors import InputError

Arrays = dict[str, NDArray[Any]]


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
    """Arrays by name, each a file in a folder that begins empty: in memory while it is used."""

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
    """Return an array, mapped into memory as long as it is not empty.

    NumPy's own way takes 100 us, most of it to parse a header that thousands of files have. Raises
    DamagedDatasetError where there is no such array.
    """
    path = folder / f"{name}.npy"
    try:
        with path.open("rb") as file:
            version, _ = npy.read_magic(file)
            size = int.from_bytes(file.read(2 if version == 1 else 4), "little")
            shape, dtype = _header(file.read(size))
            begin = file.tell()
            if not math.prod(shape):
                return np.empty(shape, dtype)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, dtype, math.prod(shape), begin).reshape(shape)
    except FileNotFoundError as error:
        raise DamagedDatasetError(path, "is missing") from error
    except (ValueError, TypeError, SyntaxError, LookupError, ArithmeticError) as error:
        raise DamagedDatasetError(path, "is no array") from error


def digest_of(folder: Path, names: Iterable[str]) -> str:
    """Return the digest of the files of some arrays."""
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
    """A dataset's files are not those that were written, or cannot be."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            what, where=str(path), remedy="the dataset is damaged: ingest its files into another"
        )

    def __reduce__(self) -> tuple[Any, ...]:  # it comes from other processes
        return type(self), (self.where, self.what)


@lru_cache(1024)
def _header(text: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    header = literal_eval(text.decode("latin1"))
    shape, dtype = header["shape"], np.dtype(header["descr"])
    if any(size < 0 for size in shape) or dtype.kind not in "bif":
        raise ValueError(shape, dtype)
    return shape, dtype
