"""Which latency a command works with: named, calibrated, fitted to the trace, or a roofline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import kvscope
from kvscope.app.latency import fit_to
from kvscope.cli.app import run
from kvscope.core.errors import InputError
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.latency.file import write_profile
from kvscope.latency.profile import LatencyProfile
from kvscope.store.traces import load_prompts
from tests.cli.shell import Streams, streams_of
from tests.served import TRUE, served, without_queue_times, write_served

GPU = ("--gpu", "a100-80gb", "--model", "llama3-8b")  # its roofline is near the server's times
FITTED = "TTFT is fitted to"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with requests served at half load, and others behind a growing queue."""
    folder = tmp_path_factory.mktemp("served")
    half = without_queue_times(served(1, 0.5, requests=600, noise=0.1))
    write_served(folder / "half.jsonl", half)
    write_served(folder / "cold.jsonl", half, cached_tokens=None)
    write_served(folder / "plain.jsonl", half, ttft_ms=None)
    write_served(folder / "mixed.jsonl", half, worker=None)
    behind = without_queue_times(served(1, 1.3, requests=600, noise=0.1))
    write_served(folder / "behind.jsonl", behind)
    with (folder / "mixed.jsonl").open("a") as file:
        other = json.loads((folder / "half.jsonl").read_text().splitlines()[-1])
        file.write("\n" + json.dumps(other | {"chat_id": 10**6, "model": "other"}))
        file.write("\n" + json.dumps(other | {"chat_id": 10**6 + 1, "model": "another"}))
    return folder


def command(
    capsys: Streams, trace: Path, *options: str, name: str = "simulate"
) -> tuple[int, Any, str]:
    """Return the exit code of a command, its document and its notes."""
    policies = ("--policy", "lru") if name == "simulate" else ()
    code = run([name, str(trace), *policies, *options, "--db", ":memory:", "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else None, printed.err


def test_a_trace_wins_over_a_roofline(traces: Path, capsys: Streams) -> None:
    """A deployment without a measured latency gets the trace's, which is said first."""
    _, document, notes = command(capsys, traces / "half.jsonl", *GPU)
    latency = document["deployment"]["latency"]
    assert (latency["source"], latency["profile"]) == ("measured", "trace half")
    assert latency["base_ms"] == pytest.approx(20, rel=0.2)
    assert latency["per_token_ms"] == pytest.approx(0.1, rel=0.15)
    assert 0.7 < latency["low"] < 1 < latency["high"] < 1.4
    assert document["latency"]["profile"] == "trace half"
    assert document["latency"]["base_ms"] == latency["base_ms"]
    assert f"note: {FITTED}" in notes
    assert document["deployment"]["notes"][-1].startswith("TTFTs do not show the time per output")


def test_decoding_is_still_the_rooflines() -> None:
    """TTFTs say nothing of output tokens; a step takes some time whatever was fitted."""
    fitted = without_queue_times(served(1, 0.5)).fit()
    stated = Deployment(gpu="a100-80gb", model="llama3-8b")
    derived, timed = resolve(stated).latency, resolve(stated, fitted=fitted).latency
    assert timed.decode_base_s == derived.decode_base_s
    assert timed.decode_context_token_s == derived.decode_context_token_s
    assert timed.base_s == fitted.profile.base_s != derived.base_s
    assert 0 < timed.request_s < timed.base_s
    assert timed.floor_s == 0
    alone = resolve(Deployment(num_gpu_blocks=100, latency="trace"), fitted=fitted)
    assert alone.latency == fitted.profile


def test_a_calibrated_profile_wins_over_the_trace(
    traces: Path, tmp_path: Path, capsys: Streams
) -> None:
    """What is named or calibrated is not replaced, and nothing is noted."""
    write_profile(tmp_path / "mine.toml", LatencyProfile("mine", "measured", 1e-3, 1e-5))
    for latency, source in ((str(tmp_path / "mine.toml"), "measured"), ("small-llama-cpu", "")):
        options = (*GPU, "--latency", latency)
        _, document, notes = command(capsys, traces / "half.jsonl", *options)
        assert document["deployment"]["latency"]["source"] in {source, "stated"}
        assert document["latency"]["profile"] != "trace half"
        assert "TTFT is" not in notes


def test_a_roofline_stays_where_the_trace_does_not_determine_it(
    traces: Path, capsys: Streams
) -> None:
    """Behind a queue, without cached tokens or with several models, the reason is said."""
    for trace, reason in (
        ("behind", "were measured without another prefill"),
        ("cold", "no cached tokens"),
        ("mixed", "has requests of 2 models"),
    ):
        code, document, notes = command(capsys, traces / f"{trace}.jsonl", *GPU)
        assert code == 0
        assert document["deployment"]["latency"]["source"] == "derived"
        assert "TTFT is a roofline's, not fitted to the trace: " in notes
        assert reason in notes
        assert document["latency"]["profile"] == "llama3-8b-bf16-1xa100-80gb"
        named = command(capsys, traces / f"{trace}.jsonl", *GPU, "--latency", "trace")
        assert (named[0], named[1]) == (3, None)
        assert reason in named[2]


def test_other_gpus_than_the_traces_keep_their_roofline(traces: Path, capsys: Streams) -> None:
    """A trace of slower GPUs than are asked about is used only if it is named."""
    faster = ("--gpu", "h100", "--model", "llama3-8b")
    _, document, notes = command(capsys, traces / "half.jsonl", *faster)
    assert document["deployment"]["latency"]["source"] == "derived"
    assert "TTFT is a roofline's: the trace's TTFTs are" in notes
    assert "times as long, as if on other GPUs (--latency trace fits them)" in notes
    _, document, notes = command(capsys, traces / "half.jsonl", *faster, "--latency", "trace")
    assert document["latency"]["profile"] == "trace half"
    assert FITTED in notes


def test_sessions_without_a_common_clock_are_refused(traces: Path) -> None:
    """Where sessions were placed by kvscope, it is not known which requests waited."""
    with kvscope.open_trace(traces / "half.jsonl") as trace:
        with trace.store.reading() as store:
            prompts = load_prompts(store, trace.facts)
        assert fit_to(trace.facts, prompts).stated == len(prompts.arrival_s)
        sessions = replace(prompts, clock=prompts.conversation)
        with pytest.raises(InputError, match="no common clock"):
            fit_to(trace.facts, sessions)


def test_a_trace_without_ttfts_changes_nothing(traces: Path, capsys: Streams) -> None:
    """No note without TTFTs."""
    _, document, notes = command(capsys, traces / "plain.jsonl", *GPU)
    assert document["deployment"]["latency"]["source"] == "derived"
    assert "TTFT is" not in notes


def test_a_cache_study_takes_it_by_name(traces: Path, capsys: Streams) -> None:
    """Without a deployment a preset stays the default, and `trace` names the fit."""
    blocks = ("--capacity-blocks", "1000")
    _, document, _ = command(capsys, traces / "half.jsonl", *blocks)
    assert document["latency"]["profile"] == "llama2-7b-a100"
    _, document, notes = command(
        capsys, traces / "half.jsonl", *blocks, "--latency", "trace", "--slo", "300ms"
    )
    assert document["latency"]["profile"] == "trace half"
    assert f"note: {FITTED}" in notes
    assert document["results"][0]["ttft_ms"]["p50"] < 1_000


def test_a_pool_and_a_trace_are_enough(traces: Path, capsys: Streams) -> None:
    """GPUs that kvscope does not know have a latency all the same."""
    options = ("--num-gpu-blocks", "20000", "--latency", "trace")
    _, document, _ = command(capsys, traces / "half.jsonl", *options)
    assert document["deployment"]["latency"]["profile"] == "trace half"
    assert "Fitted to the TTFTs in the trace" in streams_of(capsys, "deployment", *options).out
    assert run(["deployment", *options, "--json"]) == 2
    assert "has no figures until a trace is read" in capsys.readouterr().err
    assert run(["deployment", *GPU, "--latency", "trace"]) == 0
    assert "a roofline until a trace is read" in capsys.readouterr().out


def test_the_file_may_say_so(
    traces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Streams,
) -> None:
    """`latency = "trace"` is no file of that name, and refuses what an option would refuse."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace").write_text("no profile", encoding="utf-8")
    assert run(["deployment", "create", *GPU, "--latency", "trace"]) == 0
    _, document, _ = command(capsys, traces / "half.jsonl")
    assert document["latency"]["profile"] == "trace half"
    assert command(capsys, traces / "behind.jsonl")[0] == 3


@pytest.mark.parametrize("options", [GPU, ("--capacity-blocks", "20000", "--latency", "trace")])
def test_tune_says_it_first_and_varies_it(
    traces: Path, capsys: Streams, options: tuple[str, ...]
) -> None:
    """The fit stands in the first lines; the verdict is repeated at both ends of its band."""
    more = ("--slo", "300ms", "--policy", "tlru", "--output", "-")
    _, document, _ = command(capsys, traces / "half.jsonl", *options, *more, name="tune")
    assert document["warnings"][0].startswith(FITTED)
    assert "(p90) on held-out requests" in document["warnings"][0]
    ends = {end["name"].split("prefill ")[1] for end in document["ends"]}
    assert len(ends) == 2
    assert all(0.7 < float(end.split("x")[0]) < 1.4 for end in ends)


def test_output_tokens_keep_the_band_of_the_roofline(traces: Path, capsys: Streams) -> None:
    """TTFTs do not narrow what is known of the time per output token."""
    more = ("--slo", "1s", "--tpot-slo", "50ms", "--policy", "tlru", "--output", "-")
    _, document, _ = command(capsys, traces / "half.jsonl", *GPU, *more, name="tune")
    assert document["deployment"]["latency"]["profile"] == "trace half"
    assert {end["name"].split("prefill ")[1] for end in document["ends"]} == {
        "1.65x as long",
        "0.65x as long",
    }


def test_analyze_and_python_agree(traces: Path, capsys: Streams) -> None:
    """All commands state the same latency of a deployment."""
    with kvscope.open_trace(traces / "half.jsonl") as trace:
        analyzed = kvscope.analyze(trace, gpu="a100-80gb", model="llama3-8b").to_dict()
        simulated = kvscope.simulate(
            trace, gpu="a100-80gb", model="llama3-8b", latency="trace", policy="lru"
        ).to_dict()
    _, printed, _ = command(capsys, traces / "half.jsonl", *GPU, name="analyze")
    latency = analyzed["deployment"]["latency"]
    assert latency == simulated["deployment"]["latency"] == printed["deployment"]["latency"]
    assert latency["per_token_ms"] == pytest.approx(1e3 * TRUE.per_token_s, rel=0.15)
    assert np.isfinite(latency["high"])


def test_fleets_take_it_too(traces: Path, capsys: Streams) -> None:
    """A fleet's replicas have the latency that is fitted to the trace."""
    options = ("--capacity-blocks", "1000", "--router", "round-robin", "--replicas", "1")
    words = (*options, "--latency", "trace", "--slo", "9s", "--db", ":memory:", "--json")
    written = streams_of(capsys, "fleet", str(traces / "half.jsonl"), *words)
    assert json.loads(written.out)["latency"]["profile"] == "trace half"
    assert FITTED in written.err
