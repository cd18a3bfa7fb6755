"""Measure how well the end of a conversation is predicted.

The predictions behind `tlru-learned`, each made before its outcome was known, against the outcomes;
and the share of the gap from tlru to the oracle tlru-end that tlru-learned closes, at the
capacities and on the requests of `benchmarks.optimality_gap`. KVSCOPE_TRACES names the folder of
published traces; without it only samples are replayed. `--record` writes the tables into
docs/evidence/tlru-learned.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import ROOT
from benchmarks.held_out import LEVELS, HeldOut, generated, published, samples
from benchmarks.processes import note
from benchmarks.table import Table, record
from kvscope.learning.ends.chances import FEATURES
from kvscope.learning.ends.offline import EndPredictor
from kvscope.learning.ends.prediction_quality import auc, prediction_quality
from kvscope.learning.returns.formulas import NEW_TOKENS
from kvscope.policies.tlru_learned import HORIZON, TLruLearned

PAGE = ROOT / "docs" / "evidence" / "tlru-learned.md"
XI_TOKENS = (0, 8192, 16384)
UNTOUCHED = (("to-c", 6_000, 131), ("to-c", 6_000, 132), ("regime-change", 4_000, 131))
"""(profile, requests, seed) of traces on which tlru-learned was not tuned."""
GOALS = tuple(
    f"{f'TEL {xi // 1024}k' if xi else 'hits'}, {level:.0%}" for xi in XI_TOKENS for level in LEVELS
)
NONE = "–"


class LearnedTrace:
    """A trace and the predictions of its conversations' ends."""

    def __init__(self, trace: HeldOut) -> None:
        self.trace, self.ends = trace, EndPredictor(trace.traffic)

    def quality(self) -> list[str]:
        """Return the row of the table of prediction quality."""
        quality = prediction_quality(self.ends, HORIZON.default)
        scores = (
            *(quality.auc, quality.auc_first, quality.auc_later),
            *(quality.brier, quality.brier_base),
        )
        error, rate = quality.calibration_error, quality.base_rate
        return [
            self.trace.name,
            *(f"{x:,}" for x in (quality.requests, quality.unpredicted, quality.unknown)),
            NONE if rate is None else f"{rate:.1%}",
            *map(_score, scores),
            NONE if error is None else f"{error * 100:.1f} pp",
        ]

    def oracle_gains(self) -> list[str]:
        """Return by which share tlru-end lowers tlru's computed tokens or its TEL."""
        gains = []
        for xi in XI_TOKENS:
            for at in self.trace.capacities:
                plain, oracle = (
                    np.maximum(self.trace.uncached(name, xi, at) - xi, 0.0).sum()
                    for name in ("tlru", "tlru-end")
                )
                gains.append(f"{1 - oracle / plain:.1%}" if plain else NONE)
        return gains

    def shares(self) -> list[str]:
        """Return the shares of those gains that tlru-learned reaches."""
        tables = self.ends.tables()
        shares = []
        for xi in XI_TOKENS:
            for at in self.trace.capacities:
                plain, oracle = (self.trace.uncached(x, xi, at) for x in ("tlru", "tlru-end"))
                own = self.trace.uncached(TLruLearned.name, xi, at, tables)
                shares.append(self.trace.share_closed(xi, plain, oracle, own))
        return shares


def _score(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def quality_table(traces: list[LearnedTrace]) -> Table:
    """Return the quality of every trace's predictions."""
    return Table(
        "How well ends are predicted",
        f"Another turn within {HORIZON.default / 60:.0f} minutes, predicted when a request ended."
        " Too early: too few earlier outcomes to learn from; too late: the trace ends before the"
        " horizon. Brier, rate: the score of the base rate alone.",
        (
            *("trace", "requests", "too early", "too late", "continued", "AUC", "first turns"),
            *("later turns", "Brier", "Brier, rate", "calibration off by"),
        ),
        [trace.quality() for trace in traces],
    )


def gain_table(traces: list[LearnedTrace]) -> Table:
    """Return the share of the oracle's gain that is reached on every trace."""
    rows = []
    for learned in traces:
        name = learned.trace.name
        note(name)
        rows += [[name, "worth", *learned.oracle_gains()], [name, "reached", *learned.shares()]]
    return Table(
        "The share of the oracle's gain",
        "Worth: the reduction of computed tokens (or tokens beyond xi) by the oracle tlru-end"
        " against tlru. Reached: the share of that reduction by tlru-learned; below 0 is worse than"
        " tlru.",
        ("trace", "", *GOALS),
        rows,
    )


def new_tokens_table(learned: LearnedTrace) -> Table:
    """Return the AUC among requests whose prompts have as many new tokens."""
    ends, arrival_s = learned.ends, learned.trace.traffic.arrival_s
    chance, continued = ends.predicted(HORIZON.default).chance, ends.turns.next_s <= HORIZON.default
    known = (arrival_s + HORIZON.default <= arrival_s[-1]) & ~np.isnan(chance)
    new, turns = (ends.turns.known[:, FEATURES.index(name)] for name in ("new_tokens", "turns"))
    step = np.searchsorted(NEW_TOKENS, new, side="right")
    rows = []
    for at, low in enumerate((0, *NEW_TOKENS)):
        row = [f"{low:,} or more"]
        for kind in (turns == 0, turns > 0):
            group = known & kind & (step == at)
            rate = f"{continued[group].mean():.1%}" if group.any() else NONE
            row += [f"{group.sum():,}", rate, _score(auc(chance[group], continued[group]))]
        rows.append(row)
    figures = ("requests", "continued", "AUC")
    return Table(
        f"{learned.trace.name}: by how much of the prompt was new",
        "AUC within each group.",
        (
            "new tokens",
            *(f"{x}, {kind}" for kind in ("first turns", "later turns") for x in figures),
        ),
        rows,
    )


def tables() -> Iterator[Table]:
    """Yield the tables of the published traces, the samples and the other seeds."""
    with TemporaryDirectory() as folder:
        traces = [*published(), *samples(), *generated(UNTOUCHED, Path(folder))]
    learned = [LearnedTrace(trace) for trace in traces]
    yield quality_table(learned)
    yield gain_table(learned)
    yield new_tokens_table(learned[0])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    command = "`python -m benchmarks.end_prediction`"
    text = "\n".join([command, "", *(table.markdown() for table in tables())])
    print(text)
    if options.record:
        record(PAGE, text, "ends")


if __name__ == "__main__":
    main()
