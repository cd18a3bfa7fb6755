"""`kvscope simulate` as its user sees it: numbers, the JSON contract, the report."""

from __future__ import annotations

from typing import Any

import pytest

from kvscope.cli.app import run
from tests.cli.replayed import BLOCK, simulated
from tests.cli.shell import Streams


def by_policy(document: dict[str, Any], name: str) -> dict[int, dict[str, Any]]:
    """Return the results of one policy by capacity."""
    return {one["capacity_blocks"]: one for one in document["results"] if one["policy"] == name}


def test_the_numbers_are_the_hand_computed_ones(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """LRU keeps the stranger's block, the optimum does not; TTFT is 10 ms and 1 ms a token."""
    document = simulated(
        capsys,
        trace,
        *options,
        *("--policy", "lru,belady", "--capacity-blocks", "1,2,3", "--slo", "1s"),
    )
    lru, belady = by_policy(document, "lru"), by_policy(document, "belady")
    assert [lru[at]["token_hit_rate"] for at in (1, 2, 3)] == pytest.approx([0, 1 / 7, 2 / 7])
    assert [belady[at]["hit_tokens"] for at in (1, 2, 3)] == [BLOCK, 2 * BLOCK, 2 * BLOCK]
    assert lru[3]["ttft_ms"] == {"p50": 1034, "p90": 1034, "p95": 1034, "p99": 1034}
    assert lru[1]["uncached_tokens"]["p99"] == 4 * BLOCK
    assert lru[1]["ttft_ms"]["p99"] == 10 + 4 * BLOCK
    assert lru[3]["tel_ms"] == pytest.approx(34 + 34)
    assert lru[3]["violations"] == 2
    assert lru[3]["request_hit_rate"] == pytest.approx(1 / 3)
    assert lru[3]["misses"]["evicted_tokens"] == 0
    assert lru[1]["misses"]["evicted_tokens"] == 2 * BLOCK
    (category,) = lru[3]["categories"][-1:]
    assert category["requests"] + sum(one["requests"] for one in lru[3]["categories"][:-1]) == 3


def test_points_end_where_lru_loses_nothing(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The largest capacity of a spread gives LRU its ideal hit rate; it is added to those named."""
    document = simulated(capsys, trace, *options, "--policy", "lru", "--points", "3")
    assert document["results"][-1]["capacity_blocks"] == 3
    assert document["results"][-1]["token_hit_rate"] == pytest.approx(2 / 7)
    both = ("--points", "1", "--capacity-blocks", "1")
    more = simulated(capsys, trace, *options, "--policy", "lru", *both)
    assert [one["capacity_blocks"] for one in more["results"]] == [1, 3]


def test_parameters_take_units_and_make_variants(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Every combination of the values given is replayed; the others are as found or as declared."""
    document = simulated(
        capsys,
        trace,
        *options,
        *("--policy", "tlru,ttl", "--capacity-blocks", "2", "--slo", "1s"),
        *("--param", "tlru.next_prompt_tokens=0,1k", "--param", "tlru.leaves=leaf,any"),
        *("--param", "ttl.ttl_s=500ms,10m"),
    )
    tlru = [one for one in document["results"] if one["policy"] == "tlru"]
    assert {(one["params"]["next_prompt_tokens"], one["leaves"]) for one in tlru} == {
        (0, "leaf"),
        (0, "any"),
        (1000, "leaf"),
        (1000, "any"),
    }
    assert {one["params"]["xi_tokens"] for one in tlru} == {990}
    ttl = [one for one in document["results"] if one["policy"] == "ttl"]
    assert [one["params"]["ttl_s"] for one in ttl] == [0.5, 600]
    assert [one["hit_tokens"] for one in ttl] == [0, BLOCK]


def test_what_follows_from_the_slo_is_said(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The xi that an SLO gives is told on stderr, unless one was chosen."""
    asked = ["simulate", trace, *options, "--capacity-blocks", "2", "--slo", "1s"]
    assert run([*asked, "--policy", "tlru"]) == 0
    assert "xi_tokens is 990, what by hand computes in 1000 ms" in capsys.readouterr().err
    assert run([*asked, "--policy", "tlru", "--param", "tlru.xi_tokens=5"]) == 0
    assert "xi_tokens is" not in capsys.readouterr().err


def test_the_first_screen_says_who_wins(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Hit rate, tail and the gap to the best known, at the capacity in bytes and blocks."""
    asked = ["simulate", trace, *options, "--capacity-blocks", "2", "--slo", "1s"]
    assert run([*asked, "--model", "vicuna-7b", "--policy", "lru,tlru,belady"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Most hits at 0.5 GiB: lru, 14.3%; optimum 28.6% (gap +14.3 pp)." in words
    assert "Lowest p95 TTFT at 0.5 GiB: lru, 1.55 s; best known 1.03 s (gap -512 ms)." in words
    assert "At 0.5 GiB (2 blocks)" in words
    assert "belady* 28.6%" in words
    assert "knows the future" in words
