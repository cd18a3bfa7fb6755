"""Time a trace from file to LRU's hit rates as kvcache-simulator counts them.

Arguments: TRACE --capacities 100,200. Prints the hit rates, and the seconds of each pass without
the imports. A pass begins with a new store.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from kvscope.__main__ import prepare_collector
from kvscope.core.hits import KVCACHE_SIMULATOR
from kvscope.ingest.pipeline import ingest
from kvscope.replay.curve import lru_curve
from kvscope.store.db import open_store
from kvscope.store.traces import load_prompts


def hit_rates(trace_path: str, capacities: list[int]) -> list[float]:
    """Return LRU's hit rates at these capacities in blocks."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(str(Path(folder) / "store.duckdb")) as store,
    ):
        trace = ingest(store, trace_path).trace
        curve = lru_curve(load_prompts(store, trace), KVCACHE_SIMULATOR)
    rates: list[float] = curve.rate(np.array(capacities)).tolist()
    return rates


def main() -> None:
    """Run the command line."""
    prepare_collector()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace")
    parser.add_argument("--capacities", required=True, help="in blocks, separated by commas")
    parser.add_argument("--passes", type=int, default=1)
    options = parser.parse_args()
    capacities = [int(capacity) for capacity in options.capacities.split(",")]
    seconds = []
    for _ in range(options.passes):
        started = time.perf_counter()
        rates = hit_rates(options.trace, capacities)
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"hit_rates": rates, "passes_s": seconds}))


if __name__ == "__main__":
    main()
