"""`kvscope tune --fleet`: one screen, a document, and conditions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.usecases.schemas import schema
from tests.cli.replayed import write_short
from tests.cli.shell import Streams

COMMON = ("--db", ":memory:", "--slo", "600ms")
TUNE = ("--fleet", "--policies", "wa")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of 500 requests."""
    return write_short(tmp_path_factory.mktemp("trace"))


def document(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the document that a command prints."""
    assert run([*arguments, "--json"]) == ExitCode.DONE
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def test_the_answer(capsys: Streams, trace: str) -> None:
    """The document has the schema and the figures of `kvscope fleet`; a deployment has a price."""
    where = ("--gpu", "l4", "--model", "llama3-8b", "--gpu-hour", "0.5")
    few = ("--router", "session,sglang,dynamo@1.6,power-of-two@1.13")
    made = document(capsys, "tune", trace, *COMMON, *TUNE, *where, *few, "--slo", "20s")
    Draft202012Validator(schema("tune-fleet")).validate(made)
    assert made["windows"] == {
        "warmup_requests": 100,
        "choosing_requests": 200,
        "judged_requests": 200,
    }
    best = made["recommended"]
    assert made["verdict"] in {"confirmed", "resized"}
    assert made["price_hour"] == 0.5 * best["replicas"]
    same = next(row for row in made["routers"] if row["run"]["router"] == best["router"])
    assert made["chosen"]["router"] == same["run"]["router"]
    assert not made["on_engines"]["meets"]  # so replicas are added until they do there
    assert best["meets"]
    assert best["replicas"] > made["judged"]["replicas"]
    fleet = ("fleet", trace, *COMMON, *where, "--slo", "20s", "--warmup", "60.05%")
    for made_fleet, model in ((made["judged"], "queue"), (best, "engine")):
        params = [
            text
            for name, value in made_fleet["router_params"].items()
            for unit in ["s" if name.endswith("_s") else ""]
            for text in ("--param", f"{made_fleet['router']}.{name}={value:g}{unit}")
        ]
        args = ("--router", made_fleet["router"], *params, "--policy", made_fleet["policy"])
        args = (*args, "--replicas", str(made_fleet["replicas"]), "--time-model", model)
        (row,) = document(capsys, *fleet, *args)["fleets"]
        for name in ("meets", "ttft_at_percentile_ms", "hit_rate", "latencies"):
            assert row[name] == made_fleet[name]


def test_one_screen_and_conditions(capsys: Streams, trace: str) -> None:
    """The answer comes first; conditions are on the judged window."""
    blocks = ("tune", trace, *COMMON, *TUNE, "--capacity-blocks", "3000")
    code = run([*blocks, "--fail-on", "replicas>=1,verdict=confirmed"])
    assert code == ExitCode.CHECK_FAILED
    screen = capsys.readouterr().out.splitlines()
    assert len(screen) <= 45
    assert max(map(len, screen)) <= 100
    assert screen[2].startswith("Answer")
    assert "p95 TTFT ≤ 600 ms" in screen[3]
    assert any("100 warm caches, 200 choose, 200 judge" in line for line in screen)


def test_routers_are_limited(capsys: Streams, trace: str) -> None:
    """To those named, with the parameters that are set; the sample's answer needs no other."""
    routers = ("--router", "round-robin,session,power-of-two@1.13", "--capacity-blocks", "3000")
    made = document(capsys, "tune", trace, *COMMON, *TUNE, *routers)
    tried = {row["run"]["router"] for row in made["routers"]}
    assert tried == {"round-robin", "session", "power-of-two@1.13"}


def test_capacities_are_compared(capsys: Streams, trace: str, tmp_path: Path) -> None:
    """Without one, those of LRU's curve; with a price of GPUs, the cheapest wins."""
    few = ("--policies", "wa", "--router", "round-robin,session")
    page = tmp_path / "report.html"
    code = run(["tune", trace, *COMMON, "--fleet", *few, "--html", str(page)])
    assert code == ExitCode.DONE
    screen = capsys.readouterr().out.splitlines()
    assert len(screen) <= 45
    assert max(map(len, screen)) <= 100
    assert any(line.startswith("Capacities: on the choosing window") for line in screen)
    html = page.read_text()
    assert "Requests within 600 ms" in html
    assert "p95 TTFT" in html
    where = ("--gpu", "l4", "--model", "llama3-8b", "--gpu-hour", "0.5", "--capacity", "3GiB,30GiB")
    made = document(capsys, "tune", trace, *COMMON, "--slo", "20s", "--fleet", *few, *where)
    Draft202012Validator(schema("tune-fleet")).validate(made)
    rows = made["capacities"]
    assert sorted(row["capacity_tokens"] for row in rows) == [24576, 245760]
    assert rows[0]["capacity_blocks"] == made["capacity_blocks"]
    for row, gpus in zip(sorted(rows, key=lambda row: row["capacity_blocks"]), (1, 9), strict=True):
        assert row["price_hour"] == pytest.approx(0.5 * gpus * row["chosen"]["replicas"])
    prices = [row["price_hour"] for row in rows]
    assert prices == sorted(prices)
    assert made["price_hour"] == pytest.approx(
        prices[0] / rows[0]["chosen"]["replicas"] * made["recommended"]["replicas"]
    )
    assert [end["capacity_blocks"] for end in made["ends"]] == [None, None]  # the pool is not used


def test_ends_and_sections(capsys: Streams, trace: str) -> None:
    """The pool's band is repeated; each section is named by its title."""
    few = ("--fleet", "--policies", "wa", "--router", "round-robin")
    named = ("--capacity-blocks", "3000", "--section", "answer,routers,policies,assumed")
    assert run(["tune", trace, *COMMON, "--slo", "20s", *few, *named]) == ExitCode.DONE
    assert "Routers: on the choosing window" in capsys.readouterr().out
    where = ("--gpu", "l40s", "--model", "llama3-8b", "--slo", "2s")
    made = document(capsys, "tune", trace, *COMMON, *few, *where)
    low, high = made["ends"]
    assert low["capacity_blocks"] < made["capacity_blocks"] < high["capacity_blocks"]
    assert (low["prefill_times"], high["prefill_times"]) == (1.65, 0.65)
    assert low["replicas"] > made["recommended"]["replicas"] == high["replicas"] == 1
    assert (
        f"Not certain: 1 replica, or {low['replicas']} with the smallest pool and prefill 1.65x as"
        " long. Measure: kvscope calibrate, and --engine-log for the pool."
    ) in made["words"]
