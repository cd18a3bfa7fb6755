"""Text and table cannot disagree: what the verdict states is in the JSON document, and holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kvscope
from kvscope.core import units
from kvscope.policies.registry import by_name
from kvscope.replay.metrics import GROWTH
from kvscope.replay.policy_options import format_value
from kvscope.report.words import money, percent_change, points, share, significant
from tests.cli.replayed import write_profile
from tests.cli.tune.asked import write_trace
from tests.tuning.examples import chats, in_turn

CONSTANTS = {"95%", "10 conversations"}  # of the method: the interval, and what it takes
NUMBER = re.compile(
    r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?"
    r"(?:%|pp| (?:ms|µs|s|min|h|days?|[KMGT]iB|blocks?|replicas?|conversations)\b)?"
)
FALLING = {"requests within the SLO", "prefill throughput"}
TIMES = (("times_ms",), ("ttft_ms",), ("queued_ttft_ms",))
WINDOWS = {"held-out requests": "held_out", "the validation window": "validation"}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Yield small traces, read once, and the path of a latency profile."""
    folder = tmp_path_factory.mktemp("sentences")
    requests = {"in turn": in_turn(), "chats": chats(7), "few": in_turn(8, 60)}
    opened = {
        name: kvscope.open_trace(write_trace(folder / f"{name}.jsonl", trace), block_size=16)
        for name, trace in requests.items()
    }
    yield {**opened, "latency": str(write_profile(folder))}
    for trace in opened.values():
        trace.close()


@st.composite
def tunings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the arguments of a small tuning, with and without a deployment."""
    arguments: dict[str, Any] = {
        "name": draw(st.sampled_from(["in turn", "chats", "few"])),
        "slo": draw(st.sampled_from([0.02, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 2.0])),
        "policies": draw(st.sampled_from(["tlru", "tlru,wa", "threshold-lru", "lru"])),
        "rate_scale": draw(st.sampled_from([1.0, 4.0, 20.0, 100.0])),
    }
    blocks = draw(st.sampled_from([22, 100, 350, 395, 1000]) | st.integers(20, 1200))
    if draw(st.booleans()):
        arguments |= {"gpu": "h100", "model": "llama3-8b", "num_gpu_blocks": blocks + 1}
        arguments["replicas"] = draw(st.integers(1, 3))
        arguments["gpu_hour"] = draw(st.sampled_from([None, 2.5]))
        arguments["tpot_slo"] = draw(st.sampled_from([None, 0.0005, 0.005, 0.5]))
    else:
        arguments["capacity_blocks"] = blocks
        arguments["view"] = draw(st.sampled_from(["unloaded", "queued"]))
        arguments["model"] = draw(st.sampled_from([None, "vicuna-7b"]))
    if draw(st.booleans()):
        arguments["max_violations"] = draw(st.sampled_from([0.05, 0.2]))
    else:
        arguments["percentile"] = draw(st.sampled_from(["p50", "p90", "p95"]))
    return arguments


@given(tunings())
@settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # an example takes seconds to shrink
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_the_sentences_state_is_in_the_document_and_holds(
    traces: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """Each number, formatted alike; each "within", "beyond" and "limit" by the exact figures."""
    name = arguments.pop("name")
    result = kvscope.tune(traces[name], latency=traces["latency"], **arguments)
    document = result.to_dict()
    known = _known(document) | CONSTANTS
    for sentence in document["words"]:
        for number in _numbers(sentence):
            assert number in known, (number, sentence)
        for pattern, check in CHECKS.items():
            for match in re.finditer(pattern, sentence):
                assert check(document, **match.groupdict()), (pattern, sentence)


def _numbers(text: str) -> set[str]:
    return {match[0].strip() for match in NUMBER.finditer(text)}


def _known(document: dict[str, Any]) -> set[str]:
    """Return all numbers of a document, in every way that a sentence may write them."""
    per_block = document["trace"]["block_size"]
    model = document["model"]
    texts = set()
    for path, value in _leaves(document):
        leaf = path[-1]
        if leaf.endswith("_ms") or path[-2:-1] in (
            ("times_ms",),
            ("ttft_ms",),
            ("queued_ttft_ms",),
        ):
            texts.add(units.duration_in_words(value / 1e3))
        elif leaf == "hours":
            texts.add(units.duration_in_words(value * 3600))
        elif leaf.endswith("_blocks"):
            texts.add(f"{value:,} blocks" if value != 1 else "1 block")
            if model is not None:
                size = value * per_block * model["bytes_per_token"]
                texts.add(units.format_size(size))
        elif "replicas" in leaf and isinstance(value, int):
            texts |= {f"{value:,}", f"{value:,} replica", f"{value:,} replicas"}
        elif path[-2:-1] == ("params",):
            texts.add(format_value(leaf, value))
        elif leaf in {"requests", "requests_needed"}:
            texts.add(f"{value:,}")
        elif leaf == "growth":
            texts.add(f"{significant(value)} s")
        elif leaf.endswith("_per_s") or leaf == "prefill_times":
            texts.add(f"{value:.3g}")
        elif leaf.endswith("_hour"):
            texts.add(money(abs(value)))
        else:  # shares, their changes, and differences of shares
            texts |= {share(value), f"{value:.0%}", points(value)}
            texts |= {percent_change(value), percent_change(-value)}
    texts |= _options(document["rows"])
    return {number for text in texts for number in _numbers(text)}


def _options(rows: list[dict[str, Any]]) -> set[str]:
    """Return prices, sizes and times of the plan's options."""
    prices = [row["price_per_hour"] for row in rows]
    texts = {money(price) for price in prices if price is not None}
    texts |= {money(abs(price - prices[0])) for price in prices if price is not None}
    tiers = [row["change"]["tier"] for row in rows if row["change"]["tier"]]
    texts |= {units.format_size(round(tier["gib"] * 2**30)) for tier in tiers}
    for row in rows:
        (ends_ms,) = (each.values() for each in row["ttft_ms"].values() if isinstance(each, dict))
        texts |= {units.duration_in_words(end_ms / 1e3) for end_ms in ends_ms if end_ms is not None}
    return texts


def _leaves(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _leaves(value, (*path, name))
    elif isinstance(part, list):
        for value in part:
            yield from _leaves(value, path)
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        yield path, part


def _beyond(value: float | None, limit: float) -> bool:
    return value is None or value > limit  # null: infinite


def _lru(document: dict[str, Any], time: str, window: str, side: str) -> bool:
    target_ms = document["recommendation"]["lru"][WINDOWS[window]]["target_ms"]
    stated = "infinite" if target_ms is None else units.duration_in_words(target_ms / 1e3)
    return (side == "beyond") == _beyond(target_ms, document["target"]["slo_ms"]) and (
        time == stated or target_ms is None
    )


def _graded(document: dict[str, Any], grade: str) -> bool:
    choice, likely = document["recommendation"]["choice"], {"do-now": 0.95, "canary": 0.8}[grade]
    sustained = all(choice[window]["keeps_up"] for window in WINDOWS.values())
    harmless = not choice["later"]["harms"] and choice["later"]["likely"] >= likely
    return document["recommendation"]["grade"] == grade and sustained and harmless


def _not_enough(document: dict[str, Any], needed: str) -> bool:
    best = document["recommendation"]
    return best["grade"] == "no" and f"{best['requests_needed']:,}" == needed


def _within(trial: dict[str, Any], slo_ms: float) -> bool:
    """Return whether output tokens keep their SLO: not where no request has a second one."""
    return trial["tpot_ms"] is not None and trial["tpot_ms"] <= slo_ms


def _answer(document: dict[str, Any], name: str, answer: str) -> bool:
    """Return whether the answer to the SLO follows from the figures that stand there."""
    best, target = document["recommendation"], document["target"]
    judged = best["lru"] if name == "lru" else best["choice"]
    met = [
        not _beyond(judged[window]["target_ms"], target["slo_ms"])
        and (target["tpot_slo_ms"] is None or _within(judged[window], target["tpot_slo_ms"]))
        for window in WINDOWS.values()
    ]
    low, high = judged["later"]["interval_ms"]
    if answer == "does not keep up":
        return not all(judged[window]["keeps_up"] for window in WINDOWS.values())
    if answer == "meets it":
        return all(met) and high <= target["slo_ms"]
    return answer == "is undecided" or (not any(met) and _beyond(low, target["slo_ms"]))


def _tpot(document: dict[str, Any], time: str, window: str, side: str) -> bool:
    best = document["recommendation"]
    slo_ms, judged = document["target"]["tpot_slo_ms"], (best["lru"], best["choice"])
    times_ms = [each[WINDOWS[window]]["tpot_ms"] for each in judged if each]
    return any(
        units.duration_in_words(each / 1e3) == time and (each > slo_ms) == (side == "beyond")
        for each in times_ms
    )


def _limit(document: dict[str, Any], figure: str, change: str, limit: str) -> bool:
    """Return whether a harm of the document reads like this, and is beyond its limit."""
    trials = document["changes"]
    write = points if figure == "requests within the SLO" else percent_change
    names = {"requests within the SLO": "attainment", "TEL": "tel"}
    for harm in (harm for trial in trials for harm in trial["harms"]):
        size = "unbounded" if harm["change"] is None else write(harm["change"])
        if (harm["figure"], size, write(harm["limit"])) == (
            names.get(figure, figure),
            change,
            limit,
        ):
            exact = harm["change"]
            if figure in FALLING:
                return exact is None or exact < harm["limit"]
            return exact is None or exact > harm["limit"]
    return False


def _no_cache(document: dict[str, Any]) -> bool:
    infinite, target = document["infinite"], document["target"]
    slow = target["tpot_slo_ms"] is not None and _beyond(infinite["tpot_ms"], target["tpot_slo_ms"])
    return slow or _beyond(infinite["target_ms"], target["slo_ms"])


def _cheaper(document: dict[str, Any]) -> bool:
    """Return whether what meets the SLO costs less than today, in money or in replicas."""
    rows = {row["id"]: row for row in document["rows"]}
    today, chosen = document["rows"][0], rows[document["to_meet"]]
    costs = [
        (row["price_per_hour"] or 0.0, row["change"]["replicas"] or 1) for row in (chosen, today)
    ]
    return costs[0] < costs[1]


def _better(document: dict[str, Any]) -> bool:
    return any(contender["likely"] >= 0.8 for contender in document["changes"])


def _shrink(document: dict[str, Any]) -> bool:
    least = document["least_capacity"]["lru"]
    within = least["held_out"]["target_ms"] <= document["target"]["slo_ms"]
    return within and least["training"]["capacity_blocks"] < document["capacity_blocks"]


def _larger(document: dict[str, Any], fails: str | None) -> bool:
    best = document["recommendation"]["enough"]
    beyond = _beyond(best["target_ms"], document["target"]["slo_ms"])
    return best["capacity_blocks"] > document["capacity_blocks"] and beyond == bool(fails)


def _fewest(document: dict[str, Any], count: str, router: str) -> bool:
    fewest, present = document["recommendation"]["fewest"][0], document["replicas"]
    needed = document["recommendation"]["replicas_at_least"]
    known = needed in {None, fewest["replicas"]} or document["load"]["replicas_at_least"] == needed
    return known and (fewest["replicas"], fewest["router"]) == (int(count), router) and present > 0


CHECKS: dict[str, Any] = {
    r"LRU has a \S+(?: queued)? TTFT of (?P<time>.+?) on (?P<window>held-out requests|the"
    r" validation window) at .+?, (?P<side>within|beyond) the SLO": _lru,
    r"^Do now, free: ": lambda document: _graded(document, "do-now"),
    r"^Canary first: ": lambda document: _graded(document, "canary"),
    r"^Not enough requests: \S+ of about (?P<needed>\S+)\. ": _not_enough,
    r"(?:requests: |\), )(?P<name>\S+) (?P<answer>meets it|misses it|is undecided|does not keep up)"
    r" \(": _answer,
    r"TPOT is (?P<time>.+?) on (?P<window>.+?), (?P<side>within|beyond) the SLO": _tpot,
    r"(?:, but |, |: |but )(?P<figure>[a-zA-Z][^,:+-]*?) (?P<change>[+-]\S+|unbounded)"
    r"(?: at worst)? \(limit (?P<limit>\S+)\)": _limit,
    r"^No cache meets": _no_cache,
    r"^For less, ": _cheaper,
    r"^No change: no policy is likely better": lambda document: not _better(document),
    r"^No change: .* gains on": _better,
    r"^You could shrink: LRU meets": _shrink,
    r" meets it at .+ blocks\)?(?P<fails> in the training window but not)?": _larger,
    r"No capacity within the search range": lambda document: (
        document["recommendation"]["enough"] is None
    ),
    r"within the SLO, but its queue": lambda document: (
        not all(
            document["recommendation"]["lru"][window]["keeps_up"] for window in WINDOWS.values()
        )
    ),
    r"^Under LRU each second of traffic adds": lambda document: document["load"]["growth"] > GROWTH,
    r"^Not even": lambda document: document["load"]["replicas_at_least"] is None,
    r"^At least (?P<count>\d+) replicas keep up": lambda document, count: (
        int(count) == document["load"]["replicas_at_least"] > document["replicas"]
    ),
    r"^With LRU, (?P<count>\d+) replicas? behind (?P<router>\S+)": _fewest,
    r"^With (?!LRU)\S+, (?P<count>\d+) do": lambda document, count: (
        int(count) == document["recommendation"]["fewest"][1]["replicas"]
    ),
    r"^(?P<name>\S+) has no guard": lambda document, name: (
        not by_name(name).guarded and document["recommendation"]["policy"] == name
    ),
    r"^The change saves (?P<price>\S+) an hour": lambda document, price: (
        price == money(document["recommendation"]["extra_price_hour"])
        and document["recommendation"]["slo_met"] == "meets"
    ),
    r"^With LRU, even (?P<count>\S+) replicas? behind \S+ miss": lambda document, count: (
        document["recommendation"]["fewest"][0]["replicas"] is None
        and int(count) == document["recommendation"]["fewest"][0]["replicas_tried"]
    ),
}
"""Sentences that compare, and the check of each by the document."""
