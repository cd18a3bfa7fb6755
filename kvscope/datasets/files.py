"""Files of a dataset that appear under their name when whole: what is there, is finished."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

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
        np.save(folder / f"{name}.npy", values)


def load_array(folder: Path, name: str) -> NDArray[Any]:
    """Return an array, mapped into memory as long as it is not empty."""
    path = folder / f"{name}.npy"
    array: NDArray[Any] = np.load(path, mmap_mode="r")
    return np.array(array) if array.size == 0 else array
