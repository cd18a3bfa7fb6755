"""A fit in a file: what is read is what was written, and what is wrong is said in one line."""

from __future__ import annotations

import math
import re
import tomllib
from decimal import Decimal

import numpy as np
import pytest

from kvscope.core.errors import InputError
from kvscope.learning.returns.file import Fitted, fitted_in
from kvscope.policies.gittins import AGES, STEPS


def fitted(class_set: int = 1) -> Fitted:
    """A fit of made-up numbers."""
    rng = np.random.default_rng(class_set)
    return Fitted(class_set, rng.random((math.prod(STEPS[class_set]), AGES)), 10_800.0, 1234)


def written(text: str) -> Fitted | None:
    """What is read of this."""
    return fitted_in(tomllib.loads(text, parse_float=Decimal), "policy.toml")


@pytest.mark.parametrize("class_set", range(len(STEPS)))
def test_what_is_read_is_what_was_written(class_set: int) -> None:
    """Every number to its last bit; two equal rows of the policy's table a class."""
    one = fitted(class_set)
    found = written("\n".join(one.lines()))
    assert found is not None
    assert np.array_equal(found.index, one.index)
    assert (found.class_set, found.window_s, found.requests) == (class_set, 10_800.0, 1234)
    assert not found.refits
    assert found.values.shape == (2 * math.prod(STEPS[class_set]), AGES)
    assert np.array_equal(found.values[::2], found.values[1::2])


def test_a_file_without_a_fit() -> None:
    """Has none."""
    assert written("schema = 1") is None


@pytest.mark.parametrize(
    ("pattern", "instead", "says"),
    [
        ("by = .*", 'by = ["turns"]', r"^policy.toml: returns.by: \['turns'\] are no classes"),
        ("edges = .*", "edges = [[1.0]]", r"returns.edges: other classes .*; fit again"),
        ("refits = false", "refits = 3", r"returns.refits: 3 is neither true nor false"),
        ("requests = ", "asked = ", r"returns.asked: unknown key"),
        ("window_s = .*", "", r"returns.window_s: None is not a number"),
        (r"  \[0\.[^\n]*\n", "", r"returns.index: not 36 rows"),
        (r"  \[0\.\d+, ", "  [", r"returns.index\[0\]: not 54 numbers"),
        (r"  \[0\.", "  [-0.", r"returns.index\[0\]: a rate that is below 0"),
        (r"  \[0\.\d+", "  [inf", r"returns.index\[0\]: .* without end"),
        (r"  \[0\.\d+", "  [true", r"returns.index\[0\]: True is not a number"),
    ],
)
def test_mistakes_are_told(pattern: str, instead: str, says: str) -> None:
    """In one line, with the place."""
    text = re.sub(pattern, instead, "\n".join(fitted().lines()), count=1)
    with pytest.raises(InputError, match=says) as told:
        written(text)
    assert "\n" not in str(told.value)
