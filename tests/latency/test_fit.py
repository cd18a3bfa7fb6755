"""A calibration measures cells, fits a profile and writes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.cli.app import run
from kvscope.core.errors import EngineError, UsageError
from kvscope.core.trace import PROBE
from kvscope.latency import calibration as module
from kvscope.latency.calibration import (
    CalibratedEngine,
    Calibration,
    Cell,
    TtftReading,
    calibrate,
    fit,
    grid,
    measure,
    write,
)
from kvscope.latency.decoding import Step, fit_steps, steps
from kvscope.latency.file import read_profile
from kvscope.latency.profile import LatencyProfile
from kvscope.latency.targets import ServerTarget
from kvscope.serving.client import Endpoint
from tests.cli.shell import Streams
from tests.serving import fake_vllm
from tests.serving.fake import Behaviour, fake_server

TRUE = LatencyProfile("true", "", 8e-3, 1.2e-4, 6e-8)
ENGINE = CalibratedEngine("vLLM", "0.32.0", "a test", "tiny")


def ignore(amount: int) -> None:
    """Nobody watches."""


class Made:
    """A target whose times are those of a profile, with noise that only makes them longer."""

    outside_s: float | None = None

    def __init__(self, profile: LatencyProfile, noise: float = 0.0, fails_at: int = -1) -> None:
        self.profile, self.noise, self.fails_at = profile, noise, fails_at
        self.rng = np.random.default_rng(1)
        self.asked: list[Cell] = []

    def read(self, cell: Cell) -> TtftReading:
        """As `Measurable.read`."""
        self.asked.append(cell)
        if len(self.asked) == self.fails_at:
            raise EngineError("it died")
        longer = 1 + float(self.rng.exponential(self.noise)) if self.noise else 1.0
        return TtftReading(float(self.profile.ttft_s(*cell)) * longer, cell.cached)

    def request_s(self) -> float | None:
        """As `Measurable.request_s`."""
        return self.outside_s

    def step_s(self, step: Step) -> float:
        """As `Measurable.step_s`."""
        profile = self.profile
        assert profile.decode_base_s is not None
        request_s = profile.decode_request_s + profile.decode_context_token_s * step.context
        return profile.decode_base_s + step.batch * request_s


def times(profile: LatencyProfile) -> dict[Cell, list[float]]:
    return {cell: [float(profile.ttft_s(*cell))] * 3 for cell in grid(4096)}


def test_a_profile_is_recovered() -> None:
    """Exact times give back their own parameters, and intervals around them."""
    found = fit(times(TRUE))
    for name, value in found.parameters.items():
        assert value == pytest.approx(getattr(TRUE, name), rel=1e-6)
        low, high = found.intervals[name]
        assert low <= value <= high
    assert found.is_enough
    assert not found.linear_is_enough


def test_a_straight_line_is_enough_where_it_is() -> None:
    """No cost of pairs is found where there is none, and nothing falls below 0."""
    found = fit(times(LatencyProfile("line", "", 0.0, 1e-4)))
    assert found.linear_is_enough
    assert found.parameters["per_token_pair_s"] == pytest.approx(0, abs=1e-12)
    assert min(found.parameters.values()) >= 0


def test_a_floor_is_found_where_there_is_one() -> None:
    """Short prompts take as long as reading the weights; nothing is found without a floor."""
    floored = replace(TRUE, floor_s=0.03)
    found = fit(times(floored))
    assert found.parameters["floor_s"] == pytest.approx(0.03, rel=0.1)
    assert found.parameters["base_s"] == pytest.approx(TRUE.base_s, rel=0.1)
    assert found.is_enough
    assert "floor_s" not in fit(times(TRUE)).parameters


def calibrated(engine: Made) -> Calibration:
    """Calibrate an engine with few measurements, decoding too."""
    return calibrate(
        engine,
        ENGINE,
        longest=4096,
        steps=steps(4096, 10**6),
        rounds=2,
        advance=ignore,
        stop=Event(),
    )


def test_what_a_short_prompt_takes_beyond_a_step_is_outside_of_it() -> None:
    """A step of decoding reads the weights, as one with a short prompt does."""
    engine = Made(replace(TRUE, floor_s=0.03, decode_base_s=0.032, decode_request_s=1e-4))
    run = calibrated(engine)
    assert run.profile.request_s == pytest.approx(0.008 + 0.03 - 0.032, rel=0.1)
    slow = replace(engine.profile, decode_base_s=0.1)
    run = calibrated(Made(slow))
    assert run.profile.request_s == 0


@pytest.mark.parametrize(("told_s", "kept_s"), [(0.002, 0.002), (1.0, TRUE.base_s)])
def test_an_engine_that_tells_what_is_outside_of_its_steps_is_believed(
    told_s: float, kept_s: float
) -> None:
    """Up to what a request takes beside its tokens."""
    engine = Made(replace(TRUE, floor_s=0.03, decode_base_s=0.032, decode_request_s=1e-4))
    engine.outside_s = told_s
    run = calibrated(engine)
    assert run.profile.request_s == pytest.approx(kept_s, rel=0.1)


def test_disturbed_measurements_move_it_little() -> None:
    """With times that are up to twice as long now and then, predictions stay within 10 %."""
    made = measure(Made(TRUE, noise=0.05), grid(4096), rounds=5, advance=ignore, stop=Event())
    profile = LatencyProfile("made", "", **fit(made.ttft_s).parameters)
    for cell in grid(4096):
        assert float(profile.ttft_s(*cell)) == pytest.approx(float(TRUE.ttft_s(*cell)), rel=0.1)


def test_one_time_of_five_may_be_anything() -> None:
    """Whatever else the machine did just then: the median does not see it."""
    calm = {
        cell: [base * (1 + step / 100) for step in range(5)]
        for cell, (base, *_) in times(TRUE).items()
    }
    disturbed = {cell: [*some[:4], some[4] * 50] for cell, some in calm.items()}
    assert fit(disturbed).parameters == fit(calm).parameters


def test_intervals_are_of_95_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the parameters that were drawn, 95 in 100 lie within, as many below as above."""
    drawn: list[NDArray[np.float64]] = []
    least = module.least_squares

    def noted(terms: NDArray[np.float64], medians: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn.append(least(terms, medians))
        return drawn[-1]

    monkeypatch.setattr(module, "least_squares", noted)
    rng = np.random.default_rng(0)
    seen = {cell: (one[0] * rng.lognormal(0, 0.1, 5)).tolist() for cell, one in times(TRUE).items()}
    low, high = fit(seen).intervals["per_token_s"]
    values = np.array([one[1] for one in drawn[-module.DRAWS :]])
    assert len(values) == module.DRAWS
    assert np.mean(values < low) == pytest.approx(0.025, abs=0.002)
    assert np.mean(values > high) == pytest.approx(0.025, abs=0.002)


def test_an_engine_of_another_kind_is_said_to_be_off() -> None:
    """Steps instead of a curve: neither model is enough."""
    steps = {cell: [0.01 * (1 + cell.uncached // 1024) ** 3] for cell in grid(4096)}
    found = fit(steps)
    assert not found.is_enough
    assert abs(found.worst.off) > 0.1


def test_the_grid_tells_parameters_apart() -> None:
    """Prefixes are whole blocks of any usual size, and prompts no longer than asked."""
    for longest in (512, 1000, 4096, 131_072):
        cells = grid(longest)
        assert len(set(cells)) == len(cells)
        assert all(sum(cell) <= longest and cell.cached % 256 == 0 for cell in cells)
        assert Cell(longest, 0) in cells
        assert any(cell.cached for cell in cells)
    with pytest.raises(UsageError, match="too short"):
        grid(100)


def test_rounds_go_over_all_cells_in_changing_orders() -> None:
    """Each round has every cell once; the warm-up is not counted."""
    made, cells = Made(TRUE), grid(1024)
    found = measure(made, cells, rounds=3, seed=5, advance=ignore, stop=Event())
    rounds = [made.asked[3 + at * len(cells) : 3 + (at + 1) * len(cells)] for at in range(3)]
    assert all(sorted(one) == sorted(cells) for one in rounds)
    assert rounds[0] != rounds[1]
    assert found.count == found.planned == 3 * len(cells)


def test_what_was_measured_before_the_end_is_kept(tmp_path: Path) -> None:
    """A target that dies in the third round leaves a profile, which says so and reads back."""
    cells = grid(1024)
    found = calibrate(
        Made(TRUE, fails_at=3 + 2 * len(cells) + 2),
        ENGINE,
        longest=1024,
        rounds=5,
        advance=ignore,
        stop=Event(),
    )
    assert (found.run.ended, found.run.count) == ("it died", 2 * len(cells) + 1)
    assert f"{found.run.count} of {found.run.planned} measurements" in found.profile.source
    write(tmp_path / "latency.toml", found)
    assert read_profile(tmp_path / "latency.toml") == found.profile


def test_steps_of_decoding_are_recovered(tmp_path: Path) -> None:
    """Exact times give back their own parameters, in the profile and in its file."""
    known = replace(TRUE, decode_base_s=6e-3, decode_request_s=2e-5, decode_context_token_s=4e-8)
    found = calibrate(
        Made(known),
        ENGINE,
        longest=4096,
        steps=steps(4096, 100_000),
        rounds=2,
        advance=ignore,
        stop=Event(),
    )
    decoding = found.fit.decoding
    assert decoding is not None
    assert abs(decoding.worst.off) < 1e-6
    assert {name: getattr(known, name) for name in decoding.parameters} == pytest.approx(
        dict(decoding.parameters)
    )
    write(tmp_path / "latency.toml", found)
    assert read_profile(tmp_path / "latency.toml") == found.profile


def test_steps_fit_in_the_memory_that_there_is() -> None:
    """With room for their own tokens; too few of them give no fit."""
    assert steps(4096, 0) == ()
    assert set(steps(4096, 5_000)) == {(1, 256), (1, 2048), (8, 256)}
    assert {step.batch for step in steps(4096, 1 << 20, most=32)} == {1, 8, 32}
    assert fit_steps({}) is None
    assert fit_steps({Step(1, 256): [0.01], Step(1, 2048): [0.02]}) is None


def test_too_little_is_refused() -> None:
    """A target that dies at once, one that hardly measures, one whose prompts cost nothing."""
    with pytest.raises(EngineError, match="it died"):
        measure(Made(TRUE, fails_at=1), grid(1024), rounds=1, advance=ignore, stop=Event())
    with pytest.raises(EngineError, match="too few"):
        fit({Cell(64, 0): [1.0], Cell(128, 0): [1.0], Cell(256, 0): []})
    with pytest.raises(EngineError, match="longer prompts take no longer"):
        fit({cell: [1.0] for cell in grid(1024)})


ROOT = str(Path(fake_vllm.__file__).parents[2])
SHORT = ["--max-tokens", "512", "--repeats", "2"]


def test_a_running_server_is_measured(tmp_path: Path, capsys: Streams) -> None:
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
    """What more outputs take, by requests in a step; the fake serves them one after the other.

    A busy machine may add to the time without more outputs, which is subtracted.
    """
    with fake_server(Behaviour(base_s=0.01, per_output_s=0.005)) as url:
        target = ServerTarget(Endpoint(url), "fake", seed=1)
        alone, both = (target.step_s(Step(batch, 256)) for batch in (1, 2))
    assert 0.003 < alone < 0.05
    assert alone < both


def test_a_server_without_a_cache_is_said_to_be_one(capsys: Streams) -> None:
    """Exit code 5, and what to turn on."""
    with fake_server(Behaviour(caches=False, tells_blocks=False)) as url:
        assert run(["calibrate", "--url", url, *SHORT, "--output", "-"]) == 5
    assert "--enable-prefix-caching" in capsys.readouterr().err


def test_a_server_is_measured_again(capsys: Streams) -> None:
    """With tokens that it has not seen, as it keeps those of the first time."""
    with fake_server(Behaviour(per_token_s=1e-5, resets=False, tells_blocks=False)) as url:
        for _ in range(2):
            assert run(["calibrate", "--url", url, *SHORT, "--output", "-", "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            assert (told["cached_tokens_checked"], told["not_cached"]) == (True, [])


def test_a_server_that_does_not_tell_is_believed(capsys: Streams) -> None:
    """With a word that nobody checked."""
    with fake_server(Behaviour(tells_hits=False, per_token_s=1e-5, tells_blocks=False)) as url:
        assert run(["calibrate", "--url", url, *SHORT, "--output", "-"]) == 0
    assert "Not checked: the server does not report" in " ".join(capsys.readouterr().out.split())


def test_nobody_there(capsys: Streams) -> None:
    """Exit code 5 and one line."""
    assert run(["calibrate", "--url", "http://127.0.0.1:9"]) == 5
    assert "no answer" in capsys.readouterr().err


def test_an_engine_of_its_own_is_started_and_ended(
    tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
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
