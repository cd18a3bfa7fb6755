"""The wheel holds all that kvscope needs, and runs where there is no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA_FOLDERS = ("queries", "dashboard", "sample_traces")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command to its end and return its stdout; its stderr is the failure's message."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without downloading a build environment."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    run(*build, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which borrows its dependencies from this one.

    A path in a .pth file is appended to sys.path, and .pth files below it are not read: an
    editable install of the checkout stays invisible.
    """
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n", encoding="utf-8")
    return folder


def files_below(folder: str) -> set[str]:
    """The files of one of the checkout's folders, bytecode left out."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix != ".pyc"}


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_data_is_packed_below_the_package(wheel: Path, folder: str) -> None:
    """Every file of a data folder is in the wheel, under kvscope/_packed/, and nothing else is."""
    packed = f"kvscope/_packed/{folder}/"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(packed)}
    assert names == {f"kvscope/_packed/{name}" for name in files_below(folder)}


def test_nothing_lies_beside_the_package(wheel: Path) -> None:
    """The wheel brings one package and its metadata: no top-level `queries` or `tests`."""
    tops = {name.split("/", maxsplit=1)[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvscope"}


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


def test_version(installed: Path, tmp_path: Path) -> None:
    """`kvscope --version` says the version that the wheel's name says."""
    import kvscope

    assert kvscope.__version__ in run(installed / "bin/kvscope", "--version", cwd=tmp_path)


def test_analyze(installed: Path, tmp_path: Path) -> None:
    """The installed command analyzes a packed sample from an empty folder."""
    (samples,) = installed.glob("lib/python*/site-packages/kvscope/_packed/sample_traces")
    command = (installed / "bin/kvscope", "analyze", samples / "to-c.jsonl.gz", "--json")
    own_cache = str(tmp_path / "cache")  # kernels are compiled from the wheel's sources too
    document: dict[str, Any] = json.loads(run(*command, cwd=tmp_path, KVSCOPE_CACHE_DIR=own_cache))
    assert document["command"] == "analyze"
    assert document["schema"] == 1
    assert document["trace"]["format"] == "bailian"
    assert document["trace"]["bad_lines"] == 0
    rates = [rate["ideal"] for rate in document["hit_rates"]]
    assert rates
    assert all(0 < rate < 1 for rate in rates)
    by_capacity = [point["token_hit_rate"] for point in document["curve"]]
    assert by_capacity == sorted(by_capacity)
    assert sum(row["requests"] for row in document["categories"]) == document["trace"]["requests"]
