"""The policy lab: what it replays is kept, and the same as the command line's."""

from __future__ import annotations

import pytest

from dashboard import background_cache, job
from kvscope.core import units
from kvscope.latency.profile import PRESETS
from kvscope.replay.causes import AVOIDABLE
from kvscope.report import misses
from kvscope.report.words import significant
from tests.cli.shell import Streams
from tests.dashboard.shown import (
    settled,
    shown,
    table_with,
    tile_looks,
    tiles,
    titles,
    told,
    words,
    worked,
)


@pytest.mark.parametrize(
    ("counts", "policies", "others"),
    [
        ({}, "lru,fifo", ("--model", "llama3-8b")),
        ({"counts": "engine"}, "lru,tlru", ("--capacity-model", "engine")),
    ],
    ids=["cache", "engine"],
)
def test_lab(
    db: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Streams,
    counts: dict[str, str],
    policies: str,
    others: tuple[str, ...],
) -> None:
    """A run begun here is shown, kept in the store, and the same as the command line's.

    Capacity may be an engine's: only what it can run is offered.
    """
    asked = {**counts, "policies": f"{policies},belady" if counts else policies, "slo": "20ms"}
    app = shown(db, monkeypatch, "lab", **asked, sizes="60")
    assert app.multiselect(key="policies").value == policies.split(",")
    app.button(key="run").click().run()
    settled(app, "Policies")
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policy", policies, "--slo", "20ms",
        "--capacity-blocks", "60", *others,
    )  # fmt: skip
    table = next(one.value for one in app.dataframe if "evictions" in one.value.columns)
    rates = {one["policy"]: one["token_hit_rate"] for one in document["results"]}
    assert dict(zip(table["policy"], table["hit rate"], strict=True)) == {
        policy: units.format_share(rate) for policy, rate in rates.items()
    }
    assert not counts or "engine" in words(app)
    created = [one["created_at"] for one in document["results"]]
    again = told(capsys, "runs", "chats", "--db", db)
    assert sorted(created) == sorted(one["created_at"] for one in again["runs"])


def test_who_gains_and_who_pays(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """By category, lru beside the policy that is picked, at the capacity of the slider."""
    asked = {"policies": "lru,fifo,belady", "sizes": "40,60,80", "slo": "20ms"}
    app = shown(db, monkeypatch, "lab", **asked)
    app.button(key="run").click().run()
    settled(app, "TTFT by category")
    app.select_slider(key="at").set_value(40).run()
    app.selectbox(key="other").set_value("fifo").run()
    table = table_with(app, "p50 LRU (ms)", "p95 then")
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policy", "lru,fifo", "--slo", "20ms",
        "--capacity-blocks", "40",
    )  # fmt: skip
    by_policy = {
        one["policy"]: {part["category"]: part for part in one["categories"]}
        for one in document["results"]
    }
    for category, requests, *times in table.to_numpy().tolist():
        lru, fifo = by_policy["lru"][category], by_policy["fifo"][category]
        assert requests == units.format_count(lru["requests"])
        expected = [side["ttft_ms"][rank] for rank in ("p50", "p95") for side in (lru, fifo)]
        assert times == [significant(one) for one in expected]
    assert app.query_params["at"] in ("40", ["40"])


def test_what_xi_does(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """The slider reads off what `simulate` gives with that xi; the table has every xi."""
    app = shown(db, monkeypatch, "lab", slo="20ms", xi_at="60", question="Effect of xi")
    app.button(key="run_xi").click().run()
    settled(app, "Effect of xi")
    app.select_slider(key="xi").set_value(256).run()
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policy", "tlru", "--slo", "20ms",
        "--capacity-blocks", "60", "--param", "tlru.xi_tokens=256",
    )  # fmt: skip
    result = document["results"][0]
    numbers = tiles(app)
    assert numbers["TTFT p95"] == units.duration_in_words(result["ttft_ms"]["p95"] / 1e3)
    assert numbers["Hit rate"] == units.format_share(result["token_hit_rate"])
    table = table_with(app, "xi (tokens)", "xi (ms)")
    assert "256" in set(table["xi (tokens)"])
    assert len(set(table["xi (tokens)"])) == len(table) > 8
    largest = max(int(xi.replace(",", "")) for xi in table["xi (tokens)"])
    app.select_slider(key="xi").set_value(largest).run()  # as lru: neither a rise nor a fall
    assert tile_looks(app) == {"tile"}


def test_tiers(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """An engine's tiers are replayed as by --tiers, and each is told by itself."""
    tiers = "hbm=20blocks,dram=40blocks"
    app = shown(db, monkeypatch, "lab", policies="lru", tiers=tiers, slo="20ms")
    app.button(key="run").click().run()
    settled(app, "Tiers")
    document = told(
        capsys, "simulate", "chats", "--db", db, "--policy", "lru", "--slo", "20ms",
        "--tiers", tiers, "--model", "llama3-8b",
    )  # fmt: skip
    expected = [
        units.format_share(one["token_hit_rate"]) for one in document["results"][0]["tiers"]
    ]
    assert table_with(app, "tier", "transfer (ms)")["hit rate"].tolist() == expected
    assert "20blocks" in words(app)


def test_a_link_shows_what_its_giver_saw(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address has the tab and says that the replays are shown: who opens it sees them too."""
    asked = {"xi_at": "60", "slo": "20ms", "question": "Effect of xi"}
    app = shown(db, monkeypatch, "lab", **asked)
    assert app.session_state["question"] == "Effect of xi"
    assert not app.query_params.get("ran_xi")
    settled(app.button(key="run_xi").click().run(), "Effect of xi")
    address = {name: _one(value) for name, value in app.query_params.items()}
    assert address["ran_xi"] == "1"
    assert asked.items() <= address.items()
    other = settled(shown(db, monkeypatch, "lab", **address), "Effect of xi")
    assert other.session_state["question"] == "Effect of xi"
    other.selectbox(key="latency").select(next(iter(PRESETS.keys() - {"llama2-7b-a100"}))).run()
    assert not other.query_params.get("ran_xi")  # what is shown was asked before


def test_the_newest_stored_runs_open_by_themselves(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """Those of the newest setting, without a sweep of a parameter; nothing is replayed."""
    command = ("simulate", "chats", "--db", db, "--capacity-blocks", "60", "--slo", "20ms")
    told(capsys, *command, "--policy", "lru,fifo")
    told(capsys, *command, "--policy", "tlru", "--param", "tlru.xi_tokens=100,200,300,400,500")
    app = shown(db, monkeypatch, "lab")
    assert "The newest stored runs of this trace, of 20" in words(app)
    assert "TTFT: latency profile" in words(app)
    assert set(table_with(app, "policy", "evictions")["policy"]) == {"lru", "fifo"}
    assert not job.all_jobs()
    listed = table_with(shown(db, monkeypatch, "runs"), "run", "hit rate")["run"].tolist()
    assert sorted(listed) == ["fifo", "lru", "tlru, 5 runs"]


def _one(value: str | list[str]) -> str:
    return value if isinstance(value, str) else value[-1]


def test_contradictions_are_those_of_the_command(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiers beside capacities, a tier without a read, xi without an SLO: a sentence each."""
    app = shown(db, monkeypatch, "lab", tiers="hbm=20blocks,dram=20blocks", sizes="60")
    assert "tiers have capacities of their own" in app.error[0].value
    app = shown(db, monkeypatch, "lab", sizes="10GiB", model="none")
    assert "bytes need a model" in app.error[0].value
    app = shown(db, monkeypatch, "lab", slo="", question="Effect of xi")
    app.text_input(key="slo").set_value("")
    app.button(key="run_xi").click().run()
    assert "Enter one above" in words(app)
    assert "Time to first token" not in titles(app)


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
    app = worked(shown(db, monkeypatch, "why", groups="type", **cache))
    assert "the trace names fewer than two types" in app.error[0].value


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
