"""A fit of `tlru-learned` in a policy file: the table `[ends]` beside `[policy]`.

[ends]
horizon_s = 600.0      # predicted: another turn within this
threshold = 0.1        # a conversation of a lower probability is taken to end; 0: none is
window_s = 10800.0     # the past that it was fitted to
requests = 4096        # in it
features = ["new_tokens", ...]  # from 0
start = -0.1           # log odds, to which each tree adds one of its values
trees = [[[0, 4, 1], [512.0, 1.0, inf], [-0.1, 0.1, 0.2, 0.0]], ...]  # features, edges, values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from kvscope.core.toml_files import Count, Finite, Number, table_as
from kvscope.learning.ends.chances import FEATURES, Trees
from kvscope.learning.learners import FittedTable

TABLE = "ends"
NO_TREES = Trees(0.0, (), (), ())
_REMEDY = "fit again: `kvscope fit --export PATH --policy tlru-learned` writes such a table"
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Feature = Annotated[int, msgspec.Meta(ge=0, lt=len(FEATURES))]
_Tree = tuple[
    tuple[_Feature, _Feature, _Feature],
    tuple[Number, Number, Number],  # inf: everything is below
    tuple[Finite, Finite, Finite, Finite],
]


class _EndsTable(msgspec.Struct, forbid_unknown_fields=True):
    horizon_s: _Time
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]
    window_s: _Time
    requests: Count
    features: list[str]
    start: Finite
    trees: list[_Tree]

    def __post_init__(self) -> None:
        if self.features != list(FEATURES):
            raise ValueError(f"features: {self.features} are not the features of this kvscope")


@dataclass(frozen=True, slots=True)
class FittedEnds(FittedTable):
    """Trees, and the probability below which a conversation is taken to end.

    The trees predict a turn within `horizon_s`. They were fitted to `requests` within `window_s`;
    blocks that were not touched for as long count as new.
    """

    trees: Trees
    threshold: float
    horizon_s: float
    window_s: float
    requests: int

    def document(self) -> dict[str, object]:
        """Return the table `ends`."""
        rows = zip(self.trees.features, self.trees.edges, self.trees.values, strict=True)
        table = {
            "horizon_s": float(self.horizon_s),
            "threshold": float(self.threshold),
            "window_s": float(self.window_s),
            "requests": int(self.requests),
            "features": list(FEATURES),
            "start": float(self.trees.start),
            "trees": [
                [[*map(int, features)], [*map(float, edges)], [*map(float, values)]]
                for features, edges, values in rows
            ],
        }
        return {TABLE: table}


def read_ends(document: Mapping[str, Any], where: str) -> FittedEnds | None:
    """Return the fit in the document at `where`, None without one; raises InputError."""
    if TABLE not in document:
        return None
    table = table_as(document[TABLE], _EndsTable, f"{where}: {TABLE}", _REMEDY)
    features, edges, values = zip(*table.trees, strict=True) if table.trees else ((), (), ())
    return FittedEnds(
        Trees(table.start, features, edges, values),
        table.threshold,
        table.horizon_s,
        table.window_s,
        table.requests,
    )
