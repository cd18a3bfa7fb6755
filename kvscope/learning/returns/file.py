"""A fit of `gittins` in a policy file: the table `[returns]` beside `[policy]`.

[returns]
by = ["new_tokens", "turns"]      # the features that define classes: FEATURES
edges = [[512.0, ...], [1.0, 3.0]]  # between classes, by feature
gaps_s = [4.0, 32.0, 256.0]       # waits that divide a path into parts
requests = 4608                   # number of requests fitted to, the last of a trace
refits = false                    # true: an engine refits after serving that number
evidence = { gain = [0.0, ...], ... }  # the guard's, by candidate, if any: GuardEvidence
index = [[0.1, ...], ...]         # rows: parts of classes; returns per second, by age
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.core.toml_files import Count, Finite, table_as
from kvscope.learning.evidence import GuardEvidence
from kvscope.learning.learners import FittedTable
from kvscope.learning.returns.formulas import FEATURES, GAPS_S, OWN, ROWS
from kvscope.policies.base import MOST_TOKENS
from kvscope.policies.gittins import AGES, LEVELS

TABLE = "returns"
_REMEDY = "fit again: `kvscope fit --export` writes such a table"
_NAMES = [name for name, _ in FEATURES]
_EDGES = [[*map(float, edges)] for _, edges in FEATURES]


_Tokens = Annotated[list[Finite], msgspec.Meta(min_length=OWN + 1, max_length=OWN + 1)]
_Sums = Annotated[
    list[Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]],
    msgspec.Meta(min_length=OWN + 1, max_length=OWN + 1),
]


_REQUESTS = 1e9  # more than evidence is of
_MOST_SQUARES = MOST_TOKENS**2 * _REQUESTS


class _EvidenceTable(msgspec.Struct, forbid_unknown_fields=True):
    gain: _Tokens
    square: _Sums
    largest: _Sums
    loss: _Sums
    late: _Tokens
    late_square: _Sums

    def __post_init__(self) -> None:
        for gain, square, largest in zip(self.gain, self.square, self.largest, strict=True):
            if largest > square or square > _MOST_SQUARES or gain * gain > _REQUESTS * square:
                raise ValueError("square: not of the gains and their largest")


class _ReturnsTable(msgspec.Struct, forbid_unknown_fields=True):
    by: list[str]
    edges: list[list[Finite]]
    gaps_s: list[Finite]
    requests: Count
    index: list[list[Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]]]
    refits: bool = False
    evidence: _EvidenceTable | None = None

    def __post_init__(self) -> None:
        if self.by != _NAMES:
            raise ValueError(f"by: {self.by} are no classes of this kvscope")
        if self.edges != _EDGES:
            raise ValueError("edges: other classes than those of this kvscope")
        if tuple(self.gaps_s) != GAPS_S:
            raise ValueError("gaps_s: other parts than those of this kvscope")
        if len(self.index) != ROWS:
            raise ValueError(f"index: not {ROWS} rows")
        for at, row in enumerate(self.index):
            if len(row) != AGES:
                raise ValueError(f"index[{at}]: not {AGES} numbers")


@dataclass(frozen=True, slots=True)
class FittedReturns(FittedTable):
    """The Gittins index (returns per second) of each class and part of a path, by age.

    `index` has a row for each class and part, and AGES columns; `requests` is the number of
    requests fitted to. `refits`: an engine later refits it to its own requests. `evidence` is the
    guard's after these requests, in a cache of the size that the file is for; None without such a
    size.
    """

    index: Float64s
    requests: int
    refits: bool = False
    evidence: GuardEvidence | None = None

    @property
    def values(self) -> Float64s:
        """The policy's table: each row of `index` four times, once for each of the part's lanes."""
        values: Float64s = np.repeat(self.index, LEVELS, axis=0)
        return values

    def document(self) -> dict[str, object]:
        """Return the table `[returns]` of a policy file."""
        table = {
            "by": _NAMES,
            "edges": _EDGES,
            "gaps_s": list(GAPS_S),
            "requests": int(self.requests),
            "refits": self.refits,
            "index": self.index.tolist(),
        }
        if self.evidence is not None:
            sums = self.evidence.each(np.ndarray.tolist)._asdict()
            table["evidence"] = {name: sums[name] for name in _EvidenceTable.__struct_fields__}
        return {TABLE: table}

    def refitted_in_engine(self) -> FittedReturns:
        """Return the fit with `refits`: it holds until an engine has served `requests` requests.

        Then the engine's own fits replace it.
        """
        return replace(self, refits=True)


def read_returns(document: Mapping[str, Any], where: str) -> FittedReturns | None:
    """Return the fit in a parsed policy file (path `where`), or None. Raises InputError."""
    if TABLE not in document:
        return None
    table = table_as(document[TABLE], _ReturnsTable, f"{where}: {TABLE}", _REMEDY)
    evidence = None
    if table.evidence is not None:
        sums = msgspec.structs.asdict(table.evidence)
        arrays = {name: np.array(of_each) for name, of_each in sums.items()}
        evidence = GuardEvidence.none(OWN + 1)._replace(**arrays)
    return FittedReturns(np.array(table.index), table.requests, table.refits, evidence)
