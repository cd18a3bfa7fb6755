"""How well the ends of conversations are foreseen, and what for: `python -m benchmarks.ends`.

The predictions that `tlru-learned` goes by, each made before its outcome was known, beside what
came; and which share of the way from tlru to tlru-end, which is told the ends, it goes: at the
capacities where LRU reaches 25, 50 and 75 % of the infinite cache's hit rate, judged on the
requests after the first 40 %, with 95 % intervals of 1,000 draws of whole conversations.
KVSCOPE_TRACES names the folder of published traces; without it only samples are taken. `--record`
writes the tables into docs/evidence/tlru-learned.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.gaps import LEVELS, MOONCAKE, SAMPLES, SESSIONS, SESSIONS_PER_S
from benchmarks.judged import Floats, Judged
from benchmarks.measure import note
from benchmarks.table import Table, record
from kvscope.ingest.formats.base import ReadOptions
from kvscope.learning.chances import FEATURES
from kvscope.learning.ends.offline import THRESHOLDS, Ends, taken_to_end
from kvscope.learning.ends.prediction_quality import Foreseen, foreseen
from kvscope.policies.gittins import NEW_TOKENS
from kvscope.policies.tlru_learned import HORIZON, TLruLearned
from kvscope.replay.replay import Tables, replay
from kvscope.reuse_models.scores import auc
from kvscope.synth.registry import by_name
from kvscope.synth.samples import write_jsonl

PAGE = ROOT / "docs" / "evidence" / "tlru-learned.md"
XI_TOKENS = (0, 8192, 16384)
FIXED = (0.1, 0.2, 0.3, 0.4, 0.5)
UNSEEN = (("to-c", 6_000, 131), ("to-c", 6_000, 132), ("regime-change", 4_000, 131))
GOALS = tuple(
    f"{f'TEL {xi // 1024}k' if xi else 'hits'}, {level:.0%}" for xi in XI_TOKENS for level in LEVELS
)
NONE = "–"


class Learned:
    """A trace and what is learned of its ends."""

    def __init__(self, of: Judged) -> None:
        self.of, self.ends = of, Ends(of.traffic)
        self.found = foreseen(self.ends, HORIZON.default)

    def scores(self) -> list[str]:
        """How good the predictions are."""
        one = self.found
        figures = (one.auc, one.auc_first, one.auc_later, one.brier, one.brier_base)
        off = NONE if one.calibration_error is None else f"{one.calibration_error * 100:.1f} pp"
        rate = NONE if one.base_rate is None else f"{one.base_rate:.1%}"
        requests = [f"{one.requests:,}", f"{one.unpredicted:,}", f"{one.unknown:,}"]
        return [self.of.name, *requests, rate, *map(_figure, figures), off]

    def shares(self, tables: Tables) -> list[str]:
        """Of the way from tlru to tlru-end, by xi and capacity."""
        return [self._share(tables, xi, at) for xi in XI_TOKENS for at in self._capacities()]

    def worth(self) -> list[str]:
        """By which share being told the ends lessens what tlru computes, or its TEL."""
        found = []
        for xi in XI_TOKENS:
            for at in self._capacities():
                plain, told = (
                    np.maximum(self.of.uncached(name, xi, at) - xi, 0.0).sum()
                    for name in ("tlru", "tlru-end")
                )
                found.append(f"{1 - told / plain:.1%}" if plain else NONE)
        return found

    def fixed(self, ended: NDArray[np.bool_]) -> Tables:
        """Tables by which these requests' conversations are taken to end."""
        return Tables(*taken_to_end(ended))

    def _capacities(self) -> list[int]:
        return [self.of.curve.capacity_for(level * self.of.curve.ideal) for level in LEVELS]

    def _share(self, tables: Tables, xi: int, at: int) -> str:
        bound = self.of.bound(TLruLearned.name, float(xi))
        done = replay(self.of.traffic, bound, at, history=self.of.past, tables=tables)
        plain, told = (self.of.uncached(name, xi, at) for name in ("tlru", "tlru-end"))
        return self.of.closed(xi, plain, told, self.of.left(done.hit_blocks))


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def scores(all_of: list[Learned]) -> Table:
    """Every trace's predictions."""
    return Table(
        "How well ends are predicted",
        f"Another turn within {HORIZON.default / 60:.0f} minutes, predicted when a request ended."
        " Too early: too few earlier outcomes to learn from; too late: the trace ends before the"
        " horizon. Brier, rate: the score of the base rate alone.",
        (
            *("trace", "requests", "too early", "too late", "continued", "AUC", "first turns"),
            *("later turns", "Brier", "Brier, rate", "calibration off by"),
        ),
        [one.scores() for one in all_of],
    )


def over_time(name: str, found: Foreseen) -> Table:
    """Window by window."""
    return Table(
        f"{name}: over time",
        "Each window is predicted by fits to earlier outcomes only.",
        ("from, min", "requests", "learned from", "continued", "predicted", "AUC", "Brier"),
        [
            [
                f"{one.start_s / 60:.0f}",
                f"{one.requests:,}",
                f"{one.learned_from:,}",
                f"{one.base_rate:.1%}",
                f"{one.predicted:.1%}",
                NONE if one.auc is None else f"{one.auc:.2f}",
                f"{one.brier:.3f}",
            ]
            for one in found.windows
        ],
    )


def calibration(name: str, found: Foreseen) -> Table:
    """What was said beside what came."""
    return Table(
        f"{name}: calibration",
        "Requests by predicted probability.",
        ("predicted", "requests", "mean predicted", "continued"),
        [
            [
                f"{one.low:.0%} to {one.high:.0%}",
                f"{one.n:,}",
                f"{one.predicted:.1%}",
                f"{one.observed:.1%}",
            ]
            for one in found.calibration
        ],
    )


def by_news(one: Learned) -> Table:
    """What sets requests apart: how much of the prompt is new; and what does among those alike."""
    ends, arrival_s = one.ends, one.of.traffic.arrival_s
    chance, came = ends.predicted(HORIZON.default).chance, ends.turns.next_s <= HORIZON.default
    judged = (arrival_s + HORIZON.default <= arrival_s[-1]) & ~np.isnan(chance)
    new, turns = (ends.turns.known[:, FEATURES.index(name)] for name in ("new_tokens", "turns"))
    step = np.searchsorted(NEW_TOKENS, new, side="right")
    rows = []
    for at, low in enumerate((0, *NEW_TOKENS)):
        row = [f"{low:,} or more"]
        for some in (turns == 0, turns > 0):
            own = judged & some & (step == at)
            rate = f"{came[own].mean():.1%}" if own.any() else NONE
            row += [f"{own.sum():,}", rate, _figure(auc(chance[own], came[own]))]
        rows.append(row)
    figures = ("requests", "continued", "AUC")
    return Table(
        f"{one.of.name}: by how much of the prompt was new",
        "AUC within each group.",
        (
            "new tokens",
            *(f"{x}, {kind}" for kind in ("first turns", "later turns") for x in figures),
        ),
        rows,
    )


def shares(all_of: list[Learned]) -> Table:
    """The share of the End-aware gain, everywhere."""
    rows = []
    for one in all_of:
        note(one.of.name)
        rows.append([one.of.name, "worth", *one.worth()])
        rows.append([one.of.name, "reached", *one.shares(one.ends.tables())])
    return Table(
        "The share of the oracle's gain",
        "Worth: the reduction of computed tokens (or tokens beyond xi) by the oracle tlru-end"
        " against tlru. Reached: the share of that reduction by tlru-learned; below 0 is worse than"
        " tlru.",
        ("trace", "", *GOALS),
        rows,
    )


def ablation(one: Learned) -> Table:
    """The same with thresholds that nobody chooses, and with the truth."""
    chance = one.ends.predicted(HORIZON.default).chance
    truth = one.ends.turns.next_s > HORIZON.default
    variants: list[tuple[str, Tables]] = [
        ("chosen from " + ", ".join(f"{x:g}" for x in THRESHOLDS), one.ends.tables()),
        *((f"always {x:g}", one.fixed(_below(chance, x))) for x in FIXED),
        ("truth: no turn within the horizon", one.fixed(truth)),
        ("truth: no turn at all", one.fixed(~np.isfinite(one.ends.turns.next_s))),
    ]
    return Table(
        f"{one.of.name}: thresholds",
        "Shares as above. The true outcomes follow conversations as inferred from blocks, repeated"
        " prompts included; tlru-end follows the trace's lineage.",
        ("threshold", *GOALS),
        [[name, *one.shares(tables)] for name, tables in variants],
    )


def _below(chance: Floats, threshold: float) -> NDArray[np.bool_]:
    return np.asarray(chance < threshold)  # not those without a prediction


def tables() -> Iterator[Table]:
    """Of the published traces, where they are, of the samples, and of seeds not seen before."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        named = list(_published())
        every = [*named, *map(Learned, _samples()), *map(Learned, _unseen(folder))]
        yield scores(every)
        yield shares(every)
        for one in every:
            if one in named[:1] or one.of.name == "Sample to-c":
                yield over_time(one.of.name, one.found)
                yield calibration(one.of.name, one.found)
                yield by_news(one)
                yield ablation(one)


def _published() -> Iterator[Learned]:
    named = os.environ.get("KVSCOPE_TRACES")
    if named:
        yield Learned(Judged("Mooncake conversation", Path(named) / MOONCAKE))
        read = ReadOptions(session_arrivals=SESSIONS_PER_S)
        yield Learned(Judged("Agent sessions", Path(named) / SESSIONS, read))


def _samples() -> Iterator[Judged]:
    for name in SAMPLES:
        yield Judged(f"Sample {name}", ROOT / "sample_traces" / f"{name}.jsonl.gz")


def _unseen(folder: Path) -> Iterator[Judged]:
    for profile, requests, seed in UNSEEN:
        path = folder / f"{profile}-{seed}.jsonl.gz"
        write_jsonl(by_name(profile).generate(requests=requests, seed=seed), path)
        yield Judged(f"{profile}, {requests:,}, seed {seed}", path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ends", description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    told = parser.parse_args()
    words = "\n".join(["`python -m benchmarks.ends`", "", *(one.markdown() for one in tables())])
    print(words)
    if told.record:
        record(PAGE, words, "ends")


if __name__ == "__main__":
    main()
