"""Limits of what kvscope reads (docs/reliability.md): a hostile file ends in a one-line error.

A line beyond a limit on lines counts as unusable; a file beyond a limit on files is refused.
"""

from __future__ import annotations

from kvscope.core.units import MIB

# Of a line, or of a record of a format without lines.
MAX_LINE_BYTES = 64 * MIB  # a session with thousands of requests takes some MiB
MAX_TOKENS = 1 << 24  # of a request, input and output together: models take up to 10 million
MAX_HASH_IDS = 1 << 20  # of a request: MAX_TOKENS in blocks of 16
MAX_TEXT = 1 << 16  # characters of a text in a Parquet row
MAX_NESTING = 100  # JSON objects and arrays in one another; a sub-agent takes two

# Of a file.
MAX_PARQUET_BYTES = 1 << 30  # of some 2,000 rows at a time, as DuckDB has them
MAX_INDEX_BYTES = 16 * MIB  # of Parquet: row groups and columns of 10^8 requests take some 4 MiB
MAX_INDEX_ELEMENTS = 1 << 20  # of its lists, which DuckDB allocates before it reads them
MAX_ENDLESS_BYTES = 256 * MIB  # without a line feed: no line
MAX_REQUESTS = 100_000_000  # also of lines, blank ones included
MAX_EXPANSION = 10_000  # decompressed bytes a compressed one; gzip reaches 1,032, zstd 32,768
EXPANSION_FREE_BYTES = 256 * MIB  # decompressed, before MAX_EXPANSION counts
HOPELESS_LINES = 100_000  # at the beginning, none of which can be used
