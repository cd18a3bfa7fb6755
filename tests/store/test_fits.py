"""Fits in a store: what goes in comes out, one for each way of asking, gone with the trace."""

from __future__ import annotations

import pytest

from kvscope import __version__
from kvscope.core.files import data_folder
from kvscope.ingest.pipeline import ingest
from kvscope.reuse_models.fit import fit
from kvscope.reuse_models.results import Fit, keep
from kvscope.store import results, traces
from kvscope.store.db import MEMORY, Store, open_store

TABLES = ("fits", "fit_models", "fit_windows", "fit_next_prompts", "fit_next_turns")


def fitted(store: Store, **asked: float) -> Fit:
    """Return a fit of the to-c sample, which has categories of both kinds."""
    path = str(data_folder("sample_traces") / "to-c.jsonl.gz")
    return fit(store, ingest(store, path).trace, **asked)  # type: ignore[arg-type]


def rows(store: Store) -> list[int]:
    """How many rows each table holds."""
    return [len(store._connection.table(name).fetchall()) for name in TABLES]


def test_what_goes_in_comes_out() -> None:
    """Models with their intervals, those that the data do not tell included."""
    with open_store(MEMORY) as store:
        found = fitted(store)
        fit_id = keep(store, found)
        (one,) = results.all_fits(store, found.trace)
        assert one["kvscope"] == __version__
        assert found.conversation is not None
        assert one["conversations"]["turn_rate_per_s"] == found.conversation.turn_rate_per_s
        stored = results.fit_models(store, fit_id)
        assert len(stored) == len(found.models)
        for row, model in zip(stored, found.models, strict=True):
            assert row["params"] == dict(model.params)
            assert {
                name: interval and (interval["low"], interval["high"])
                for name, interval in row["intervals"].items()
            } == dict(model.interval)
            assert (row["ks"], row["chosen"]) == (model.ks, model.chosen)
        assert found.windows is not None
        assert rows(store) == [
            *(1, len(found.models), len(found.windows.fits)),
            *(len(found.next_prompt_tokens), len(found.next_turns)),
        ]


def test_the_same_question_has_one_answer() -> None:
    """Asked again it is replaced; other windows are another question; all go with the trace."""
    with open_store(MEMORY) as store:
        keep(store, fitted(store))
        before = rows(store)
        keep(store, fitted(store))
        assert rows(store) == before
        other = fitted(store, window_s=1_800.0)
        keep(store, other)
        assert rows(store)[0] == 2
        traces.remove(store, other.trace)
        assert rows(store) == [0, 0, 0, 0, 0]


def test_nothing_to_fit_is_kept_too() -> None:
    """A trace without conversations and without reuse."""
    from kvscope.ingest.formats.base import Request
    from tests import small_traces

    with open_store(MEMORY) as store:
        alone = [Request(input_tokens=4, output_tokens=0, arrival_s=0.0, hash_ids=[1, 2])]
        found = fit(store, small_traces.stored(store, alone, 2))
        keep(store, found)
        assert (found.models, found.conversation, found.windows) == ((), None, None)
        assert rows(store)[:3] == [1, 0, 0]
        assert results.all_fits(store, found.trace)[0]["window_s"] is None


@pytest.mark.parametrize("window_s", [1e6, 6_100.0])
def test_a_window_longer_than_the_trace_is_refused(window_s: float) -> None:
    """The error says how long it may be."""
    from kvscope.core.errors import UsageError

    with open_store(MEMORY) as store, pytest.raises(UsageError, match="give at most 6086s"):
        fitted(store, window_s=window_s)
