"""The wheel and the source distribution hold all of kvscope and install into empty environments."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.cli import app
from tests.golden.documents import constant, differences
from tests.long import long

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DATA_FOLDERS = ("queries", "dashboard", "sample_traces", "grafana")
START_S = 60
SAMPLE = ROOT / "sample_traces" / "to-c.jsonl.gz"
SHIPPED = os.environ.get("KVSCOPE_WHEEL_KERNELS")  # `make test-install` has compiled them
MODEL = ("--model", "qwen2-7b")
NAMED = [re.fullmatch(r".* :: (3\.\d+)", each) for each in PROJECT["classifiers"]]
PYTHONS = [each[1] for each in NAMED if each]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command to its end and return its stdout; its stderr is the failure's message."""
    own = {"PYTHONPATH", "KVSCOPE_CACHE_DIR"}
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the source distribution of this checkout, and the wheel from it."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def uvx(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str | Path]:
    """Return the command that runs a program of a distribution, from an empty cache."""
    program = (Path(sys.executable).with_name("uvx"), "--quiet", "--no-config")
    return (*program, "--cache-dir", tmp_path_factory.mktemp("uv"))


def built(checkout: Path, folder: Path) -> dict[str, Path]:
    """Build both distributions of a checkout in a folder."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "source": source}


def files_below(folder: str) -> set[str]:
    """Return the files of one of the checkout's folders, without bytecode."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if path.suffix != ".pyc"}


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_data_is_packed_below_the_package(distributions: dict[str, Path], folder: str) -> None:
    """Every file of a data folder is in the wheel, under kvscope/_packed/, and nothing else is."""
    packed = f"kvscope/_packed/{folder}/"
    names = zipfile.ZipFile(distributions["wheel"]).namelist()
    expected = {f"kvscope/_packed/{name}" for name in files_below(folder)}
    assert {name for name in names if name.startswith(packed)} == expected


def test_the_wheel_has_one_package(distributions: dict[str, Path]) -> None:
    """It brings kvscope and its metadata: no top-level `queries` or `tests`."""
    names = zipfile.ZipFile(distributions["wheel"]).namelist()
    tops = {name.split("/", maxsplit=1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvscope"}


def test_a_build_can_be_repeated(distributions: dict[str, Path], tmp_path: Path) -> None:
    """From what the source distribution holds, elsewhere and later, the same bytes."""
    with tarfile.open(distributions["source"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (checkout,) = tmp_path.iterdir()
    for path in checkout.rglob("*"):
        os.utime(path)
    again = built(checkout, tmp_path)
    assert {kind: path.read_bytes() for kind, path in again.items()} == {
        kind: path.read_bytes() for kind, path in distributions.items()
    }


def test_all_that_make_reads_is_in_the_source_distribution(distributions: dict[str, Path]) -> None:
    """The pins of each environment among them."""
    with tarfile.open(distributions["source"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {path.name for path in ROOT.glob("constraints*.txt")} <= names
    assert {"Makefile", "deploy/Dockerfile", "skills/kvscope/SKILL.md"} <= names


@pytest.mark.install
def test_an_index_takes_the_metadata(
    distributions: dict[str, Path], uvx: Sequence[str | Path], tmp_path: Path
) -> None:
    """Twine finds nothing wrong, and the README is shown as it is meant."""
    twine = (*uvx, "--from", "twine==7.0.0", "twine", "check", "--strict")
    assert run(*twine, *distributions.values(), cwd=tmp_path).count("PASSED") == 2


def pinned(name: str) -> dict[str, str]:
    """Return the lines of a file of pins, by distribution."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return {line.partition("==")[0]: line for line in lines if "==" in line}


@pytest.fixture(scope="module", params=["wheel", long("source")])
def installed(
    request: pytest.FixtureRequest,
    distributions: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Make an environment with a distribution, its dashboard extra and what they need, by pipx.

    The source distribution is what the wheel was built from.
    """
    folder = tmp_path_factory.mktemp("installed")
    pip = f"--quiet --no-compile --constraint {newest_constraints(folder)}"
    where = f"kvscope[dashboard] @ {distributions[request.param].as_uri()}"
    pipx = (sys.executable, "-m", "pipx", "install", "--pip-args", pip)
    run(*pipx, where, cwd=folder, PIPX_HOME=str(folder), PIPX_BIN_DIR=str(folder / "bin"))
    assert "analyze" in run(folder / "bin" / "kvscope", "--help", cwd=folder)
    return folder / "venvs" / "kvscope"


def newest_constraints(folder: Path) -> Path:
    """Write the versions of an installation that has numba's newest one, and return the file."""
    pins = pinned("constraints.txt") | pinned("constraints-newest.txt")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(pins.values()), encoding="utf-8")
    return constraints


@pytest.mark.install
def test_own_files_are_used(installed: Path, tmp_path: Path) -> None:
    """The installed package finds its own data, and no file of the checkout."""
    code = (
        "import kvscope; print(kvscope.__file__)\n"
        "from kvscope.core.files import data_folder\n"
        f"for name in {DATA_FOLDERS!r}: print(data_folder(name))"
    )
    package, *folders = map(Path, run(installed / "bin/python", "-c", code, cwd=tmp_path).split())
    assert package.is_relative_to(installed)
    assert folders == [package.parent / "_packed" / name for name in DATA_FOLDERS]


def python_of(version: str) -> str | None:
    """Return an interpreter of a version, of the path or of pyenv, None for none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    known = (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python3"))
    for each in filter(None, known):
        done = subprocess.run((each, "-c", code), capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return str(each)
    return None


@pytest.mark.install
@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_gives_the_same(
    version: str,
    distributions: dict[str, Path],
    uvx: Sequence[str | Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """uvx runs the wheel with each Python that the metadata names and this machine has."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    where = ("--constraints", newest_constraints(tmp_path), "--from", distributions["wheel"])
    command = (*uvx, "--python", python, *where, "kvscope")
    assert run(*command, "--version", cwd=tmp_path).split() == ["kvscope", kvscope.__version__]
    sizes = ("--policy", "lru,tlru", "--capacity-blocks", "2000", "--slo", "200ms")
    for name, *options in (("analyze",), ("simulate", *sizes)):
        words = [name, str(SAMPLE), *options, "--db", ":memory:", "--json"]
        answer = run(*command, *words, cwd=tmp_path, KVSCOPE_CACHE_DIR=str(tmp_path / "kernels"))
        assert app.run(words) == 0
        own = capsys.readouterr().out
        assert not [*differences(*(constant(json.loads(each)) for each in (own, answer)))]


@pytest.mark.install
@pytest.mark.skipif(not SHIPPED, reason="the wheel has compiled kernels in `make test-install`")
def test_commands_compile_nothing(installed: Path, tmp_path: Path) -> None:
    """The first commands on a packed sample, from an empty folder: kernels come with the wheel."""
    command, cache = installed / "bin/kvscope", tmp_path / "cache"

    def document(*words: str | Path) -> Any:
        printed = run(command, *words, "--json", cwd=tmp_path, KVSCOPE_CACHE_DIR=str(cache))
        return json.loads(printed)

    analysis = document("analyze", sample(installed))
    assert (analysis["command"], analysis["schema"]) == ("analyze", 1)
    assert analysis["trace"]["format"] == "bailian"
    assert analysis["trace"]["bad_lines"] == 0
    rates = [rate["ideal"] for rate in analysis["hit_rates"]]
    assert rates
    assert all(0 < rate < 1 for rate in rates)
    by_capacity = [point["token_hit_rate"] for point in analysis["curve"]]
    assert by_capacity == sorted(by_capacity)
    assert sum(row["requests"] for row in analysis["categories"]) == analysis["trace"]["requests"]
    sizes = ("--capacity-blocks", "2000", "--slo", "200ms")
    simulated = document("simulate", "to-c", "--policy", "lru,tlru", *sizes)
    hits = {row["policy"]: row["block_hit_rate"] for row in simulated["results"]}
    assert hits.keys() == {"lru", "tlru"}
    assert all(0 < rate <= rates[0] for rate in hits.values())
    assert not [*cache.rglob("*.kernel")]
    slo = ("--slo", "400ms", "--output", tmp_path / "recommendation.toml")
    assert document("tune", "to-c", *MODEL, "--capacity", "10GiB", *slo)["command"] == "tune"


@pytest.mark.install
def test_another_cpu_compiles_its_own(installed: Path, tmp_path: Path) -> None:
    """Where features of the kernels' CPU are lacking, or none came with the distribution."""
    cache = tmp_path / "cache"
    other = {"NUMBA_CPU_NAME": "generic", "KVSCOPE_CACHE_DIR": str(cache)}
    run(installed / "bin/kvscope", "analyze", sample(installed), cwd=tmp_path, **other)
    assert [*cache.rglob("*.kernel")]


def sample(installed: Path) -> Path:
    """Return a packed sample trace."""
    (found,) = installed.glob("lib/python*/site-packages/kvscope/_packed/sample_traces/to-c.*")
    return found


@pytest.mark.install
def test_the_dashboard_answers(installed: Path, tmp_path: Path) -> None:
    """Its server starts from the installed files and is healthy."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ("dashboard", "--db", tmp_path / "store.duckdb", "--port", str(port))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen([installed / "bin/kvscope", *words], cwd=tmp_path, env=inherited)
    try:
        assert answer(f"http://127.0.0.1:{port}/_stcore/health") == b"ok"
    finally:
        server.terminate()
        server.wait()


def answer(address: str) -> bytes:
    """Return what a server answers once it does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_S
    while True:
        try:
            with opener.open(address, timeout=5) as response:
                content: bytes = response.read()
                return content
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
