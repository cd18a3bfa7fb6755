"""`kvscope calibrate` on a server over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.trace import PROBE
from kvscope.latency.calibration import Cell
from kvscope.latency.decoding import Step
from kvscope.latency.file import read_profile
from kvscope.latency.targets import ServerTarget
from kvscope.serving.client import Endpoint
from tests.serving import fake_vllm
from tests.serving.fake import Behaviour, fake_server

ROOT = str(Path(fake_vllm.__file__).parents[2])
SHORT = ["--max-tokens", "512", "--repeats", "2"]


def test_a_running_server_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile that is written says about what the server takes, and JSON the same."""
    path = tmp_path / "latency.toml"
    with fake_server(Behaviour(base_s=0.02, per_token_s=2e-4, tells_blocks=False)) as url:
        code = run(["calibrate", "--url", url, *SHORT, "--json", "--output", str(path)])
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    profile = read_profile(path)
    assert told["profile"]["per_token_ms"] == pytest.approx(profile.per_token_s * 1e3)
    assert told["cached_tokens_checked"]
    assert not told["not_cached"]
    assert profile.per_token_s + profile.per_token_pair_s * 256 > 1.5e-4
    assert {(cell["uncached_tokens"], cell["n"]) for cell in told["cells"]} >= {(64, 2), (512, 2)}


@pytest.mark.parametrize("of_vllm", [True, False])
def test_a_vllm_is_told_that_these_are_no_requests_of_users(of_vllm: bool) -> None:
    """So that a recording of it leaves them out; other servers may refuse vLLM's own fields."""
    does = Behaviour(tells_blocks=of_vllm)
    with fake_server(does) as url:
        ServerTarget(Endpoint(url), "fake", seed=1).read(Cell(64, 0))
    (seen,) = does.seen
    assert seen.get("vllm_xargs") == ({PROBE: 1} if of_vllm else None)


def test_what_passes_outside_of_its_steps_is_what_its_metrics_do_not_count() -> None:
    """Unknown where others send requests at the same time, and where it is no vLLM."""
    with fake_server(Behaviour(base_s=0.03, outside_s=0.02)) as url:
        target, other = (ServerTarget(Endpoint(url), "fake", seed=seed) for seed in (1, 2))
        ttft_s = target.read(Cell(64, 0)).ttft_s
        assert target.request_s() == pytest.approx(ttft_s - 0.03)
        other.read(Cell(64, 0))
        assert target.request_s() is None
    with fake_server(Behaviour(tells_blocks=False)) as url:
        target = ServerTarget(Endpoint(url), "fake", seed=1)
        target.read(Cell(64, 0))
        assert target.request_s() is None


def test_its_steps_of_decoding_are_measured() -> None:
    """What more outputs take, by requests in a step; the fake serves them one after the other."""
    with fake_server(Behaviour(base_s=0.01, per_output_s=0.002)) as url:
        target = ServerTarget(Endpoint(url), "fake", seed=1)
        alone, both = (target.step_s(Step(batch, 256)) for batch in (1, 2))
    assert 0.002 < alone < 0.02
    assert alone < both


def test_a_server_without_a_cache_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 5, and what to turn on."""
    with fake_server(Behaviour(caches=False, tells_blocks=False)) as url:
        assert run(["calibrate", "--url", url, *SHORT, "--output", "-"]) == 5
    assert "--enable-prefix-caching" in capsys.readouterr().err


def test_a_server_is_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    """With tokens that it has not seen, as it keeps those of the first time."""
    with fake_server(Behaviour(per_token_s=1e-5, resets=False, tells_blocks=False)) as url:
        for _ in range(2):
            assert run(["calibrate", "--url", url, *SHORT, "--output", "-", "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            assert (told["cached_tokens_checked"], told["not_cached"]) == (True, [])


def test_a_server_that_does_not_tell_is_believed(capsys: pytest.CaptureFixture[str]) -> None:
    """With a word that nobody checked."""
    with fake_server(Behaviour(tells_hits=False, per_token_s=1e-5, tells_blocks=False)) as url:
        assert run(["calibrate", "--url", url, *SHORT, "--output", "-"]) == 0
    assert "Not checked: the server does not report" in " ".join(capsys.readouterr().out.split())


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 5 and one line."""
    assert run(["calibrate", "--url", "http://127.0.0.1:9"]) == 5
    assert "no answer" in capsys.readouterr().err


def test_an_engine_of_its_own_is_started_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile names the engine; one that fails to start shows its last lines, exit code 5."""
    python = fake_vllm.interpreter(tmp_path)
    asked = ["calibrate", "--model", "a/model", "--python", python, *SHORT]
    monkeypatch.setenv("FAKE_PER_TOKEN_S", "1e-5")
    assert run([*asked, "--output", "-", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["engine"]
    assert (told["name"], told["version"], told["device"]) == ("vLLM", "0.32.0", "a test")
    monkeypatch.setenv("FAKE_VLLM", "fails")
    assert run([*asked, "--output", "-"]) == 5
    said = capsys.readouterr().err
    assert "| ValueError: no such model" in said
    assert "ended before it was ready (exit status 1)" in said


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    """Ctrl-C in the middle: exit code 130, and a profile that says of how much it is made."""
    path = tmp_path / "latency.toml"
    asked = ["calibrate", "--max-tokens", "512", "--repeats", "500", "--output", str(path)]
    does = Behaviour(base_s=0.005, per_token_s=2e-5, tells_blocks=False)
    with (
        fake_server(does) as url,
        subprocess.Popen(
            [sys.executable, "-m", "kvscope", *asked, "--url", url],
            env=os.environ | {"PYTHONPATH": ROOT},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        until = time.monotonic() + 60
        while len(does.seen) < 60 and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ended early: interrupted" in said
    assert " of 3000 measurements" in read_profile(path).source
