"""`kvscope tune` while no machine is known: LRU on common GPUs, and which options to name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode, UsageError
from kvscope.usecases.tune import COMMON_GPUS, TuneOptions, machine_requests
from tests.cli.shell import Streams, streams_of
from tests.cli.tune.asked import document, told, write_trace
from tests.tuning.examples import in_turn

pytestmark = pytest.mark.usefixtures("tuned_once")
ASKED = TuneOptions(slo=0.2)


@pytest.fixture
def plain(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return a trace and an SLO, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return (trace, "--db", "k.duckdb", "--slo", "200ms")


def test_lru_on_common_gpus(plain: tuple[str, ...], capsys: Streams) -> None:
    """A row for each GPU, the command to run next, a page, and no file."""
    out, err = streams_of(capsys, "tune", *plain, "--html", "page.html")
    assert "Which machine? ──" in out
    lines = out.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("GPU "))
    assert [line.split()[0] for line in lines[head + 2 : head + 6]] == [*COMMON_GPUS]
    assert all(
        line.endswith(("meets", "misses", "overloaded")) for line in lines[head + 2 : head + 6]
    )
    said = " ".join(out.split())
    assert f"Name your GPU and model: kvscope tune {plain[0]} --slo 200ms --gpu h100" in said
    assert "LRU on one replica of llama3-8b, requests 241 to 480 of the trace" in said
    assert "recommendation.toml was not written: no machine is known" in err
    assert not Path("recommendation.toml").exists()
    assert "Which machine?" in Path("page.html").read_text(encoding="utf-8")
    assert "Which machine?" in told(capsys, *plain, "--section", "which-machine")


def test_rows_are_what_tune_says_of_the_gpu(plain: tuple[str, ...], capsys: Streams) -> None:
    """The document validates; each figure is that of LRU once the GPU is named."""
    answer = document(capsys, *plain, "--rate-scale", "2")
    assert answer["command"] == "tune-machines"
    assert [row["gpu"] for row in answer["machines"]] == [*COMMON_GPUS]
    row = answer["machines"][2]
    named = ("--gpu", "h100", "--model", "llama3-8b", "--policy", "tlru", "--output", "-")
    later = document(capsys, *plain, "--rate-scale", "2", *named)["recommendation"]["lru"]["later"]
    assert {key: row[key] for key in later.keys() & row.keys()} == {
        key: value for key, value in later.items() if key in row
    }


def test_a_deployment_of_an_earlier_command_answers(
    plain: tuple[str, ...], capsys: Streams
) -> None:
    """So does kvscope.toml; the SLO that the table was for is kept too."""
    told(capsys, *plain)
    states = ("--gpu", "h100", "--model", "llama3-8b")
    streams_of(capsys, "analyze", *plain[:3], *states)
    assert "Recommendation: " in told(capsys, "--db", "k.duckdb", "--policy", "tlru")
    assert "Which machine?" in told(capsys, *plain, "--forget")
    Path("kvscope.toml").write_text(
        'schema = 1\ngpu = "h200"\nmodel = "llama3-8b"\n', encoding="utf-8"
    )
    assert "1 x h200" in told(capsys, *plain, "--forget", "--policy", "tlru")


@pytest.mark.parametrize(
    "known",
    [
        {"capacity_blocks": (9,)},
        {"capacity": (1 << 30,), "model": "llama3-8b"},
        {"capacity_range": (1, 2), "model": "llama3-8b"},
        {"latency": "llama2-7b-a100"},
        {"hbm": 1 << 30, "model": "llama3-8b"},
        {"view": "unloaded"},
        {"gpu": "h100", "model": "llama3-8b"},
    ],
)
def test_what_is_known_is_answered(
    known: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capacity, a latency or a view is for a cache study, a GPU for a deployment."""
    monkeypatch.chdir(tmp_path)
    assert machine_requests(replace(ASKED, **known)) == []
    assert len(machine_requests(ASKED)) == len(COMMON_GPUS)


def test_a_model_alone(plain: tuple[str, ...], capsys: Streams) -> None:
    """It takes the place of the common one, on the GPUs that hold it."""
    words = told(capsys, *plain, "--model", "qwen2.5-32b")
    assert "qwen2.5-32b does not fit on one l40s." in words
    assert "--gpu h100 --model qwen2.5-32b" in words
    with pytest.raises(UsageError, match="llama3-70b fits on none of l40s, a100-80, h100, h200"):
        machine_requests(replace(ASKED, model="llama3-70b"))
    with pytest.raises(UsageError, match="--outputs"):
        machine_requests(replace(ASKED, outputs="ignored"))


def test_without_times_or_with_a_condition(
    plain: tuple[str, ...], tmp_path: Path, capsys: Streams
) -> None:
    """Queues need times: a cache study. A condition on a recommendation is refused."""
    requests = [replace(each, arrival_s=0.0) for each in in_turn()]
    path = str(write_trace(tmp_path / "at-once.jsonl", requests))
    out, err = streams_of(capsys, "tune", path, *plain[1:], "--policy", "tlru", "--json")
    assert "no GPU is simulated: queues need arrival times, which the trace lacks" in err
    assert json.loads(out)["command"] == "tune"
    assert run(["tune", *plain, "--fail-on", "verdict!=keep-lru"]) == ExitCode.USAGE
    assert "no machine is known; name --gpu and --model" in capsys.readouterr().err
