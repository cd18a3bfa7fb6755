"""What `kvscope tune` recommends can be replayed as it was judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from tests.cli.tune.asked import HERE, document

Streams = pytest.CaptureFixture[str]


def test_simulate_replays_what_was_recommended(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """The same policy, values, capacity and latency, beside LRU: the figures that were judged."""
    found = document(capsys, trace, *options, "--slo", "200ms", *HERE)
    best = found["recommendation"]
    asked = ("simulate", trace, "--recommendation", "recommendation.toml", "--json")
    # 60.1 %: that of 400 requests no rounding leaves one less
    assert run([*asked, *options[:2], "--warmup", "60.1%"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["policy"] for one in results] == ["lru", "tlru"]
    for one, expected in zip(results, (best["baseline"], best["expected"]), strict=True):
        assert one["capacity_blocks"] == 350
        for name in ("requests", "hit_tokens", "ttft_ms", "queued_ttft_ms", "tel_ms", "violations"):
            assert one[name] == expected[name]
    values = {name: one for name, one in best["params"].items() if name != "xi_ms"}
    assert results[1]["params"] == values


@pytest.mark.parametrize(
    "said",
    [
        ("--policies", "lru"),
        ("--param", "tlru.xi_tokens=1"),
        ("--capacity-blocks", "3"),
        ("--points", "3"),
        ("--latency", "llama2-7b-a100"),
        ("--slo", "1s"),
    ],
)
def test_a_recommendation_settles_what_it_says(
    tmp_path: Path, trace: str, options: tuple[str, ...], capsys: Streams, said: tuple[str, str]
) -> None:
    """Options that say the same are refused by name, before the file is looked for."""
    asked = ["simulate", trace, *options[:2], "--recommendation", str(tmp_path / "none.toml")]
    assert run([*asked, *said]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said[0]}: the recommendation settles this")
    assert len(error.splitlines()) == 1
