"""The page Why: the causes that `kvscope explain` finds, and a request by its number or id."""

from __future__ import annotations

import pytest

from dashboard import background_cache
from kvscope.replay.causes import AVOIDABLE
from kvscope.report import misses
from tests.cli.shell import Streams
from tests.dashboard.shown import shown, table_with, titles, told, words, worked


def test_causes_and_a_request_are_those_of_explain(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """At the capacity of the box; another request is in the address, an unknown one is refused."""
    cache = {"why_capacity": "50", "model": "none"}
    app = worked(shown(db, monkeypatch, "why", **cache))
    document = told(capsys, "explain", "--db", db, "--capacity-blocks", "50")
    causes = {each["cause"]: each["tokens"] for each in document["causes"] if each["tokens"]}
    table = table_with(app, "cause", "meaning", "of input")
    assert dict(zip(table["cause"], table["tokens"], strict=True)) == {
        cause: f"{tokens:,}" for cause, tokens in causes.items()
    }
    assert f"1. {document['findings'][0]['cause']}" in words(app)
    worst = document["requests"][0]["request"]
    assert titles(app)[-1] == f"Request: {worst}"
    app = worked(shown(db, monkeypatch, "why", request="7", **cache))
    request = told(capsys, "explain", "--db", db, "--capacity-blocks", "50", "--request", "7")[
        "requests"
    ][0]
    assert titles(app)[-1] == "Request: 7"
    assert f"input tokens of request 7; {request['missed_tokens']:,} miss." in words(app)
    app = worked(shown(db, monkeypatch, "why", request="no such id", **cache))
    assert "none with the id" in app.error[0].value


def test_a_category_opens_its_requests(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of categories adds up to the trace; a row's requests are of that category alone."""
    app = worked(shown(db, monkeypatch, "why", why_capacity="50", model="none"))
    explanation = app.session_state["job why"].result
    trace = app.session_state["choices"].trace
    prompts = background_cache.lru(trace).prompts
    table, categories = misses.by_category(explanation, prompts)
    assert [row[0] for row in table.rows] == [prompts.categories[at] for at in categories]
    assert sum(int(row[1].replace(",", "")) for row in table.rows) == trace.requests
    lost = sum(int(row[5].replace(",", "")) for row in table.rows)
    avoidable = [each.tokens for each in explanation.causes if each.cause in AVOIDABLE]
    assert lost == sum(avoidable)
    assert table_with(app, "category", "avoidably").shape[0] == len(table.rows)
    for category in categories:
        requests = misses.of_category(explanation, prompts, category).requests
        assert requests
        assert {int(prompts.category[each.request]) for each in requests} == {category}
