"""What a replay walks comes out of the store as it went in: users and categories numbered."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.characterize.history import load_history
from kvscope.core.trace import Prompts
from kvscope.store.db import Store
from kvscope.store.traces import load_prompts
from tests import small_traces


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_the_store_gives_back_what_was_built(store: Store, data: st.DataObject) -> None:
    """Every column, whoever the users are and however many types there are."""
    trace = data.draw(small_traces.requests(2, chats=True))
    for request in trace:
        request.user_id = data.draw(st.sampled_from([None, 7, "ann", "bob"]))
        request.type = data.draw(st.sampled_from(["text", "api", "10"]))
    fact = small_traces.stored(store, trace, 2)
    found = load_prompts(store, fact)
    history = load_history(store, fact)
    expected = small_traces.prompts(small_traces.built(trace, 2))
    for name in Prompts.__struct_fields__:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("user", "category", "leaf", "parent"):
        assert getattr(found, name).dtype == np.int32
    assert found.categories == history.categories  # one numbering in the whole house
    assert np.array_equal(found.category, history.category)
