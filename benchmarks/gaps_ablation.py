"""What each part of gittins is worth: the same replays with one of them left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.judged import Figure, Floats, Judged
from benchmarks.table import Table
from kvscope.policies.gittins import CLASS_SETS, REFIT_OFTEN, Gittins
from kvscope.policies.returns import return_values
from kvscope.simulate.refits import refits_of
from kvscope.simulate.replay import Tables, replay
from kvscope.simulate.returns import learned, waits_seen

LEVELS = (0.25, 0.5, 0.75)
XI_TOKENS = 8192


def ablation(of: Judged) -> Table:
    """Shares of the gaps closed, hits and TEL, whole and without each part."""
    capacities = [of.curve.capacity_for(level * of.curve.ideal) for level in LEVELS]
    whole = of.tables(Gittins())
    variants: dict[str, tuple[Tables, Callable[[int], int]]] = {
        "whole": (whole, lambda xi: xi),
        **{
            f"without guard, by {' and '.join(name for name, _ in features)}": (bare, lambda xi: xi)
            for features, bare in zip(CLASS_SETS, _bare(of), strict=True)
        },
        "without need (xi = 0)": (whole, lambda _: 0),
        "without index (all return at one rate)": (_indifferent(whole), lambda xi: xi),
        "without guard, one class": (_one_class(of), lambda xi: xi),
        "without guard, one fit when judging begins": (_one_fit(of, _bare(of)[0]), lambda xi: xi),
    }
    rows = []
    for name, (tables, xi_of) in variants.items():
        row = [name]
        for xi, best in ((0, "belady"), (XI_TOKENS, "tail-belady")):
            for at in capacities:
                policy = of.bound("gittins", float(xi_of(xi)))
                done = replay(of.traffic, policy, at, past=of.past, tables=tables)
                base, ceiling, own = (
                    _lost(of, uncached, xi)
                    for uncached in (
                        of.uncached("lru", xi, at),
                        of.uncached(best, xi, at),
                        of.left(done.hit_blocks),
                    )
                )
                row.append(str(Figure.of((base - own) / (base - ceiling))))
        rows.append(row)
    return Table(
        f"{of.name}: gittins without one of its parts",
        "Shares of the gaps closed, at the same capacities.",
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


def _lost(of: Judged, uncached: Floats, xi: int) -> Floats:
    return of.sums(np.maximum(uncached - xi, 0.0))


def _bare(of: Judged) -> list[Tables]:
    """Those of each class set, with nobody to choose between them."""
    return [Tables(*one) for one in learned(of.traffic)]


def _indifferent(whole: Tables) -> Tables:
    return replace(whole, values=np.ones_like(whole.values), choose=None)


def _one_class(of: Judged) -> Tables:
    refit_s = REFIT_OFTEN.default
    refits = refits_of(of.traffic, refit_s)
    alike = np.zeros(len(of.traffic.leaf), dtype=np.int32)
    waits = waits_seen(of.traffic, of.past.moved, refits, refit_s, alike, 1)
    return Tables(refits.since, return_values(waits, (1,)), alike)


def _one_fit(of: Judged, whole: Tables) -> Tables:
    """The tables until judging begins, and the last of them for good."""
    fits = int(np.searchsorted(whole.since, of.first, side="right"))
    return replace(whole, since=whole.since[:fits], values=whole.values[:fits])
