"""`kvscope tune` told wrongly, or stopped: one line, the remedy, and nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.policies.base import Policy
from kvscope.tuning import tuner
from kvscope.tuning.trial import Evaluator
from tests.cli.tune.asked import DEPLOYED, HERE, told, write_trace
from tests.tuning.examples import in_turn

Streams = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (("--slo", "200"), "200ms"),
        (("--slo", "-1s"), "200ms"),
        (("--slo", "0s"), "above zero"),
        (("--slo", "fast"), "200ms"),
        (("--percentile", "101"), "p95"),
        (("--percentile", "p101"), "p95"),
        (("--percentile", "p100"), "p95"),
        (("--max-violations", "0%"), "5%"),
        (("--max-violations", "101%"), "5%"),
        (("--max-violations", "5%", "--percentile", "p95"), "leave out"),
        (("--model", "lama3-8b"), "did you mean"),
        (("--latency", "llama2-7b-a10"), "did you mean"),
        (("--policies", "tlruu"), "did you mean"),
        (("--policies", "belady"), "oracles are always shown"),
        (("--param", "tlru.xi=3"), "xi"),
        (("--param", "wa.ttl_s=3s"), "add wa to --policies"),
        (("--capacity-blocks", "0"), "2000"),
        (("--capacity", "16"), "16GiB"),
        (("--capacity", "16GiB", "--capacity-blocks", "5", "--model", "vicuna-7b"), "leave out"),
        (("--capacity-range", "5GiB"), "5GiB..80GiB"),
        (("--capacity-range", "80GiB..5GiB"), "5GiB..80GiB"),
        (("--warmup", "50%", "--judge", "60%"), "20%, 25% and 25%"),
        (("--judge", "0%"), "20%, 25% and 25%"),
        (("--validation", "0%"), "20%, 25% and 25%"),
        (("--judge", "140%"), "5%"),
        (("--view", "idle"), "queued"),
        (("--rate-scale", "0"), "write for example 2"),
        (("--max-p50-regression", "-1%"), "5%"),
        (("--min-throughput", "140%"), "5%"),
        (("--tpot-slo", "50ms"), "name the deployment"),
        (("--gpu", "h10"), "h100"),
        ((*DEPLOYED, "--capacity-blocks", "5"), "leave it out"),
        ((*DEPLOYED, "--view", "unloaded"), "leave it out"),
        ((*DEPLOYED, "--outputs", "ignored"), "leave it out"),
        ((*DEPLOYED, "--engine", "sglang", "--tpot-slo", "50ms"), "leave it out"),
        (("--output", "no/such/folder/r.toml"), "make it first"),
        (("--output", "."), "name a file in it"),
        (("--html", "no/such/folder/r.html"), "make it first"),
    ],
)
def test_bad_values_are_one_line_with_the_remedy(
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
    said: tuple[str, ...],
    remedy: str,
) -> None:
    """Exit code 2, a line with the option or the value and what to write; nothing is written."""
    base = () if "--slo" in said else ("--slo", "200ms")
    latency = () if "--latency" in said else options[2:4]
    policies = () if "--policies" in said else options[4:]
    code = run(["tune", trace, *options[:2], *latency, *policies, *base, *said])
    written = capsys.readouterr()
    assert code == ExitCode.USAGE, written.err
    (line,) = [one for one in written.err.splitlines() if not one.startswith("note:")]
    assert line.startswith("error: ")
    assert any(one in line for one in said)
    assert remedy in line
    assert written.out == ""
    assert not Path("recommendation.toml").exists()


def test_a_deployment_needs_a_pool(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Replicas of what? Of a model on a GPU, or of a pool."""
    assert run(["tune", trace, *options, "--slo", "200ms", "--replicas", "2"]) == ExitCode.USAGE
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --model: the KV pool is unknown; name --gpu and --model")
    assert not Path("recommendation.toml").exists()


def test_an_slo_has_to_be_named(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """There is no usual one."""
    assert run(["tune", trace, *options]) == ExitCode.USAGE
    assert "--slo" in capsys.readouterr().err


def test_a_trace_of_lengths_cannot_be_tuned(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """No hashes, no reuse: said in one line with the remedy."""
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:{at % 60:02}.9799600,{100 + at},10" for at in range(300)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    assert run(["tune", str(path), *options, "--slo", "200ms"]) == ExitCode.INPUT
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {path}: has only lengths")
    assert error.endswith("; take a trace with block hashes")


def test_a_trace_too_short_is_refused(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """100 requests a window are needed; nothing is written."""
    path = str(write_trace(tmp_path / "short.jsonl", in_turn(20, 5)))
    assert run(["tune", path, *options, "--slo", "200ms"]) == ExitCode.INPUT
    assert "100 requests are too few" in capsys.readouterr().err
    assert not Path("recommendation.toml").exists()


def test_nothing_is_written_to_a_dash(
    trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """`--output -` prints the recommendation and leaves no file."""
    words = told(capsys, trace, *options, "--slo", "200ms", *HERE, "--output", "-")
    assert "Switch to tlru" in words
    assert not Path("-").exists()
    assert not Path("recommendation.toml").exists()


def test_a_malformed_recommendation_is_unreadable_input(
    tmp_path: Path, trace: str, options: tuple[str, ...], capsys: Streams
) -> None:
    """Exit code 3 and one line; what each mistake says is in tests/tuning/test_file.py."""
    path = tmp_path / "r.toml"
    path.write_text("schema = 1\n", encoding="utf-8")
    assert run(["simulate", trace, *options[:2], "--recommendation", str(path)]) == ExitCode.INPUT
    error = capsys.readouterr().err
    remedy = "`kvscope tune` and `kvscope fit --export` write such a file"
    assert error == f"error: {path}: verdict: missing; {remedy}\n"


@pytest.mark.parametrize("earlier", [None, "of before\n"])
@pytest.mark.parametrize("at", ["search", "judge"])
def test_ctrl_c_writes_nothing(
    trace: str,
    options: tuple[str, ...],
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
    earlier: str | None,
    at: str,
) -> None:
    """Wherever it comes: exit code 130, no half an answer, and an earlier file stays as it is."""
    if earlier is not None:
        Path("recommendation.toml").write_text(earlier, encoding="utf-8")
    before = signal.getsignal(signal.SIGINT)
    _interrupt(monkeypatch, at)
    asked = ["tune", trace, *options, "--slo", "200ms", *HERE, "--html", "r.html"]
    assert run(asked) == ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    written = capsys.readouterr()
    assert written.out == ""
    assert "nothing was written" in written.err
    assert "Traceback" not in written.err
    assert not Path("r.html").exists()
    path = Path("recommendation.toml")
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == earlier


def _interrupt(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Press Ctrl-C as the search begins, or as judging does."""
    if at == "search":
        ask: Callable[..., Any] = tuner.search

        def searching(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return ask(*arguments)

        monkeypatch.setattr(tuner, "search", searching)
        return
    serve = Evaluator.served

    def judging(evaluator: Evaluator, policy: Policy, capacity_blocks: int) -> Any:
        if len(evaluator.workload.prompts.leaf) == 480:  # the whole trace
            signal.raise_signal(signal.SIGINT)
        return serve(evaluator, policy, capacity_blocks)

    monkeypatch.setattr(Evaluator, "served", judging)
