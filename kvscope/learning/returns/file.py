"""A fit of `gittins` in a policy file: the table `[returns]` beside `[policy]`.

[returns]
by = ["new_tokens", "turns"]      # the features of its class set, one of CLASS_SETS
edges = [[512.0, ...], [1.0, 3.0]]  # of these, between classes
gaps_s = [4.0, 32.0, 256.0]       # edges between the parts of a path, of one class each
requests = 4608                   # the latest ones of a trace, that it was fitted to
refits = false                    # true: an engine refits once it has served as many
index = [[0.1, ...], ...]         # a row a part of a class: returns a second, by the age then
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.core.toml_files import Count, Finite, table_as
from kvscope.learning.learners import FittedTable
from kvscope.learning.returns.formulas import CLASS_SETS, GAPS_S, STEPS
from kvscope.policies.gittins import AGES, LEVELS

TABLE = "returns"
_REMEDY = "fit again: `kvscope fit --export` writes such a table"
_NAMES = tuple([name for name, _ in features] for features in CLASS_SETS)
_EDGES = tuple([[*map(float, edges)] for _, edges in features] for features in CLASS_SETS)


class _ReturnsTable(msgspec.Struct, forbid_unknown_fields=True):
    by: list[str]
    edges: list[list[Finite]]
    gaps_s: list[Finite]
    requests: Count
    index: list[list[Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]]]
    refits: bool = False

    def __post_init__(self) -> None:
        if self.by not in _NAMES:
            raise ValueError(f"by: {self.by} are no classes of this kvscope")
        class_set = _NAMES.index(self.by)
        if self.edges != _EDGES[class_set]:
            raise ValueError("edges: other classes than those of this kvscope")
        if tuple(self.gaps_s) != GAPS_S:
            raise ValueError("gaps_s: other parts than those of this kvscope")
        rows = math.prod(STEPS[class_set])
        if len(self.index) != rows:
            raise ValueError(f"index: not {rows} rows")
        for at, row in enumerate(self.index):
            if len(row) != AGES:
                raise ValueError(f"index[{at}]: not {AGES} numbers")


@dataclass(frozen=True, slots=True)
class FittedReturns(FittedTable):
    """The index at each age of the classes of `CLASS_SETS[class_set]`, by part of a path.

    `index` has a row for each class and part, and AGES columns. It was fitted to so many
    `requests`. `refits`: an engine that runs it refits to what it serves.
    """

    class_set: int
    index: Float64s
    requests: int
    refits: bool = False

    @property
    def values(self) -> Float64s:
        """The policy's table: equal rows for all levels of need."""
        values: Float64s = np.repeat(self.index, LEVELS, axis=0)
        return values

    def document(self) -> dict[str, object]:
        """Return the table `returns`."""
        table = {
            "by": _NAMES[self.class_set],
            "edges": _EDGES[self.class_set],
            "gaps_s": list(GAPS_S),
            "requests": int(self.requests),
            "refits": self.refits,
            "index": self.index.tolist(),
        }
        return {TABLE: table}

    def refitted_in_engine(self) -> FittedReturns:
        """Return the same fit, in force until an engine has served as many requests."""
        return replace(self, refits=True)


def read_returns(document: Mapping[str, Any], where: str) -> FittedReturns | None:
    """Return the fit in the document at `where`, None without one; raises InputError."""
    if TABLE not in document:
        return None
    table = table_as(document[TABLE], _ReturnsTable, f"{where}: {TABLE}", _REMEDY)
    class_set = _NAMES.index(table.by)
    return FittedReturns(class_set, np.array(table.index), table.requests, table.refits)
