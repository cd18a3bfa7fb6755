"""Trees in a file: what is read is what was written, and what is wrong is said in one line."""

from __future__ import annotations

import math
import tomllib
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import tomli_w

from kvscope.core.errors import InputError, UsageError
from kvscope.learning.ends.boosting import boosted
from kvscope.learning.ends.chances import FEATURES
from kvscope.learning.ends.file import NO_TREES, FittedEnds, read_ends
from kvscope.learning.learners import check_fit, read_fit
from kvscope.policies.base import Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import TLru
from kvscope.policies.tlru_learned import TLruLearned
from tests.learning.drawn_trees import drawn_ends


def written(text: str) -> FittedEnds | None:
    """Return the fit in a TOML text."""
    return read_ends(tomllib.loads(text, parse_float=Decimal), "policy.toml")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_what_was_written(seed: int) -> None:
    """Every number to its last bit, edges without end too."""
    one = drawn_ends(seed, threshold=0.1 * seed)
    assert written(tomli_w.dumps(one.document())) == one
    assert "inf" in tomli_w.dumps(one.document())


def test_what_was_learned_is_read_too() -> None:
    """Trees from numpy's numbers, as a fit has them; and none at all."""
    rng = np.random.default_rng(1)
    known = rng.random((300, len(FEATURES)))
    trees = boosted(known, known[:, 0] + 0.3 * rng.random(300) > 0.7)
    for of in (trees, NO_TREES):
        one = FittedEnds(of, 0.1, 600.0, 10_800.0, 300)
        assert written(tomli_w.dumps(one.document())) == one


def test_a_file_without_a_fit() -> None:
    """Has none."""
    assert written("schema = 1") is None


def tree(part: int, at: int, value: object) -> dict[str, object]:
    """Return trees, the first with one number replaced; None leaves it out."""
    rows: Any = drawn_ends(1).document()["ends"]["trees"]
    first = [list(of_part) for of_part in rows[0]]
    first[part][at : at + 1] = [] if value is None else [value]
    return {"trees": [first, *rows[1:]]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"features": ["turns"]},
            r"^policy.toml: ends.features: \['turns'\] are not .*; fit again",
        ),
        ({"features": None}, r"ends.features: missing; fit again"),
        ({"asked": 3}, r"ends.asked: unknown key"),
        ({"window_s": None}, r"ends.window_s: missing"),
        ({"threshold": 1.5}, r"ends.threshold: 1.5 is not a number <= 1"),
        ({"threshold": math.nan}, r"ends.threshold: nan is not a number"),
        ({"horizon_s": -1.0}, r"ends.horizon_s: -1.0 is not a number >= 0"),
        ({"window_s": math.inf}, r"ends.window_s: inf is not a finite number"),
        ({"start": math.inf}, r"ends.start: inf is not a finite number"),
        ({"trees": 3}, r"ends.trees: 3 is not an array"),
        (tree(0, 0, 8), r"ends.trees\[0\]\[0\]\[0\]: 8 is not a whole number <= 7"),
        (tree(0, 0, True), r"ends.trees\[0\]\[0\]\[0\]: true is not a whole number"),
        (tree(0, 0, None), r"ends.trees\[0\]\[0\]: .* is not an array of length 3"),
        (tree(1, 0, math.nan), r"ends.trees\[0\]\[1\]\[0\]: nan is not a number"),
        ({"trees": [5]}, r"ends.trees\[0\]: 5 is not an array"),
        (
            tree(2, 3, math.inf),
            r"ends.trees\[0\]\[2\]\[3\]: inf is not a finite .*; .* `kvscope fit",
        ),
    ],
)
def test_mistakes_are_told(change: dict[str, object], says: str) -> None:
    """In one line, with the place."""
    table = drawn_ends(1).document()["ends"]
    assert isinstance(table, dict)
    changed = {key: value for key, value in (table | change).items() if value is not None}
    with pytest.raises(InputError, match=says) as told:
        written(tomli_w.dumps({"ends": changed}))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("policy", [TLru(), Gittins(), TLruLearned()], ids=lambda one: one.name)
def test_each_policy_has_what_is_its_own(policy: Policy) -> None:
    """Only a policy of ends reads such a table, and none runs in an engine without."""
    document = tomllib.loads(tomli_w.dumps(drawn_ends(1).document()), parse_float=Decimal)
    found = read_fit(document, policy, "policy.toml")
    assert (found is not None) == (policy.learner == "ends")
    check_fit(policy, found, "policy.toml")
    if found is not None:
        with pytest.raises(UsageError, match=r"^policy.toml: tlru-learned needs a .*--export PATH"):
            check_fit(policy, None, "policy.toml")
