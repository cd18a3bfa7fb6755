"""`--fail-on` as its user sees it: exit codes, one line on stderr, the output as without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from tests.cli.replayed import simulated, write_profile, write_trace
from tests.cli.shell import Streams
from tests.cli.tune import asked
from tests.tuning.examples import in_turn


@pytest.fixture
def simulate(tmp_path: Path) -> tuple[str, ...]:
    """Return a trace of three requests, its TTFT by hand: LRU at 3 blocks has 1034 ms thrice."""
    store, profile = str(tmp_path / "k.duckdb"), str(write_profile(tmp_path))
    trace = str(write_trace(tmp_path))
    at = ("--capacity-blocks", "3", "--slo", "1s")
    return ("simulate", trace, "--db", store, "--latency", profile, *at)


def ended(capsys: Streams, *arguments: str) -> tuple[ExitCode, str, list[str]]:
    """Return the exit code, stdout, and the lines on stderr besides notes."""
    code = run(arguments)
    written = capsys.readouterr()
    lines = written.err.splitlines()
    return code, written.out, [line for line in lines if not line.startswith("note: ")]


def test_figures_of_a_replay(simulate: tuple[str, ...], capsys: Streams) -> None:
    """One of three requests meets the SLO, the others exceed it by 34 ms each."""
    code, _, reasons = ended(
        capsys,
        *(*simulate, "--policy", "lru"),
        *("--fail-on", "p50>=1034ms,attainment<95%,hit-rate<0.4"),
        *("--fail-on", "tel>10ms", "--fail-on", "Queued-P99 >1s,tel>10s, lru.attainment<34%"),
    )
    assert code == ExitCode.CHECK_FAILED
    assert reasons == [
        "fail-on p50>=1034ms: p50 is 1034 ms",
        "fail-on attainment<95%: attainment is 33.3%",
        "fail-on hit-rate<0.4: hit-rate is 0.286",
        "fail-on tel>10ms: tel is 68 ms",
        "fail-on queued-p99>1s: queued-p99 is 1.03 s",
        "fail-on lru.attainment<34%: lru.attainment is 33.3%",
    ]


def test_a_policy_is_named_where_several_are_replayed(
    simulate: tuple[str, ...], capsys: Streams
) -> None:
    """Its own figures count; an oracle's can be named like any other's."""
    several = (*simulate[:-4], "--capacity-blocks", "1", "--policy", "lru,belady")
    code, _, reasons = ended(capsys, *several, "--fail-on", "lru.hit-rate<10%,belady.hit-rate<10%")
    assert code == ExitCode.CHECK_FAILED
    assert reasons == ["fail-on lru.hit-rate<10%: lru.hit-rate is 0%"]
    code, _, reasons = ended(capsys, *simulate, "--policy", "lru", "--fail-on", "p95>0")
    assert code == ExitCode.CHECK_FAILED
    assert reasons[0].startswith("fail-on p95>0: p95 is ")
    assert reasons[0].endswith(" ms")


def test_a_rejected_request_misses_the_slo(simulate: tuple[str, ...], capsys: Streams) -> None:
    """It has no TTFT: percentiles that fall on it cannot be computed, which fails, too."""
    engine = (*simulate[:-4], "--policy", "lru", "--capacity-model", "engine")
    engine = (*engine, "--capacity-blocks", "4", "--slo", "1h")
    (result,) = simulated(capsys, *engine[1:])["results"]
    assert (result["turned_away"], result["violations"]) == (1, 0)
    code, _, reasons = ended(
        capsys, *engine, "--fail-on", "attainment<1,p50>1h,p95>1h,queued-p95>1h"
    )
    assert code == ExitCode.CHECK_FAILED
    assert reasons == [
        "fail-on attainment<1: attainment is 0.667",
        "fail-on p95>1h: p95 cannot be computed",
        "fail-on queued-p95>1h: queued-p95 cannot be computed",
    ]
    (result,) = simulated(capsys, *engine[1:], "--capacity-blocks", "1")["results"]
    assert result["turned_away"] == 3
    _, _, reasons = ended(capsys, *engine, "--capacity-blocks", "1", "--fail-on", "queued-tel>1h")
    assert reasons == ["fail-on queued-tel>1h: queued-tel cannot be computed"]


def test_analyze(tmp_path: Path, capsys: Streams) -> None:
    """The ideal hit rate is 2 of 7 blocks, LRU's at two blocks is 1 of 7."""
    analyze = ("analyze", str(write_trace(tmp_path)), "--db", str(tmp_path / "k.duckdb"))
    assert ended(capsys, *analyze, "--fail-on", "hit-rate<28%")[0] == ExitCode.DONE
    both = "hit-rate<30%,lru.hit-rate<20%"
    code, out, reasons = ended(
        capsys, *analyze, "--capacity-blocks", "2", "--fail-on", both, "--json"
    )
    assert code == ExitCode.CHECK_FAILED
    assert json.loads(out)["ideal_hit_rate"] == pytest.approx(2 / 7)
    assert json.loads(out)["figures"] == {
        "hit-rate": pytest.approx(2 / 7),
        "lru.hit-rate": pytest.approx(1 / 7),
    }
    assert reasons == [
        "fail-on hit-rate<30%: hit-rate is 28.6%",
        "fail-on lru.hit-rate<20%: lru.hit-rate is 14.3%",
    ]


def test_a_trace_without_the_figure(tmp_path: Path, capsys: Streams) -> None:
    """Lengths have no hits: what there is is printed, and the condition is refused."""
    path = tmp_path / "lengths.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    analyze = ("analyze", str(path), "--db", ":memory:", "--fail-on", "hit-rate<40%")
    code, out, lines = ended(capsys, *analyze)
    assert code == ExitCode.INPUT
    assert "without block hashes" in out
    what = "--fail-on hit-rate<40%: the result has no hit-rate"
    assert lines == [f"error: {what}; it takes a trace with block hashes"]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return conversations in turn, which tlru serves within 200 ms and LRU does not."""
    monkeypatch.chdir(tmp_path)
    trace = str(asked.write_trace(tmp_path / "turns.jsonl", in_turn()))
    profile = ("--latency", str(write_profile(tmp_path)), "--policy", "tlru")
    return ("tune", trace, "--db", "k.duckdb", *profile, "--slo", "200ms", *asked.HERE)


def test_tune(tune: tuple[str, ...], tmp_path: Path, capsys: Streams) -> None:
    """The verdict, and what is recommended on held-out requests; the file is written all the same.

    `simulate --recommendation` takes conditions on what the file recommends.
    """
    conditions = ("--fail-on", "verdict=switch,p95>200ms", "--fail-on", "attainment<50%,tel>1h")
    code, out, lines = ended(capsys, *tune, *conditions, "--json")
    assert code == ExitCode.CHECK_FAILED
    assert lines == ["fail-on verdict=switch: verdict is switch"]
    document = json.loads(out)
    assert document["recommendation"]["verdict"] == document["figures"]["verdict"] == "switch"
    assert (tmp_path / "recommendation.toml").exists()
    replay = ("simulate", "turns", "--db", "k.duckdb", "--recommendation", "recommendation.toml")
    code, _, lines = ended(capsys, *replay, "--fail-on", "p99>1ms,lru.p95>200ms")
    assert code == ExitCode.CHECK_FAILED
    assert lines[0].startswith("fail-on p99>1ms: p99 is ")
    assert lines[1] == "fail-on lru.p95>200ms: lru.p95 is 330 ms"


def test_a_reader_that_leaves_loses_no_verdict(simulate: tuple[str, ...]) -> None:
    """`kvscope ... | head` ends with exit code 4, however much was left to print."""
    arguments = [*simulate, "--full", "--fail-on", "lru.p95>1s"]
    command = [sys.executable, "-m", "kvscope", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        lines = process.stderr.read().decode().splitlines()
        assert lines[-1] == "fail-on lru.p95>1s: lru.p95 is 1.03 s"
        assert process.wait() == ExitCode.CHECK_FAILED


def test_a_regression_against_an_earlier_result(
    simulate: tuple[str, ...], tmp_path: Path, capsys: Streams
) -> None:
    """Against the JSON of an earlier result, or its stored run; exit code 4, and why."""
    plain = (*simulate, "--policy", "lru")
    _, out, _ = ended(capsys, *plain, "--json")
    earlier = tmp_path / "earlier.json"
    earlier.write_text(out)
    smaller = (*plain, "--capacity-blocks", "1", "--fail-on", "regression>5%", "--baseline")
    for baseline in (str(earlier), "run:1"):
        assert ended(capsys, *smaller, baseline)[0::2] == (
            ExitCode.CHECK_FAILED,
            ["fail-on regression>5%: hit-rate is 100% worse: 0.0%, was 28.6%"],
        )
    same = (*plain, "--fail-on", "regression>5%", "--baseline", "run:1")
    assert ended(capsys, *same)[0::2] == (ExitCode.DONE, [])
