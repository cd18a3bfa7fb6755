"""Corners of a curve over capacities: in files by ranges of capacities, added up one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.core.disk_columns import append_array
from kvscope.datasets.spill import take_file
from kvscope.replay.curve import bent

RANGE = 1 << 23
"""Capacities in a range, each of which takes 8 bytes of memory while its corners are added up."""
_AT_ONCE = 1 << 21


class CurveCorners:
    """Corners of one curve: `add` them in any order, then take the `curve`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = dict[int, BinaryIO]()
        self._last = 0

    def add(self, at: Int64s, weight: Int64s) -> None:
        """Note by how much the curve is steeper from each of these capacities on."""
        self._last = max(self._last, int(at.max(initial=0)))
        ranges = at // RANGE
        order = np.argsort(ranges.astype(np.uint16), kind="stable")  # 2^39 blocks: a radix sort
        pairs = np.stack([at[order] % RANGE, weight[order]], axis=1).astype(np.int32)
        numbers, begin = np.unique(ranges[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(pairs, begin)[1:], strict=True):
            if number not in self._files:
                self._files[number] = (self._folder / f"corners-{number}").open("w+b")
            append_array(self._files[number], some)

    def curve(self) -> tuple[Int64s, Int64s]:
        """Return the knots and the hits there, as files that are mapped into memory."""
        columns = [(self._folder / name).open("w+b") for name in ("knots", "hits")]
        for each in bent(self._steepening()):
            for column, values in zip(columns, each, strict=True):
                append_array(column, values)
        knots, hits = (take_file(column, np.dtype(np.int64)) for column in columns)
        return knots, hits

    def _steepening(self) -> Iterator[Float64s]:
        for number in range(self._last // RANGE + 1):
            steeper = np.zeros(min(RANGE, self._last + 1 - number * RANGE))
            if file := self._files.pop(number, None):
                pairs = take_file(file, np.dtype(np.int32)).reshape(-1, 2)
                for begin in range(0, len(pairs), _AT_ONCE):
                    at, weight = pairs[begin : begin + _AT_ONCE].T
                    steeper += np.bincount(at, weight, len(steeper))
            yield steeper
