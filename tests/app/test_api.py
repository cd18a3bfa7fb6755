"""The Python API: the command line's documents and words for mistakes; nothing loads early."""

from __future__ import annotations

import gzip
import inspect
import json
import logging
import re
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import kvscope
from docs.generate import STUB, stub
from kvscope import api
from kvscope.app.options import (
    Reading,
    parsed,
)
from kvscope.core.errors import UsageError
from kvscope.core.records import defaults
from kvscope.tuning.file import read_recommendation
from kvscope.usecases import USE_CASES
from kvscope.usecases.analyze import AnalyzeOptions
from kvscope.usecases.fleet import FleetOptions
from kvscope.usecases.simulate import SimulateOptions
from kvscope.usecases.tune import TuneOptions
from tests.cli.replayed import write_trace
from tests.cli.shell import Streams, python, streams_of
from tests.golden.documents import differences
from tests.golden.samples import write_beginnings

ROOT = Path(__file__).parents[2]
REQUESTS = 800  # of the sample
RESULTS = {
    "analyze": ("--model", "llama3-8b", "--hbm", "80GiB", "--capacity", "1GiB,2GiB"),
    "explain": ("--capacity-blocks", "1k"),
    "fit": ("--window", "10m"),
    "retention": ("--model", "llama3-8b"),
    "simulate": ("--policy", "lru,tlru", "--capacity-blocks", "1k", "--slo", "200ms"),
    "tune": ("--slo", "200ms", "--policy", "tlru", "--capacity-blocks", "2000", "--output", "-"),
    "fleet": (
        *("--slo", "200ms", "--capacity-blocks", "1000"),
        *("--router", "round-robin,session", "--replicas", "1..2"),
    ),
    "tune --fleet --compare-tiers": (
        *("--slo", "10s", "--gpu", "l4", "--model", "llama3-8b", "--num-gpu-blocks", "1000"),
        *("--router", "round-robin,session", "--policy", "wa", "--tier-size", "1GiB"),
        *("--offload", "vllm@0.33:eviction_policy=lru", "--output", "-"),
    ),
}
FUNCTIONS = {
    "fleet": "simulate_fleet",
    "retention": "advise_retention",
}
"""Functions whose name is not their command's."""
VARYING = {"created_at"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the first requests of a sample."""
    path = tmp_path_factory.mktemp("sample") / "birth-death.jsonl"
    with gzip.open(ROOT / "sample_traces" / "birth-death.jsonl.gz", "rt") as lines:
        path.write_text("".join(islice(lines, REQUESTS)))
    return str(path)


@pytest.fixture(scope="module")
def trace(sample: str) -> Iterator[kvscope.OpenTrace]:
    """Yield them, read once."""
    with kvscope.open_trace(sample) as opened:
        yield opened


def _arguments(options: tuple[str, ...]) -> dict[str, str]:
    pairs = zip(options[::2], options[1::2], strict=True)
    names = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    return {name: value for name, value in names.items() if name != "output"}


def _without(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _without(value) for key, value in document.items() if key not in VARYING}
    return [_without(part) for part in document] if isinstance(document, list) else document


@pytest.mark.parametrize("command", RESULTS)
def test_documents_are_those_of_the_command_line(
    trace: kvscope.OpenTrace, sample: str, command: str, capsys: Streams
) -> None:
    """Each function gives the document of its command, a frame, a figure and a notebook's HTML."""
    name, *flags = command.split(" --")
    asked = {**_arguments(RESULTS[command]), **{flag.replace("-", "_"): True for flag in flags}}
    result = getattr(kvscope, FUNCTIONS.get(name, name))(trace, **asked)
    options = (*RESULTS[command], "--db", ":memory:", "--json")
    printed = json.loads(streams_of(capsys, *command.split(), sample, *options).out)
    # Sums over columns are taken in parallel, so their last digit may differ.
    assert list(differences(_without(result.to_dict()), _without(printed), 1e-12)) == []
    frame = result.to_polars()
    assert isinstance(frame, pl.DataFrame)
    assert len(frame)
    assert result.figure().layout.title.text
    html = result._repr_html_()
    assert "<table>" in html
    assert "<script" not in html
    assert repr(result) == f"<{type(result).__name__} of birth-death>"


def test_what_recommends_a_change_is_kept(trace: kvscope.OpenTrace, tmp_path: Path) -> None:
    """The file has the verdict; one that recommends a change stays, unless by force."""
    result = kvscope.tune_tiers(
        trace, **_arguments(RESULTS["tune --fleet --compare-tiers"]) | {"router": None}
    )
    path = tmp_path / "recommendation.toml"
    result.save(path)
    assert read_recommendation(path).verdict == result.verdict != "switch"
    for mark in ("# Written by kvscope 0.2.0.\n", ""):
        path.write_text(f'{mark}verdict = "switch"', encoding="utf-8")
        with nullcontext() if mark else pytest.raises(UsageError, match="kvscope wrote"):
            result.save(path)
        assert path.read_text(encoding="utf-8") == f'{mark}verdict = "switch"'
    result.save(path, force=True)
    assert read_recommendation(path).verdict == result.verdict


def test_frames_have_a_column_for_each_nested_field(trace: kvscope.OpenTrace) -> None:
    """Numbers equal the document's; an unknown table is refused with the known ones."""
    result = kvscope.simulate(trace, policy=["lru", "TLRU"], capacity_blocks=1000)
    frame, rows = result.to_polars(), result.to_dict()["results"]
    assert frame["policy"].to_list() == ["lru", "tlru"]
    assert frame["ttft_ms_p95"].to_list() == [row["ttft_ms"]["p95"] for row in rows]
    with pytest.raises(kvscope.UsageError, match="table: no table 'x'; name one of results"):
        result.to_polars("x")
    with pytest.raises(kvscope.UsageError, match="there is no section 'x'"):
        result.figure("x")


def test_values_are_texts_or_numbers() -> None:
    """Both ways to write an option mean the same."""
    written = parsed(AnalyzeOptions, {"hbm": "80GiB", "capacity": ["1GiB", "2GiB"], "warmup": "5%"})
    assert written == AnalyzeOptions(hbm=80 << 30, capacity=(1 << 30, 2 << 30), warmup=0.05)
    assert parsed(FleetOptions, {"slo": "1s", "replicas": 2}).replicas == (2,)
    assert parsed(AnalyzeOptions, {"capacity": 7, "kv_dtype": "FP8"}) == AnalyzeOptions(
        capacity=(7,), kv_dtype="fp8"
    )
    assert parsed(TuneOptions, {"slo": 0.2, "percentile": "p99"}).percentile == 0.99
    assert parsed(SimulateOptions, {"policy": ["lru", "wa"]}).policy == "lru,wa"
    assert parsed(SimulateOptions, {"param": ["a.b=1"]}).param == ("a.b=1",)


@pytest.mark.parametrize(
    ("function", "options"), [(kvscope.open_trace, Reading), (kvscope.tune, TuneOptions)]
)
def test_arguments_are_the_options(function: Any, options: Any) -> None:
    """An option of a command is an argument of its function, with the same default."""
    arguments = dict(inspect.signature(function).parameters)
    names = {**dict.fromkeys(options.__struct_fields__), **defaults(options)}
    assert set(names) <= set(arguments)
    assert set(arguments) - set(names) <= {"trace", "source", "left", "right", "db"}
    for name in set(names) - {"slo"}:
        assert arguments[name].default == names[name], name


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: kvscope.analyze("nothing.jsonl"), "nothing.jsonl: neither a file nor"),
        (lambda: kvscope.analyze("x", hbm="3"), "hbm: '3' is not a size"),
        (lambda: kvscope.analyze("x", hbm="3GiB"), "hbm: needs a model; name one with model"),
        (lambda: kvscope.analyze("x", outputs="no"), "outputs: 'no' is not one of carried"),
        (lambda: kvscope.diff("x", "y", hbm="3GiB"), "hbm: needs a model; name one with model"),
        (lambda: kvscope.simulate("x", policy="lur"), "policy: unknown policy 'lur'"),
        (
            lambda: kvscope.tune("x", slo=1, percentile="p9", max_violations=0.1),
            "percentile, max_violations: both state the target",
        ),
        (
            lambda: kvscope.simulate("x", gpu="h100", model="llama3-8b", replicas=2),
            "replicas 2: one engine is replayed",
        ),
    ],
)
def test_mistakes_name_arguments(call: Any, said: str) -> None:
    """What is refused is named as it is written in Python."""
    with pytest.raises(kvscope.KvscopeError, match=re.escape(said)):
        call()


@pytest.mark.parametrize("function", [kvscope.analyze, kvscope.simulate, kvscope.tune])
def test_an_unknown_argument_is_refused(function: Any) -> None:
    """Arguments of a deployment are collected, others are not."""
    options = {"slo": 1} if function is kvscope.tune else {}
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpus'"):
        function("x", gpus="h100", **options)


def test_a_store_keeps_traces_and_notes_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With `db` a trace has a name later on; what the command line notes is logged."""
    db = str(tmp_path / "k.duckdb")
    with kvscope.open_trace(write_trace(tmp_path), db=db, name="mine") as opened:
        assert opened.to_dict()["requests"] == 3
    with caplog.at_level(logging.INFO, "kvscope"):
        assert kvscope.analyze(None, db=db).to_dict()["trace"]["name"] == "mine"
    assert "working on 'mine'" in caplog.text
    result = kvscope.analyze("mine", db=db)
    result.save_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_importing_loads_nothing() -> None:
    """`import kvscope` loads no package but its own; every name of the API is there."""
    heavy = ["numpy", "duckdb", "polars", "plotly", "numba", "msgspec", "typer", "kvscope.api"]
    done = python(
        f"import sys, kvscope; print([m for m in {heavy} if m in sys.modules]);"
        "print(all(hasattr(kvscope, name) for name in kvscope.__all__))"
    )
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
    derived = {name for entry in USE_CASES.values() for name in (entry.function, entry.returns)}
    assert set(kvscope.__all__) == {*api.__all__, *derived, "__version__"}
    assert dir(kvscope) == sorted(kvscope.__all__)


def test_the_stub_is_current() -> None:
    """Type checkers and editors see the arguments that the functions have."""
    assert STUB.read_text(encoding="utf-8") == stub(), "run `make docs`"


@pytest.fixture
def beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the first requests of the samples that the docs read."""
    monkeypatch.chdir(tmp_path)
    write_beginnings(tmp_path / "sample_traces", 500)
    return tmp_path


def test_the_notebook_runs(beginnings: Path) -> None:
    """docs/notebook.py goes from a trace to a recommendation that kvscope reads."""
    cells = (ROOT / "docs" / "notebook.py").read_text(encoding="utf-8")
    exec(compile(cells, "notebook.py", "exec"), {"__name__": "notebook"})  # noqa: S102  (ours)
    assert read_recommendation(beginnings / "recommendation.toml").target.slo_s == 0.2


def test_the_page_runs(beginnings: Path) -> None:
    """The first example of docs/python.md runs as it stands."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    exec(compile(example, "python.md", "exec"), {})  # noqa: S102  (our own page)
    assert (beginnings / "recommendation.toml").exists()
