"""Next prompts: equally likely values, and what a cut history adds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.reuse_models.conversation import VALUES, NextPrompt, added_tokens


@given(tokens=st.lists(st.integers(0, 10**6), min_size=1, max_size=80))
def test_the_values_are_quantiles(tokens: list[int]) -> None:
    """Ascending, seen, and of any tokens within a value's share as many lie below as it says."""
    found = NextPrompt().fit(np.array(tokens, dtype=np.float64))
    assert len(found.values_) == VALUES
    assert list(found.values_) == sorted(found.values_)
    assert set(found.values_.tolist()) <= {float(one) for one in tokens}
    assert found.quantile(1.0) == max(tokens)
    assert found.quantile(0.0) == min(tokens)
    for place, value in enumerate(found.values_):
        assert sum(one <= value for one in tokens) / len(tokens) >= (place + 0.5) / VALUES


def test_what_a_turn_adds() -> None:
    """Its input less the history before it, and nothing where that was cut."""
    child, before = np.array([1, 2]), np.array([0, 1])
    added = added_tokens(child, before, np.array([5, 30, 10]), np.array([9, 34, 12]))
    assert added.tolist() == [21.0, 0.0]
