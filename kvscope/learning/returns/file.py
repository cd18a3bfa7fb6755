"""A fit of `Gittins` that a file carries: the table `[returns]` beside a file's `[policy]`.

[returns]
by = ["new_tokens", "turns"]  # what tells its classes apart: one of the policy's class sets
window_s = 10800.0            # so much of the past it was fitted to
requests = 5120               # and to so many
refits = false                # true: an engine fits anew once it has seen as long a window
index = [[0.1, ...], ...]     # a row a class: the index at each age
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvscope.core.errors import InputError
from kvscope.learning.policy_file import number, table_in
from kvscope.policies.base import Floats
from kvscope.policies.gittins import AGES, CLASS_SETS, STEPS

TABLE = "returns"
REMEDY = "`kvscope fit --export` writes such a table"
_NAMES = tuple([name for name, _ in features] for features in CLASS_SETS)
_KEYS = ("by", "window_s", "requests", "refits", "edges", "index")


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was fitted: for the classes of `CLASS_SETS[class_set]` the index at each age.

    `index` has a row a class and AGES columns. `requests` within `window_s` were looked at.
    `refits`: an engine that runs it fits anew from what it serves.
    """

    class_set: int
    index: Floats
    window_s: float
    requests: int
    refits: bool = False

    @property
    def values(self) -> Floats:
        """The policy's table: two equal rows a class."""
        found: Floats = np.repeat(self.index, 2, axis=0)
        return found

    def lines(self) -> list[str]:
        """The table as a file has it, so that reading it gives the very same numbers."""
        names = ", ".join(f'"{name}"' for name in _NAMES[self.class_set])
        return [
            f"[{TABLE}]  # what `kvscope fit` has found of how soon requests' blocks return",
            f"by = [{names}]",
            f"edges = {_edges(self.class_set)}  # of these, between classes",
            f"window_s = {float(self.window_s)!r}",
            f"requests = {int(self.requests)}",
            f"refits = {str(self.refits).lower()}  # true: an engine fits anew from what it serves",
            "index = [  # a row a class: returns a second, by the age at the time",
            *(f"  {row}," for row in self.index.tolist()),
            "]",
        ]


def _edges(class_set: int) -> list[list[float]]:
    return [list(map(float, edges)) for _, edges in CLASS_SETS[class_set]]


def fitted_in(document: Mapping[str, Any], where: str) -> Fitted | None:
    """The fit in a document that stands at `where`; None where it has none.

    Raises InputError with the place, the key, the value and the remedy.
    """
    if TABLE not in document:
        return None
    table = table_in(document, TABLE, where, _KEYS, REMEDY)
    place = f"{where}: {TABLE}"
    if table.get("by") not in _NAMES:
        raise InputError(
            f"{table.get('by')!r} are no classes of this kvscope",
            where=f"{place}.by",
            remedy=REMEDY,
        )
    class_set = _NAMES.index(table["by"])
    if table.get("edges") != _edges(class_set):
        raise InputError(
            "other classes than those of this kvscope",
            where=f"{place}.edges",
            remedy="fit again with this one",
        )
    refits = table.get("refits", False)
    if not isinstance(refits, bool):
        raise InputError(f"{refits!r} is neither true nor false", where=f"{place}.refits")
    return Fitted(
        class_set,
        _index(f"{place}.index", table.get("index"), math.prod(STEPS[class_set])),
        number(f"{place}.window_s", table.get("window_s")),
        int(number(f"{place}.requests", table.get("requests"))),
        refits,
    )


def _index(where: str, rows: object, classes: int) -> Floats:
    """The index, after a look at its shape and at each number."""
    if not isinstance(rows, list) or len(rows) != classes:
        raise InputError(f"not {classes} rows", where=where, remedy=REMEDY)
    index = np.zeros((classes, AGES))
    for at, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != AGES:
            raise InputError(f"not {AGES} numbers", where=f"{where}[{at}]", remedy=REMEDY)
        index[at] = [number(f"{where}[{at}]", one) for one in row]
        if not (np.isfinite(index[at]).all() and (index[at] >= 0).all()):
            raise InputError(
                "a rate that is below 0, or without end", where=f"{where}[{at}]", remedy=REMEDY
            )
    return index
