"""A fit of `TLruLearned` that a file carries: the table `[ends]` beside a file's `[policy]`.

[ends]
horizon_s = 600.0      # what is foreseen: another turn within this
threshold = 0.1        # whose chance is below it is taken to end; 0: nobody is
window_s = 10800.0     # so much of the past it was fitted to
requests = 4096        # and to so many
features = ["new_tokens", ...]
start = -0.1           # the log odds that trees add to
trees = [[[0, 4, 1], [512.0, 1.0, inf], [-0.1, 0.1, 0.2, 0.0]], ...]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.core.errors import InputError
from kvscope.learning.chances import FEATURES, Trees
from kvscope.learning.policy_file import number, table_in

TABLE = "ends"
REMEDY = "`kvscope fit --export PATH --policy tlru-learned` writes such a table"
NOBODY = Trees(0.0, (), (), ())
_KEYS = ("horizon_s", "threshold", "window_s", "requests", "features", "start", "trees")


@dataclass(frozen=True, slots=True)
class FittedEnds:
    """What was fitted: trees, and the chance below which a conversation is taken to end.

    The trees foresee a turn within `horizon_s`. `requests` within `window_s` were looked at; blocks
    that were not touched for as long count as new.
    """

    trees: Trees
    threshold: float
    horizon_s: float
    window_s: float
    requests: int

    def lines(self) -> list[str]:
        """The table as a file has it, so that reading it gives the very same numbers."""
        of = self.trees
        rows = zip(of.features, of.edges, of.values, strict=True)
        names = ", ".join(f'"{name}"' for name in FEATURES)
        return [
            f"[{TABLE}]  # what `kvscope fit` has found of which conversations end",
            f"horizon_s = {float(self.horizon_s)!r}  # another turn within it: it goes on",
            f"threshold = {float(self.threshold)!r}  # whose chance is below is taken to end",
            f"window_s = {float(self.window_s)!r}",
            f"requests = {int(self.requests)}",
            f"features = [{names}]  # from 0",
            f"start = {float(of.start)!r}  # log odds, to which each tree adds one of its values",
            "trees = [  # a row each: three features, below which edges, and four values",
            *(
                f"  [{[*map(int, which)]}, {_floats(edges)}, {_floats(v)}],"
                for which, edges, v in rows
            ),
            "]",
        ]


def _floats(values: Sequence[float]) -> str:
    """Floats as TOML has them: inf too, and never numpy's names."""
    return "[" + ", ".join(repr(float(one)) for one in values) + "]"


def fitted_ends_in(document: Mapping[str, Any], where: str) -> FittedEnds | None:
    """The fit in a document that stands at `where`; None where it has none.

    Raises InputError with the place, the key, the value and the remedy.
    """
    if TABLE not in document:
        return None
    table = table_in(document, TABLE, where, _KEYS, REMEDY)
    place = f"{where}: {TABLE}"
    if table.get("features") != list(FEATURES):
        raise InputError(
            f"{table.get('features')!r} are not the features of this kvscope",
            where=f"{place}.features",
            remedy="fit again with this one",
        )
    return FittedEnds(
        trees=_trees(place, table),
        threshold=_within(place, "threshold", table, high=1.0),
        horizon_s=_within(place, "horizon_s", table),
        window_s=_within(place, "window_s", table),
        requests=int(_within(place, "requests", table, high=2.0**53)),
    )


def _within(place: str, key: str, table: Mapping[str, Any], high: float = 1e12) -> float:
    """A number from 0 to `high`."""
    found = number(f"{place}.{key}", table.get(key))
    if not 0.0 <= found <= high:
        raise InputError(
            f"{found:g} is outside [0, {high:g}]", where=f"{place}.{key}", remedy=REMEDY
        )
    return found


def _trees(place: str, table: Mapping[str, Any]) -> Trees:
    """The trees, after a look at the shape of each and at each number."""
    rows = table.get("trees")
    if not isinstance(rows, list):
        raise InputError("not a list of trees", where=f"{place}.trees", remedy=REMEDY)
    features, edges, values = [], [], []
    for at, row in enumerate(rows):
        where = f"{place}.trees[{at}]"
        if not isinstance(row, list) or [_length(part) for part in row] != [3, 3, 4]:
            raise InputError(
                f"{row!r} is not three features, three edges and four values",
                where=where,
                remedy=REMEDY,
            )
        features.append(_numbered(where, row[0]))
        edges.append((_edge(where, row[1][0]), _edge(where, row[1][1]), _edge(where, row[1][2])))
        one, two, three, four = (_finite(where, value) for value in row[2])
        values.append((one, two, three, four))
    start = _finite(f"{place}.start", table.get("start"))
    return Trees(start, tuple(features), tuple(edges), tuple(values))


def _length(part: object) -> int:
    return len(part) if isinstance(part, list) else -1


def _numbered(where: str, told: list[object]) -> tuple[int, int, int]:
    """Three numbers of features."""
    for one in told:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < len(FEATURES):
            raise InputError(
                f"{one!r} is no feature's number: 0 to {len(FEATURES) - 1}",
                where=where,
                remedy=REMEDY,
            )
    first, low, high = told
    return first, low, high  # type: ignore[return-value]  # looked at above


_edge = number  # inf too: everything is below


def _finite(where: str, value: object) -> float:
    found = number(where, value)
    if math.isinf(found):
        raise InputError(f"{found!r} has no end", where=where, remedy=REMEDY)
    return found
