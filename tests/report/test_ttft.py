"""TTFT by category under two policies; and words have meanings."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from kvscope.core.files import data_folder
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.report import ttft, xi
from kvscope.report.glossary import _MEANINGS, meaning
from kvscope.report.style import LONGEST_LABEL

NONE = Percentiles(0.0, 0.0, 0.0, 0.0)
LRU = Outcome(
    requests=5,
    hit_tokens=0,
    total_tokens=10,
    token_hit_rate=0.0,
    block_hit_rate=0.0,
    request_hit_rate=0.0,
    uncached_tokens=NONE,
    ttft_ms=Percentiles(10.0, 20.0, 30.0, 40.0),
    queued_ttft_ms=None,
    tel_ms=None,
    violations=None,
    queued_tel_ms=None,
    queued_violations=None,
)
FASTER = dataclasses.replace(LRU, ttft_ms=Percentiles(10.0, 20.0, 15.0, 40.0))
SLOWER = dataclasses.replace(LRU, requests=9, ttft_ms=Percentiles(20.0, 20.0, 30.0, 40.0))


def test_long_names_are_cut_and_stay_apart() -> None:
    """A chart's label has at most 40 letters; categories that are cut alike are two bars."""
    before = {"x" * 10_000 + end: LRU for end in "ab"}
    (chart,) = ttft.category_section("long", before, before).figures
    first, second = chart().data[0].y
    assert (len(first), second) == (LONGEST_LABEL, f"{first} (2)")


def test_the_plan_rejects_a_xi_that_misses_more() -> None:
    """A lower p95 does not pay for more requests beyond the SLO, and the words say so."""
    lru = SimpleNamespace(outcome=dataclasses.replace(LRU, requests=1000, tel_ms=9.0, violations=5))
    more = dataclasses.replace(lru.outcome, ttft_ms=FASTER.ttft_ms, violations=90)
    assert xi.objections(SimpleNamespace(outcome=more), lru, 0.02) == [
        "90 requests exceed the SLO, 5 with LRU"
    ]
    assert xi.objections(lru, lru, 0.02) == []


def test_gains_and_prices_are_told_apart() -> None:
    """By percentile; the largest category comes first; no change is neither."""
    before = {"a": LRU, "b": dataclasses.replace(LRU, requests=9), "c": LRU}
    section = ttft.category_section("both", before, {"a": FASTER, "b": SLOWER, "c": LRU})
    assert section.sentences == (
        "p50 falls for no category; it rises for b.",
        "p95 falls for a; it rises for no category.",
    )
    assert ttft.category_section("none", before, before).sentences == (
        "p50 changes by at most 1% in every category.",
        "p95 changes by at most 1% in every category.",
    )
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["b", "a", "c"]
    assert table.rows[1] == ("a", "5", "10.0", "10.0", "30.0", "15.0")
    p50, p95, p99 = section.figures[0]().data
    assert (list(p50.x), list(p95.x), list(p99.x)) == ([1.0, 0, 0], [0, -0.5, 0], [0, 0, 0])


def test_hindsight_is_hollow() -> None:
    """Points of policies that know the future differ from those of a choice."""
    assert ttft.symbol("belady").endswith("-open")
    assert not ttft.symbol("tlru").endswith("-open")


def test_words_have_meanings() -> None:
    """Those that a title does not say itself."""
    assert "exceeds the SLO" in str(meaning("TEL (s)"))
    assert meaning("requests") is None


def test_every_meaning_is_of_a_title_in_use() -> None:
    """A title that a report no longer has keeps no definition."""
    report = data_folder("sample_traces").parent / "kvscope" / "report"
    pages = data_folder("dashboard")
    code = [*report.glob("*.py"), *pages.rglob("*.py")]
    text = "".join(path.read_text() for path in code if path.name != "glossary.py")
    ranks = {"p50", "p80", "p90", "p95", "p99"}  # several in one string
    assert not [title for title in _MEANINGS.keys() - ranks if f'"{title}' not in text]
