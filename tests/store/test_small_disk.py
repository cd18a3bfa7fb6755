"""Full and read-only disks: one line, old data intact, no half file. With really small ones."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.files import data_folder
from kvscope.core.kernel_files import KernelFiles

TRACE = str(Path(__file__).parents[1] / "written_before" / "trace.jsonl")
SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")
Streams = pytest.CaptureFixture[str]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Yield the folder of a file system of this size. Needs root."""
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() or mount is None:
        pytest.skip("only root can mount a small file system")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # arrays may still be mapped


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a file system of 1 MiB."""
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


@pytest.fixture
def db(tmp_path: Path) -> str:
    """Return a store with one trace, called `trace`."""
    path = str(tmp_path / "store.duckdb")
    assert run(["ingest", TRACE, "--db", path]) == ExitCode.DONE
    return path


def fill(disk: Path) -> None:
    """Leave 4 KiB."""
    status = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(status.f_bavail * status.f_frsize - 4096))


def writers(db: str, folder: Path) -> dict[str, list[str]]:
    """Return commands that write to files named `old` in `folder`, by what they write."""
    old = str(folder / "old")
    return {
        "synth": ["synth", "to-c", "-n", "2000", "-o", old],
        "export": ["export", "trace", "--db", db, "--to", "parquet", "-o", old],
        "page": ["fit", "trace", "--db", db, "--html", old],
        "policy": ["fit", "trace", "--db", db, "--export", old, "--policy", "tlru"],
    }


@pytest.mark.parametrize("what", ["synth", "export", "page", "policy"])
def test_a_full_disk_costs_no_file(disk: Path, db: str, capsys: Streams, what: str) -> None:
    """What was there before is there still, and no temporary file is left."""
    (disk / "old").write_text("before")
    fill(disk)
    (disk / "last").write_bytes(bytes(4096))
    code = run([*writers(db, disk)[what], "--force"])
    written = capsys.readouterr().err.strip().splitlines()
    assert code == ExitCode.FAILED
    assert written[-1].startswith(f"error: {disk}/old: the disk is full (0 B free); nothing was")
    assert (disk / "old").read_text() == "before"
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "last", "old"]


@pytest.mark.parametrize("what", ["synth", "page"])
def test_a_limit_of_file_sizes_costs_no_file(
    tmp_path: Path, db: str, capsys: Streams, what: str
) -> None:
    """As `ulimit -f` sets it: the second way in which a file does not become whole."""
    folder = tmp_path / "limited"
    folder.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        code = run(writers(db, folder)[what])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == ExitCode.FAILED
    assert f"{folder}/old: larger than this process may write" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_a_dataset_on_a_full_disk(disk: Path, tmp_path: Path, capsys: Streams) -> None:
    """One line says where space is lacking; with some, it goes on with the steps that are done."""
    command = ["ingest", SAMPLE, "--into", str(disk / "d"), "--memory", "2GiB", "--workers", "1"]
    assert run(command) == ExitCode.FAILED
    line = f"error: {disk}/d: the disk is full; finished steps are kept; free some space, and run"
    assert capsys.readouterr().err.splitlines()[-1].startswith(line)
    shutil.move(disk / "d", tmp_path / "d")
    command[3] = str(tmp_path / "d")
    assert run(command) == ExitCode.DONE


def test_a_dataset_is_analyzed_on_a_full_disk(tmp_path: Path, capsys: Streams) -> None:
    """One line says where space is lacking, and nothing is left of what was written."""
    with small_disk(tmp_path / "larger", "16m") as disk:
        folder = disk / "d"
        ingest = ["ingest", TRACE, "--into", str(folder), "--memory", "2GiB", "--workers", "1"]
        assert run(ingest) == ExitCode.DONE
        before = sorted(path.name for path in folder.iterdir())
        fill(disk)
        assert run(["analyze", str(folder), "--json"]) == ExitCode.FAILED
        line = f"error: {folder}: the disk is full; the dataset is as it was; free some space,"
        assert capsys.readouterr().err.splitlines()[-1].startswith(line)
        # What goes on in other threads, say compiling a kernel, still holds the folder of the work.
        for _ in range(600):
            gc.collect()
            if sorted(path.name for path in folder.iterdir()) == before:
                break
            time.sleep(0.1)
        assert sorted(path.name for path in folder.iterdir()) == before


def test_a_full_disk_costs_no_store(disk: Path, capsys: Streams) -> None:
    """A store that does not fit is not created."""
    fill(disk)
    code = run(["ingest", TRACE, "--db", str(disk / "store.duckdb")])
    assert code == ExitCode.FAILED
    assert f"{disk}/store.duckdb: the disk is full (" in capsys.readouterr().err
    assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_full_disk_costs_no_stored_trace(
    disk: Path, tmp_path: Path, db: str, capsys: Streams
) -> None:
    """The trace that was there can be listed and replayed; the store stays sound."""
    subprocess.run(["mount", "-o", "remount,size=6m", disk], check=True)
    store = str(disk / "store.duckdb")
    shutil.copy(db, store)
    fill(disk)
    more = str(tmp_path / "more.jsonl")
    assert run(["synth", "to-c", "-n", "2000", "-o", more]) == ExitCode.DONE
    assert run(["ingest", more, "--db", store]) == ExitCode.FAILED
    assert f"{store}: the disk is full (" in capsys.readouterr().err
    replay = ["simulate", "trace", "--db", store, "--policy", "lru", "--capacity-blocks", "9"]
    assert run(replay) == ExitCode.DONE
    assert run(["doctor", "--db", store]) == ExitCode.DONE
    assert "trace: sound" in capsys.readouterr().out


def test_a_read_only_disk(disk: Path, db: str, capsys: Streams) -> None:
    """Its store is read and worked on; what would write it has exit code 3."""
    store = str(disk / "store.duckdb")
    subprocess.run(["mount", "-o", "remount,size=6m", disk], check=True)
    shutil.copy(db, store)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for command in (["traces"], ["runs", "trace"], ["doctor"]):
        assert run([*command, "--db", store]) == ExitCode.DONE
    replay = ["simulate", "trace", "--db", store, "--policy", "lru", "--capacity-blocks", "9"]
    assert run(replay) == ExitCode.DONE
    assert "not all runs were stored: " in capsys.readouterr().err
    for command in (["traces", "remove", "trace"], ["runs", "remove", "trace", "--all"]):
        assert run([*command, "--db", store]) == ExitCode.INPUT
        assert f"{store}: cannot be written; name another" in capsys.readouterr().err
    assert run(["ingest", TRACE, "--db", str(disk / "new.duckdb")]) == ExitCode.INPUT
    assert "its folder cannot be written" in capsys.readouterr().err


def test_a_full_disk_costs_no_kernel(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code that cannot be saved is compiled again, without a word."""
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(disk))
    files = KernelFiles()
    assert files.folder.parent == disk
    fill(disk)
    files.write("kernel", os.urandom(1 << 20))
    assert files.read("kernel") is None
    assert not list(files.folder.glob("*"))
