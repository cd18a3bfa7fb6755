"""Latency profiles, and what can be measured."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.core.errors import EngineError, InputError, UsageError
from kvscope.latency.calibration import Cell
from kvscope.latency.file import load_profile, read_profile, write_profile
from kvscope.latency.profile import DEFAULT_PROFILE, PRESETS, LatencyProfile
from kvscope.latency.targets import TorchTarget
from kvscope.serving.interpreter import Interpreter

TIMES = st.floats(0, 1, allow_subnormal=False)
PROFILES = st.builds(
    LatencyProfile,
    name=st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])),
    source=st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    base_s=st.floats(0.1, 1),
    per_token_s=st.floats(1e-6, 1e-2),
    per_token_pair_s=st.one_of(st.just(0.0), st.floats(1e-12, 1e-6)),
    intervals=st.dictionaries(
        st.sampled_from(["base_s", "per_token_s", "per_token_pair_s"]), st.tuples(TIMES, TIMES)
    ),
    floor_s=st.one_of(st.just(0.0), TIMES),
    request_s=st.floats(0, 0.1),
    decode_base_s=st.one_of(st.none(), TIMES),
    decode_request_s=TIMES,
    decode_context_token_s=TIMES,
)


def test_every_token_attends_to_those_before_it() -> None:
    """γ counts pairs: u·c with what was cached, u²/2 among what is computed."""
    profile = LatencyProfile("p", "made", base_s=1.0, per_token_s=0.1, per_token_pair_s=0.01)
    found = profile.ttft_s(np.array([0, 10, 10]), np.array([50, 0, 20]))
    assert found == pytest.approx([1.0, 1 + 1 + 0.5, 1 + 1 + 0.5 + 2])
    assert float(profile.ttft_s(10, 20)) == found[2]


@given(PROFILES, st.floats(0, 10))
def test_xi_tokens_is_the_largest_that_meets_the_threshold(
    profile: LatencyProfile, xi_s: float
) -> None:
    """One token more would break it; where nothing meets it there are none."""
    xi = profile.xi_tokens(xi_s)
    assert float(profile.ttft_s(xi + 1, 0)) > xi_s
    assert xi == 0 or float(profile.ttft_s(xi, 0)) <= xi_s


def test_short_prompts_take_the_floor() -> None:
    """The weights are read whatever the prompt: α·u is at least the floor, γ comes on top."""
    profile = LatencyProfile("p", "made", 1.0, 0.1, 0.01, floor_s=2.0)
    times = profile.ttft_s(np.array([0, 10, 20, 30]), np.array([0, 5, 0, 0]))
    assert times == pytest.approx([3.0, 3 + 1, 3 + 2, 1 + 3 + 4.5])
    assert profile.xi_tokens(2.9) == 0
    assert profile.xi_tokens(3.0 + 0.005 * 7**2) == 7
    twice = profile.scaled(2)
    assert (twice.base_s, twice.floor_s, twice.decode_base_s) == (2.0, 4.0, None)
    assert twice.ttft_s(30, 9) == pytest.approx(2 * profile.ttft_s(30, 9))


def test_the_default_is_the_papers_setting() -> None:
    """200 ms, the paper's SLO, and both published points, on the line through them."""
    profile = load_profile()
    assert profile.name == DEFAULT_PROFILE
    assert profile.xi_tokens(0.2) == 3_147
    assert profile.ttft_s(np.array([128, 2_048]), 0) == pytest.approx([0.016, 0.133])


def test_presets_are_the_published_numbers() -> None:
    """Each says its source, and gives back what was published there."""
    for profile in PRESETS.values():
        assert len(profile.source) > 40
    assert float(PRESETS["llama2-70b-4xa100"].ttft_s(2_048, 0)) == pytest.approx(0.377)
    assert float(PRESETS["llama2-7b-h100-fp8"].ttft_s(128, 0)) == pytest.approx(0.007)
    measured = PRESETS["small-llama-cpu"]
    assert float(measured.ttft_s(1_000, 0)) == pytest.approx(0.0081 + 0.1226 + 0.0310)
    slower = measured.ttft_s(1_024, 2_048) / measured.ttft_s(1_024, 0)
    assert float(slower) == pytest.approx(1.7, abs=0.1)  # what was measured, and not fitted


@given(PROFILES)
def test_a_written_profile_is_read_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, profile: LatencyProfile
) -> None:
    """Seconds, milliseconds and back: the very same floats, names and sources."""
    path = tmp_path_factory.mktemp("profile") / "latency.toml"
    write_profile(path, profile)
    assert read_profile(path) == profile
    assert load_profile(str(path)) == profile


def test_an_unknown_name_gets_the_nearest() -> None:
    """A typing error is answered by what was meant."""
    with pytest.raises(UsageError, match="did you mean llama2-7b-a100"):
        load_profile("llama-7b-a100")
    with pytest.raises(UsageError, match=r"presets: llama2-7b-a100, .*kvscope calibrate"):
        load_profile("???")


GOOD = 'schema = 1\nname = "n"\nsource = "s"\nbase_ms = 8\nper_token_ms = 0.5\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("per_token_ms", "per_tokn_ms"), "per_tokn_ms: .*mean 'per_token_ms'"),
        (GOOD.replace("base_ms = 8\n", ""), "base_ms: missing; `kvscope calibrate` writes"),
        (GOOD.replace("= 8", '= "8"'), "base_ms: '8' is not a time in milliseconds >= 0; "),
        (GOOD.replace("= 8", "= true"), "base_ms: true is not a time in milliseconds"),
        (GOOD.replace("= 8", "= -8"), "base_ms: -8 is not a time in milliseconds >= 0"),
        (GOOD.replace("= 8", "= inf"), "base_ms: inf is not a finite number >= 0"),
        (GOOD.replace("= 0.5", "= 0"), "tokens cost no time"),
        (GOOD.replace("schema = 1", "schema = 2"), "schema: 2, .*upgrade"),
        (GOOD.replace('"n"', "7"), "name: 7 is not a string"),
        (GOOD + "[intervals]\nbase = [1, 2]\n", "intervals.base: unknown key"),
        (
            GOOD + "[intervals]\nbase_ms = [1]\n",
            r"base_ms: \[1\] is not an array of length 2",
        ),
        (GOOD + "intervals = 1\n", "intervals: 1 is not a table"),
        ("schema == 1", r"not a TOML file: .*line 1"),
        ("\udcff", "not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """File, key, value and remedy in one line."""
    path = tmp_path / "latency.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message) as refused:
        load_profile(str(path))
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_an_old_file_is_read() -> None:
    """As the first version wrote it, every time to the last bit."""
    path = Path(__file__).parents[1] / "written_before" / "latency.toml"
    assert read_profile(path) == LatencyProfile(
        "my engine",
        "measured",
        8.2e-3,
        0.0481e-3,
        2.1e-9,
        intervals={"base_s": (0.0079, 0.0085), "per_token_pair_s": (0.0, 3.3e-9)},
    )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A path that ends in .toml is a file, there or not."""
    with pytest.raises(InputError, match="No such file"):
        load_profile(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_times_are_refused(value: float) -> None:
    """No engine takes them, and no threshold is endless."""
    with pytest.raises(UsageError, match="base_s"):
        LatencyProfile("p", "made", base_s=value, per_token_s=1.0)
    with pytest.raises(UsageError, match="floor_s"):
        LatencyProfile("p", "made", base_s=1.0, per_token_s=1.0, floor_s=value)
    with pytest.raises(UsageError, match="decode_base_s"):
        LatencyProfile("p", "made", base_s=1.0, per_token_s=1.0, decode_base_s=value)
    if value != -1.0:
        with pytest.raises(UsageError, match="no latency threshold"):
            load_profile().xi_tokens(value)


def test_a_requests_overhead_is_part_of_its_base() -> None:
    """What passes outside of the engine's steps cannot be more than the base."""
    with pytest.raises(UsageError, match=r"request_s is 2\.0; it is a part of base_s"):
        LatencyProfile("p", "made", base_s=1.0, per_token_s=1.0, request_s=2.0)


def target(folder: Path, code: str, start_s: float = 30.0, timeout_s: float = 30.0) -> TorchTarget:
    """Return a target whose interpreter runs this code instead."""
    script = folder / "python"
    body = folder / "decoder.py"
    body.write_text("import sys, time, json\n" + code)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{body}"\n')
    script.chmod(0o755)
    has = Interpreter(str(script), None, None, "2", "cpu", "a test")
    return TorchTarget(has, folder / "config.json", None, start_s=start_s, timeout_s=timeout_s)


def test_a_decoder_that_talks_does_not_block(tmp_path: Path) -> None:
    """Half a megabyte of warnings before each answer: more than any pipe holds."""
    code = """
def answer(what):
    sys.stderr.write("a warning\\n" * 50_000)
    print(json.dumps(what), flush=True)
answer({"device": "cpu"})
for line in sys.stdin:
    answer({"seconds": sum(json.loads(line).values()) / 1000})
"""
    with target(tmp_path, code) as decoder:
        assert decoder.description == {"device": "cpu"}
        assert decoder.read(Cell(64, 256)).ttft_s == 0.32
        assert decoder.read(Cell(64, 0)).ttft_s == 0.064


@pytest.mark.parametrize(("ready", "limits"), [(False, (0.5, 30.0)), (True, (30.0, 0.5))])
def test_a_decoder_that_hangs_is_given_up(
    tmp_path: Path, ready: bool, limits: tuple[float, float]
) -> None:
    """At the start and at a cell, after the time that each of them has."""
    code = f"print('{{}}', flush=True) if {ready} else None; time.sleep(600)"
    before = time.monotonic()
    with (
        pytest.raises(EngineError, match=r"torch: no answer within 0\.5 s; .*--timeout"),
        target(tmp_path, code, *limits) as decoder,
    ):
        decoder.read(Cell(64, 0))
    assert time.monotonic() - before < 20


def test_the_last_line_says_why_it_died(tmp_path: Path) -> None:
    """As the process wrote it."""
    code = "sys.stderr.write('RuntimeError: out of memory\\n'); sys.exit(3)"
    with pytest.raises(EngineError, match="torch: RuntimeError: out of memory"):
        target(tmp_path, code).__enter__()
    with pytest.raises(EngineError, match="ended with status 3"):
        target(tmp_path, "sys.exit(3)").__enter__()
