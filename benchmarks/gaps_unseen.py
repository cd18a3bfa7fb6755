"""The same on traces that nobody looked at while gittins was made: profiles with other seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gaps_ablation import bare
from benchmarks.judged import Judged
from benchmarks.measure import note
from benchmarks.table import Table
from kvscope.policies.gittins import CLASS_SETS, Gittins
from kvscope.replay.replay import Tables, replay
from kvscope.synth.registry import by_name
from kvscope.synth.samples import write_jsonl

TRACES = (
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
LEVELS = (0.25, 0.5, 0.75)
GOALS = ((0, "belady"), (8192, "tail-belady"))


def unseen() -> Table:
    """Shares of the gaps closed with the guard, and by each class set without one."""
    return Table(
        "Other seeds: share of the gap to the optimum closed",
        "Made with `kvscope synth PROFILE --requests N --seed S`.",
        (
            "trace",
            "gittins",
            *(f"{what}, {level:.0%}" for what in ("hits", "TEL 8k") for level in LEVELS),
        ),
        list(_rows()),
    )


def _rows() -> Iterator[list[str]]:
    with TemporaryDirectory() as folder:
        for profile, requests, seed in TRACES:
            note(f"{profile}, seed {seed}")
            path = Path(folder, f"{profile}-{seed}.jsonl.gz")
            write_jsonl(by_name(profile).generate(requests=requests, seed=seed), path)
            of = Judged(profile, path)
            told = {"": of.tables(Gittins())} | {
                f"without guard, by {', '.join(name for name, _ in features)}": one
                for features, one in zip(CLASS_SETS, bare(of), strict=True)
            }
            for how, tables in told.items():
                yield [f"{profile}, {requests:,}, seed {seed}", how or "whole", *_row(of, tables)]


def _row(of: Judged, tables: Tables) -> Iterator[str]:
    for xi, best in GOALS:
        for level in LEVELS:
            at = of.curve.capacity_for(level * of.curve.ideal)
            done = replay(of.traffic, of.bound("gittins", float(xi)), at, tables=tables)
            own = of.left(done.hit_blocks)
            lru, optimum = of.uncached("lru", xi, at), of.uncached(best, xi, at)
            yield of.closed(xi, lru, optimum, own)


if __name__ == "__main__":
    print(unseen().markdown())
