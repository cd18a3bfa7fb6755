"""`kvscope tune --fleet`: one screen, a document, conditions, and one line for each mistake."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvscope.app.schemas import schema
from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.files import data_folder
from tests.cli.shell import Streams

SAMPLE = data_folder("sample_traces") / "to-c.jsonl.gz"
COMMON = ("--db", ":memory:", "--slo", "600ms")
TUNE = ("--fleet", "--policies", "wa")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trace of 500 requests."""
    path: Path = tmp_path_factory.mktemp("trace") / "short.jsonl"
    with gzip.open(SAMPLE, "rt") as lines:
        path.write_text("".join(islice(lines, 500)))
    return str(path)


def document(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the document that a command prints."""
    assert run([*arguments, "--json"]) == ExitCode.DONE
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def test_the_answer(capsys: Streams, trace: str) -> None:
    """The document has the schema and the figures of `kvscope fleet`; a deployment has a price."""
    where = ("--gpu", "l4", "--model", "llama3-8b", "--gpu-hour", "0.5")
    made = document(capsys, "tune", trace, *COMMON, *TUNE, *where, "--slo", "20s")
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
            for text in ("--param", f"{made_fleet['router']}.{name}={value:g}")
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--capacity-blocks", "9", "--output", "x.toml"), "--output"),
        (("--capacity-blocks", "9", "--judge", "30%"), "--judge"),
        (("--capacity-blocks", "9", "--tpot-slo", "50ms"), "--tpot-slo"),
        (("--capacity-blocks", "9", "--max-violations", "5%"), "--max-violations"),
        (("--gpu", "l4", "--model", "llama3-8b", "--replicas", "4"), "--replicas"),
        ((), "--capacity-blocks"),
    ],
)
def test_refused(capsys: Streams, trace: str, options: tuple[str, ...], named: str) -> None:
    """What a fleet's choice does not take is one line that names the option."""
    assert run(["tune", trace, *COMMON, "--fleet", *options]) == ExitCode.USAGE
    written = capsys.readouterr()
    (line,) = (line for line in written.err.splitlines() if line.startswith("error: "))
    assert named in line
    assert not written.out
