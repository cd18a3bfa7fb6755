"""The page Why: the causes that `kvscope explain` finds, and a request by its number or id."""

from __future__ import annotations

import pytest

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
