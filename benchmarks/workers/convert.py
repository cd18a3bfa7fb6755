"""Convert a trace to a kvscope store and to libCacheSim's format.

Arguments: TRACE FOLDER. Writes NAME.duckdb and NAME.oracleGeneral there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvscope.core.prefix import paths
from kvscope.ingest.pipeline import ingest
from kvscope.store.db import open_store
from kvscope.store.traces import load_prompts

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
NEVER = -1


def next_access(blocks: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return for each access the position, from 1, of its block's next access, or NEVER."""
    order = np.argsort(blocks, kind="stable")
    again = blocks[order[1:]] == blocks[order[:-1]]
    positions = np.full(len(blocks), NEVER, dtype=np.int64)
    positions[order[:-1][again]] = order[1:][again] + 1
    return positions


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    name = options.trace.name.split(".", maxsplit=1)[0]
    store_path = options.folder / f"{name}.duckdb"
    store_path.unlink(missing_ok=True)
    with open_store(str(store_path)) as store:
        prompts = load_prompts(store, ingest(store, str(options.trace)).trace)
    _, blocks = paths(prompts.block_parent, prompts.leaf, prompts.blocks)
    records = np.empty(len(blocks), dtype=RECORD)
    records["time"] = np.arange(len(blocks))
    records["id"] = blocks
    records["size"] = 1
    records["next"] = next_access(blocks)
    records.tofile(options.folder / f"{name}.oracleGeneral")


if __name__ == "__main__":
    main()
