"""Measure how far online policies close the gap to those that know the future.

At the capacities where LRU reaches 25, 50 and 75 % of the infinite cache's hit rate: the share of
the gap from LRU to belady (uncached tokens) and from LRU to tail-belady (uncached tokens beyond xi:
TEL) that each policy closes on held-out requests, with 95 % CI from 1,000 resamples of whole
conversations; the share that no policy can exceed; and where each policy does worst.
KVSCOPE_TRACES names the folder of published traces; without it only samples are replayed.
`--record` writes the tables into docs/evidence/gittins.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from benchmarks import ROOT
from benchmarks.held_out import (
    LEVELS,
    STRETCHES,
    WITH_GUARD,
    Estimate,
    Floats,
    HeldOut,
    generated,
    published,
    samples,
)
from benchmarks.processes import note
from benchmarks.table import Table, record
from kvscope.core.arrays import Int64s
from kvscope.learning.evidence import Goal, GuardEvidence
from kvscope.learning.offline.shadow_replays import Computed, judged
from kvscope.learning.returns.offline import class_tables, guarded_shadows
from kvscope.policies.base import GUARD
from kvscope.policies.registry import POLICIES
from kvscope.replay.replay import Tables

PAGE = ROOT / "docs" / "evidence" / "gittins.md"
XI_TOKENS = (8192, 16384)
ABLATED = (0, XI_TOKENS[0])
SAME_AS_LRU = ("lru", "ttl", "lru-retention", "trtllm-priority")  # on these traces
BOUND, NO_GAP = "no policy exceeds", "–"
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
    ("retrieval", 6_000, 501),
    ("scan", 6_000, 501),
    ("alternating", 6_000, 501),
    ("time-of-day", 6_000, 501),
)
"""(profile, requests, seed) of traces on which gittins was not tuned: that was on 1 to 15."""


ONLINE = [
    *(x.name for x in POLICIES if not x.hindsight and x.name not in SAME_AS_LRU),
    *(x.name + WITH_GUARD for x in POLICIES if GUARD in x.parameters),
]


Columns = list[tuple[int, str, int]]
Uncached = dict[tuple[str, int, int], Floats]


class Least:
    """The least share that each policy closes on any trace, at any capacity."""

    def __init__(self) -> None:
        self._least: dict[tuple[str, int], tuple[float, str]] = {}

    def add(
        self, policy: str, xi: int, share: Estimate | None, by_time: Estimate | None, where: str
    ) -> None:
        """Note a share with its intervals by conversation and by time."""
        if share is None or by_time is None:
            return
        cell = share.value, f"{share} {by_time.interval}, {where}"
        self._least[policy, xi] = min(cell, self._least.get((policy, xi), (inf, "")))

    def table(self) -> Table:
        """Return a row a policy, the best least share of hits first."""
        nothing = inf, NO_GAP
        rows = [
            [name, *(self._least.get((name, xi), nothing)[1] for xi in (0, *XI_TOKENS[:1]))]
            for name in sorted(ONLINE, key=lambda name: -self._least.get((name, 0), nothing)[0])
        ]
        return Table(
            "The least of each policy: the share of the gap closed where it does worst",
            "On all traces of this page, at all capacities; 0 is LRU. Intervals: by conversation,"
            f" then by {STRETCHES} stretches of time.",
            ("policy", "hits", f"TEL {XI_TOKENS[0] // 1024}k"),
            rows,
        )


class Ablation:
    """What each candidate of the guard closes alone, what the best one does, and what the guard."""

    NAMES = ("LRU", "need alone", "gittins, no guard")
    ENOUGH = 0.7  # of what the best candidate closes

    def __init__(self) -> None:
        self._closed: dict[int, list[list[float]]] = {}  # by xi: of each gap, the guard's last
        self._traces: dict[int, list[str]] = {}  # by xi: of each gap

    def add(self, trace: HeldOut, columns: Columns, uncached: Uncached) -> None:
        """Replay each candidate alone on a trace, at the capacities of all columns."""
        shadows = guarded_shadows(trace.traffic, class_tables(trace.traffic))
        for xi, oracle, capacity in columns:
            lru, best, guarded = (uncached[x, xi, capacity] for x in ("lru", oracle, "gittins"))
            costs = [
                trace.uncached("gittins", xi, capacity, candidate)
                for candidate in shadows.candidates
            ]
            shares = [trace.share_closed(xi, lru, best, cost) for cost in (*costs, guarded)]
            closed = [share.value for share in shares if share is not None]
            if len(closed) == len(shares):
                self._closed.setdefault(xi, []).append(closed)
                self._traces.setdefault(xi, []).append(trace.name)

    def _enough(self, guarded: Floats, best: Floats) -> str:
        return f"{np.mean(guarded >= self.ENOUGH * best - 0.01):.0%} of {len(best)}"

    def table(self) -> Table:
        """Return a row for each candidate, for the best of them in hindsight, and for the guard."""
        rows: list[list[str]] = [[name] for name in (*self.NAMES, "the best in hindsight", "guard")]
        enough, of_traces = [], []
        for xi, closed in ((xi, np.array(shares)) for xi, shares in self._closed.items()):
            alone, guarded = closed[:, :-1], closed[:, -1]
            best = alone.max(axis=1)
            enough.append(self._enough(guarded, best))
            _, trace = np.unique(self._traces[xi], return_inverse=True)
            gaps = np.bincount(trace)
            sums = (np.bincount(trace, shares) / gaps for shares in (guarded, best))
            of_traces.append(self._enough(*sums))
            for row, shares in zip(rows, (*alone.T, best, guarded), strict=True):
                row += [f"{shares.min():.2f}", f"{shares.mean():.2f}"]
        goals = ["hits", *(f"TEL {xi // 1024}k" for xi in XI_TOKENS[:1])]
        return Table(
            "The guard against its candidates: share of the gap closed",
            "Over all traces of this page and the three capacities, the least and the mean share."
            f" The guard closes {self.ENOUGH:.0%} of what the best candidate does, or misses it by"
            f" 0.01 of the gap, in {' and '.join(enough)} gaps (hits, TEL), and in"
            f" {' and '.join(of_traces)} traces, their capacities taken together.",
            ("in force", *(f"{goal}, {figure}" for goal in goals for figure in ("least", "mean"))),
            rows,
        )


class MoreCandidates:
    """What the guard would close with one more candidate, if only shadows are replayed.

    A policy that it takes up is in force at once, with all that its own shadow holds. A real cache
    fills up first, so this is the most that the candidate could add.
    """

    NAMES = ("wa", "etlru", "gdfs", "s3fifo", "arc")

    def __init__(self) -> None:
        self._closed: dict[int, list[list[float]]] = {}  # by xi: with none more, then each one

    def add(self, trace: HeldOut, columns: Columns, uncached: Uncached) -> None:
        """Replay the candidates and the others on a trace, at the capacities of all columns."""
        own = guarded_shadows(trace.traffic, class_tables(trace.traffic)).candidates
        for xi, oracle, capacity in columns:
            lru, best = (uncached[x, xi, capacity] for x in ("lru", oracle))
            shadows = [self._shadow(trace, "gittins", xi, capacity, tables) for tables in own]
            others = [self._shadow(trace, name, xi, capacity) for name in self.NAMES]
            closed = []
            for candidates in (shadows, *([*shadows, other] for other in others)):
                tokens = self._guarded(trace, candidates, xi, capacity)[trace.first :]
                share = trace.share_closed(xi, lru, best, tokens)
                closed += [share.value] if share is not None else []
            if closed:
                self._closed.setdefault(xi, []).append(closed)

    def _shadow(
        self, trace: HeldOut, name: str, xi: int, capacity: int, tables: Tables | None = None
    ) -> Int64s:
        """Return the blocks that a policy hits of each request."""
        return trace.replayed(name, xi, capacity, tables).hit_blocks.astype(np.int64)

    def _guarded(self, trace: HeldOut, candidates: list[Int64s], xi: int, capacity: int) -> Floats:
        """Return the tokens that each request computes under the candidate in force."""
        of, hits = trace.traffic, np.stack(candidates, axis=1)
        blocks = (of.length + of.anonymous)[:, None] - hits
        tokens = (of.input_tokens[:, None] - hits * of.block_size).astype(np.float64)
        requests = np.arange(len(tokens))
        done = Computed(requests, of.arrival_s, blocks, tokens, 1.0)
        goal = Goal(float(capacity), float(xi), 0.0, 0.0)
        in_force = judged(done, goal, GuardEvidence.none(len(candidates)))
        reached: Floats = tokens[requests, in_force[:-1]]
        return reached

    def table(self) -> Table:
        """Return a row for the guard as it is, and with each of the others."""
        rows: list[list[str]] = [[name] for name in ("as it is", *(f"+ {x}" for x in self.NAMES))]
        for closed in map(np.array, self._closed.values()):
            for row, shares in zip(rows, closed.T, strict=True):
                row += [f"{shares.min():.2f}", f"{shares.mean():.3f}"]
        goals = ["hits", *(f"TEL {xi // 1024}k" for xi in XI_TOKENS[:1])]
        return Table(
            "The guard with one more candidate: the most that it could add",
            "Shadow caches alone, on all traces of this page and the three capacities: a candidate"
            " is in force at once, with all that its own shadow holds.",
            (
                "candidates",
                *(f"{goal}, {figure}" for goal in goals for figure in ("least", "mean")),
            ),
            rows,
        )


Ablations: TypeAlias = tuple[Ablation, MoreCandidates]


def gaps(trace: HeldOut, least: Least, ablations: Ablations) -> Table:
    """Return each online policy's shares of the gaps on one trace."""
    columns, uncached = _replayed(trace, XI_TOKENS)
    for ablation in ablations:
        ablation.add(trace, [column for column in columns if column[0] in ABLATED], uncached)
    total = int(trace.input_tokens.sum())

    def hit_rate(name: str, capacity: int) -> str:
        return f"{1 - uncached[name, 0, capacity].sum() / total:.1%}"

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
            *([name, *_shares(trace, name, columns, uncached, least)] for name in ONLINE),
            [BOUND, *_bounds(trace, columns, uncached)],
        ],
    )


def untouched(traces: Iterator[HeldOut], least: Least, ablations: Ablations) -> Table:
    """Return the shares that gittins closes on traces on which it was not tuned."""
    rows = []
    for trace in traces:
        note(trace.name)
        columns, uncached = _replayed(trace, XI_TOKENS[:1])
        for ablation in ablations:
            ablation.add(trace, columns, uncached)
        shares = {name: _shares(trace, name, columns, uncached, least) for name in ONLINE}
        rows += [
            [trace.name, *shares["gittins"]],
            ["- " + BOUND, *_bounds(trace, columns, uncached)],
        ]
    return Table(
        "Other seeds: share of the gap to belady (hits) and tail-belady (TEL) closed by gittins",
        "Profiles of `kvscope synth` and of benchmarks/profiles.py; gittins was not tuned on them.",
        ("trace", *_columns(XI_TOKENS[:1])),
        rows,
    )


def _replayed(trace: HeldOut, xi_tokens: tuple[int, ...]) -> tuple[Columns, Uncached]:
    """Return (xi, oracle, capacity) of each column, and the uncached tokens by policy in it."""
    goals = [(0, "belady"), *((xi, "tail-belady") for xi in xi_tokens)]
    columns = [(*goal, capacity) for goal in goals for capacity in trace.capacities]
    replays = [
        (name, xi, capacity)
        for xi, oracle, capacity in columns
        for name in ("lru", oracle, *ONLINE)
    ]
    for name in dict.fromkeys(name for name, _, _ in replays):
        trace.uncached(name, 0, 1)  # compile before the threads start
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda setting: trace.uncached(*setting), replays)
        return columns, dict(zip(replays, results, strict=True))


def _shares(
    trace: HeldOut, name: str, columns: Columns, uncached: Uncached, least: Least
) -> list[str]:
    """Return a policy's share in each column."""
    cells = []
    for xi, oracle, capacity in columns:
        costs = [uncached[policy, xi, capacity] for policy in ("lru", oracle, name)]
        share, by_time = (trace.share_closed(xi, *costs, by_time=way) for way in (False, True))
        least.add(name, xi, share, by_time, f"{trace.name}, {capacity:,} blocks")
        cells.append(NO_GAP if share is None else str(share))
    return cells


def _bounds(trace: HeldOut, columns: Columns, uncached: Uncached) -> list[str]:
    """Return the share that no policy exceeds in each column."""
    bounds = []
    for xi, oracle, capacity in columns:
        lru, best = (uncached[policy, xi, capacity] for policy in ("lru", oracle))
        bounds.append(trace.share_bound(xi, lru, best, capacity) or NO_GAP)
    return bounds


def _columns(xi_tokens: tuple[int, ...]) -> list[str]:
    goals = ["hits", *(f"TEL {xi // 1024}k" for xi in xi_tokens)]
    return [f"{goal}, {level:.0%}" for goal in goals for level in LEVELS]


def tables() -> Iterator[Table]:
    """Yield the tables of the published traces, the samples and the other seeds."""
    least, ablations = Least(), (Ablation(), MoreCandidates())
    for trace in (*published(), *samples()):
        note(trace.name)
        yield gaps(trace, least, ablations)
    with TemporaryDirectory() as folder:
        yield untouched(generated(UNTOUCHED, Path(folder)), least, ablations)
    yield least.table()
    yield from (ablation.table() for ablation in ablations)


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
