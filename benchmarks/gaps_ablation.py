"""What each part of gittins is worth: the same replays with one of them left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.judged import Judged
from benchmarks.table import Table
from kvscope.learning.offline.refits import refits_of
from kvscope.learning.offline.shadow_caches import Shadows
from kvscope.learning.returns.formulas import return_values
from kvscope.learning.returns.offline import learned, waits_seen
from kvscope.policies.gittins import CLASS_SETS, REFIT_OFTEN, Gittins
from kvscope.replay.replay import Tables, replay

LEVELS = (0.25, 0.5, 0.75)
XI_TOKENS = 8192


def ablation(of: Judged) -> Table:
    """Shares of the gaps closed, hits and TEL, whole and without each part."""
    capacities = [of.curve.capacity_for(level * of.curve.ideal) for level in LEVELS]
    whole = of.tables(Gittins())
    variants: dict[str, tuple[Tables, Callable[[int], int]]] = {
        "whole": (whole, lambda xi: xi),
        **{
            f"without guard, by {', '.join(name for name, _ in features)}": (one, lambda xi: xi)
            for features, one in zip(CLASS_SETS, bare(of), strict=True)
        },
        "without need (xi = 0)": (whole, lambda _: 0),
        "without index (all return at one rate)": (_indifferent(whole), lambda xi: xi),
        "without guard, one class": (_one_class(of), lambda xi: xi),
        "one fit, when judging begins": (_one_fit(of), lambda xi: xi),
    }
    rows = []
    for name, (tables, xi_of) in variants.items():
        row = [name]
        for xi, best in ((0, "belady"), (XI_TOKENS, "tail-belady")):
            for at in capacities:
                policy = of.bound("gittins", float(xi_of(xi)))
                done = replay(of.traffic, policy, at, history=of.past, tables=tables)
                left = of.left(done.hit_blocks)
                row.append(
                    of.closed(xi, of.uncached("lru", xi, at), of.uncached(best, xi, at), left)
                )
        rows.append(row)
    return Table(
        f"{of.name}: gittins without one of its parts",
        "Share of the gap to the optimum closed, at the same capacities.",
        (
            "gittins",
            *(
                f"{what}, {level:.0%}"
                for what in ("hits", f"TEL {XI_TOKENS // 1024}k")
                for level in LEVELS
            ),
        ),
        rows,
    )


def bare(of: Judged) -> list[Tables]:
    """Those of each class set, with nobody to choose between them."""
    return [Tables(*one) for one in learned(of.traffic)]


def _indifferent(whole: Tables) -> Tables:
    return replace(whole, values=np.ones_like(whole.values), choose=None)


def _one_class(of: Judged) -> Tables:
    refit_s = REFIT_OFTEN.default
    refits = refits_of(of.traffic, refit_s)
    alike = np.zeros(len(of.traffic.leaf), dtype=np.int32)
    waits = waits_seen(of.traffic, of.past.segments, refits, refit_s, alike, 1)
    return Tables(refits.since, return_values(waits, (1,)), alike)


def _one_fit(of: Judged) -> Tables:
    """The last fits before judging begins, for good; the choice between them goes on."""
    frozen = []
    for one in learned(of.traffic):
        last = int(np.searchsorted(one.since, of.first, side="right")) - 1
        rows = np.minimum(np.arange(len(one.since)), last)
        frozen.append(one._replace(values=one.values[rows]))
    return Shadows(of.traffic, REFIT_OFTEN.default, frozen).tables()
