"""Columns of numpy as a table that DuckDB reads, by Arrow's C interface and without a copy."""

from __future__ import annotations

import nanoarrow
import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float64]]


class Frame:
    """Arrays of one length above 0, numbers of 32 or 64 bits, none of them missing.

    DuckDB takes numpy's arrays too, but converts them value by value on its way; Arrow's it reads
    as they lie, which spares a quarter of the time that an insertion takes.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = {name: np.ascontiguousarray(each) for name, each in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as a stream of one batch; DuckDB asks for its schema by a stream of its own."""
        children = [nanoarrow.c_array(each) for each in self._columns.values()]
        named = dict(zip(self._columns, (child.schema for child in children), strict=True))
        batch = nanoarrow.c_array_from_buffers(
            nanoarrow.struct(named), len(self), [None], children=children
        )
        return nanoarrow.c_array_stream(batch).__arrow_c_stream__()
