"""A fit in a file: what is read is what was written, and what is wrong is said in one line."""

from __future__ import annotations

import math
import tomllib
from decimal import Decimal

import numpy as np
import pytest
import tomli_w

from kvscope.core.errors import InputError
from kvscope.learning.returns.file import FittedReturns, read_returns
from kvscope.learning.returns.formulas import STEPS
from kvscope.policies.gittins import AGES, LEVELS


def fitted(class_set: int = 1) -> FittedReturns:
    """Return a fit of made-up numbers."""
    rng = np.random.default_rng(class_set)
    return FittedReturns(class_set, rng.random((math.prod(STEPS[class_set]), AGES)), 1234)


def written(text: str) -> FittedReturns | None:
    """Return the fit in a TOML text."""
    return read_returns(tomllib.loads(text, parse_float=Decimal), "policy.toml")


@pytest.mark.parametrize("class_set", range(len(STEPS)))
def test_what_is_read_is_what_was_written(class_set: int) -> None:
    """Every number to its last bit; two equal rows of the policy's table a class."""
    one = fitted(class_set)
    found = written(tomli_w.dumps(one.document()))
    assert found is not None
    assert np.array_equal(found.index, one.index)
    assert (found.class_set, found.requests) == (class_set, 1234)
    assert not found.refits
    assert found.values.shape == (LEVELS * math.prod(STEPS[class_set]), AGES)
    assert np.array_equal(found.values[::LEVELS], found.values[LEVELS - 1 :: LEVELS])


def test_a_file_without_a_fit() -> None:
    """Has none."""
    assert written("schema = 1") is None


def index(row: int, at: int, value: object) -> dict[str, object]:
    """Return an index with one number replaced; None leaves it out."""
    rows = fitted().index.tolist()
    rows[row][at : at + 1] = [] if value is None else [value]
    return {"index": rows}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"by": ["turns"]}, r"^policy.toml: returns.by: \['turns'\] are no classes .*; fit again"),
        ({"edges": [[1.0]]}, r"returns.edges: other classes .*; fit again"),
        ({"gaps_s": [1.0]}, r"returns.gaps_s: other parts .*; fit again"),
        ({"refits": 3}, r"returns.refits: 3 is not true or false"),
        ({"asked": 3}, r"returns.asked: unknown key"),
        ({"requests": None}, r"returns.requests: missing"),
        ({"index": [[0.5] * AGES]}, r"returns.index: not 60 rows"),
        (index(0, 0, None), r"returns.index\[0\]: not 54 numbers"),
        (index(0, 0, -0.5), r"returns.index\[0\]\[0\]: -0.5 is not a number >= 0"),
        (index(1, 2, math.inf), r"returns.index\[1\]\[2\]: inf is not a finite number"),
        (index(0, 0, True), r"returns.index\[0\]\[0\]: true is not a number"),
    ],
)
def test_mistakes_are_told(change: dict[str, object], says: str) -> None:
    """In one line, with the place."""
    table = fitted().document()["returns"]
    assert isinstance(table, dict)
    changed = {key: value for key, value in (table | change).items() if value is not None}
    with pytest.raises(InputError, match=says) as told:
        written(tomli_w.dumps({"returns": changed}))
    assert "\n" not in str(told.value)
