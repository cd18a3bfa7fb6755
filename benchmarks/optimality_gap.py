"""Measure how far online policies close the gap to those that know the future.

At the capacities where LRU reaches 25, 50 and 75 % of the infinite cache's hit rate: the share of
the gap from LRU to belady (uncached tokens) and from LRU to tail-belady (uncached tokens beyond xi:
TEL) that each policy closes on held-out requests, with 95 % CI from 1,000 resamples of whole
conversations; and the share that no policy can exceed. KVSCOPE_TRACES names the folder of published
traces; without it only samples are replayed. `--record` writes the tables into
docs/evidence/gittins.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.held_out import LEVELS, HeldOut, generated, published, samples
from benchmarks.processes import note
from benchmarks.table import Table, record
from kvscope.policies.registry import POLICIES

PAGE = ROOT / "docs" / "evidence" / "gittins.md"
XI_TOKENS = (8192, 16384)
SAME_AS_LRU = ("lru", "ttl")
BOUND = "no policy exceeds"
UNTOUCHED = (
    ("to-c", 6_000, 501),
    ("to-c", 6_000, 502),
    ("to-b", 20_000, 501),
    ("agent", 1_500, 501),
    ("agent", 1_500, 502),
    ("birth-death", 8_000, 501),
    ("regime-change", 4_000, 501),
    ("regime-change", 4_000, 502),
    ("regime-change", 4_000, 503),
)
"""(profile, requests, seed) of traces on which gittins was not tuned."""


def gaps(trace: HeldOut) -> Table:
    """Return each online policy's shares of the gaps on one trace."""
    online = [x.name for x in POLICIES if not x.hindsight and x.name not in SAME_AS_LRU]
    goals = [(0, "belady"), *((xi, "tail-belady") for xi in XI_TOKENS)]
    replays = [
        (name, xi, capacity)
        for xi, oracle in goals
        for capacity in trace.capacities
        for name in ("lru", oracle, *online)
    ]
    for name in dict.fromkeys(name for name, _, _ in replays):
        trace.uncached(name, 0, 1)  # compile before the threads start
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda setting: trace.uncached(*setting), replays)
        uncached = dict(zip(replays, results, strict=True))
    total = int(trace.input_tokens.sum())
    columns = [(goal, at) for goal in goals for at in trace.capacities]

    def hit_rate(name: str, capacity: int) -> str:
        return f"{1 - uncached[name, 0, capacity].sum() / total:.1%}"

    def share(name: str, xi: int, oracle: str, capacity: int) -> str:
        return trace.share_closed(xi, *(uncached[x, xi, capacity] for x in ("lru", oracle, name)))

    def bound(xi: int, oracle: str, capacity: int) -> str:
        lru, best = (uncached[x, xi, capacity] for x in ("lru", oracle))
        return trace.share_bound(xi, lru, best, capacity)

    rates = ", ".join(
        f"{hit_rate('lru', capacity)} to {hit_rate('belady', capacity)} at {capacity:,} blocks"
        for capacity in trace.capacities
    )
    return Table(
        f"{trace.name}: share of the gap to belady (hits) and tail-belady (TEL) closed",
        f"{len(trace.prompts.leaf):,} requests; {trace.conversations:,} conversations are counted."
        f" Hit rates of lru and belady: {rates}.",
        ("policy", *_columns(XI_TOKENS)),
        [
            *([name, *(share(name, *goal, at) for goal, at in columns)] for name in online),
            [BOUND, *(bound(*goal, at) for goal, at in columns)],
        ],
    )


def untouched(traces: Iterator[HeldOut]) -> Table:
    """Return the shares that gittins closes on traces on which it was not tuned."""
    rows = []
    for trace in traces:
        note(trace.name)
        row, bounds = [trace.name], ["- " + BOUND]
        for xi, oracle in ((0, "belady"), (XI_TOKENS[0], "tail-belady")):
            for at in trace.capacities:
                lru, best, own = (
                    trace.uncached(name, xi, at) for name in ("lru", oracle, "gittins")
                )
                row.append(trace.share_closed(xi, lru, best, own))
                bounds.append(trace.share_bound(xi, lru, best, at))
        rows += [row, bounds]
    return Table(
        "Other seeds: share of the gap to belady (hits) and tail-belady (TEL) closed by gittins",
        "Generated with `kvscope synth PROFILE --requests N --seed S`; gittins was not tuned on"
        " them.",
        ("trace", *_columns(XI_TOKENS[:1])),
        rows,
    )


def _columns(xi_tokens: tuple[int, ...]) -> list[str]:
    goals = ["hits", *(f"TEL {xi // 1024}k" for xi in xi_tokens)]
    return [f"{goal}, {level:.0%}" for goal in goals for level in LEVELS]


def tables() -> Iterator[Table]:
    """Yield the tables of the published traces, the samples and the other seeds."""
    for trace in (*published(), *samples()):
        note(trace.name)
        yield gaps(trace)
    with TemporaryDirectory() as folder:
        yield untouched(generated(UNTOUCHED, Path(folder)))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    command = "`python -m benchmarks.optimality_gap`"
    text = "\n".join([command, "", *(table.markdown() for table in tables())])
    print(text)
    if options.record:
        record(PAGE, text, "gaps")


if __name__ == "__main__":
    main()
