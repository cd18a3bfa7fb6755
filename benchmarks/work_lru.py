"""Work for a fresh process: ingest a trace, then LRU's hit rates as kvcache-simulator counts them.

`python -m benchmarks.work_lru TRACE --capacities 100,200` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from kvscope.ingest.pipeline import ingest
from kvscope.simulate.curve import lru_curve
from kvscope.simulate.definitions import KVCACHE_SIMULATOR
from kvscope.store.db import open_store
from kvscope.store.prompts import load_prompts


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace")
    parser.add_argument("--capacities", required=True, help="in blocks, separated by commas")
    told = parser.parse_args()
    capacities = [int(capacity) for capacity in told.capacities.split(",")]
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(str(Path(folder) / "store.duckdb")) as store,
    ):
        trace = ingest(store, told.trace).trace
        curve = lru_curve(load_prompts(store, trace), KVCACHE_SIMULATOR)
    print(json.dumps(curve.rate(np.array(capacities)).tolist()))


if __name__ == "__main__":
    main()
