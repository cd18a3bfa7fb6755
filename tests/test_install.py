"""The wheel and the source distribution hold all of kvscope and install into empty environments."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kvscope
from tests.long import long

ROOT = Path(__file__).resolve().parent.parent
DATA_FOLDERS = ("queries", "dashboard", "sample_traces", "grafana")
START_S = 60
SHIPPED = os.environ.get("KVSCOPE_WHEEL_KERNELS")  # `make test-install` has compiled them
MODEL = ("--model", "qwen2-7b")

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
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
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


@pytest.mark.install
def test_version_without_an_installation(distributions: dict[str, Path], tmp_path: Path) -> None:
    """uvx runs the wheel's command, whose version is that of the file's name."""
    uvx = (Path(sys.executable).with_name("uvx"), "--quiet", "--no-config")
    where = ("--constraints", newest_constraints(tmp_path), "--from", distributions["wheel"])
    own = {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_TOOL_DIR": str(tmp_path / "tools")}
    said = run(*uvx, *where, "kvscope", "--version", cwd=tmp_path, **own)
    assert said.split() == ["kvscope", kvscope.__version__]


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
    simulated = document("simulate", "to-c", "--policies", "lru,tlru", *sizes)
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
