"""Datasets made in pieces: killed and run again, several processes, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

import kvscope
from kvscope.cli.app import run
from kvscope.core import memory
from kvscope.core.errors import ExitCode, InputError, KvscopeError, UsageError
from kvscope.core.executor import Executor, LocalProcesses
from kvscope.core.files import data_folder, one_path
from kvscope.core.units import GIB, MIB
from kvscope.datasets import ingest, shards
from kvscope.datasets.dataset import Dataset
from kvscope.datasets.ingest import DatasetOptions
from kvscope.ingest.pipeline import IngestOptions
from kvscope.ingest.pipeline import ingest as ingest_trace
from kvscope.store.file import StoreFile
from kvscope.store.folder import MANIFEST
from tests.datasets import made

R = TypeVar("R")

LINE = (
    '{"chat_id": %d, "parent_chat_id": -1, "timestamp": %d, "input_length": 32, '
    '"output_length": 4, "type": "text", "turn": 1, "hash_ids": [%d, %d]}\n'
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return three files whose requests share prefixes and a time."""
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.jsonl")
        lines = [LINE % (10 * number + k, k, k % 3, k % 5) for k in range(10)]
        paths[-1].write_text("".join(lines))
    return paths


class Failing(Executor):
    """Runs so many steps, then fails; `done` counts those that ran."""

    workers = 1

    def __init__(self, most: int) -> None:
        self.most = most
        self.done: list[str] = []

    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Run the tasks one by one."""
        for number, task in enumerate(tasks):
            if len(self.done) == self.most:
                raise KvscopeError("killed")
            result = step(*before, task)
            self.done.append(f"{step.__name__} {task.folder}")
            yield number, result


def test_a_dataset_is_its_owners_alone(files: list[Path], tmp_path: Path) -> None:
    """As a store is: no other user of the machine can look into the folder."""
    folder = tmp_path / "made"
    assert run(["ingest", *map(str, files), "--into", str(folder), "--workers", "1"]) == 0
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_finished_is_not_done_again(files: list[Path], tmp_path: Path) -> None:
    """Wherever it is killed: each step is done once, and the manifest is the same in the end."""
    steps = Failing(1000)
    made.dataset(files, tmp_path / "whole", made.options(3), steps)
    assert len(steps.done) == 4 + 4  # of each shard
    manifest = (tmp_path / "whole" / MANIFEST).read_bytes()
    for most in (0, 2, 5, 7):
        folder = tmp_path / f"killed-{most}"
        first, second = Failing(most), Failing(1000)
        with pytest.raises(KvscopeError, match="killed"):
            made.dataset(files, folder, made.options(3), first)
        with pytest.raises(InputError, match="not finished"):
            Dataset(str(folder))
        made.dataset(files, folder, made.options(3), second)
        assert len(first.done) == most
        assert not {*first.done} & {*second.done}
        assert len(first.done) + len(second.done) == len(steps.done)
        assert (folder / MANIFEST).read_bytes() == manifest
    again = made.dataset(files, tmp_path / "whole", made.options(3), Failing(0))
    assert not again.created


def test_processes_make_the_same(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, and this one; a script that makes a dataset is not run by each process."""
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    Path(script.__file__).write_text("raise SystemExit('run once more')\n")
    monkeypatch.setitem(sys.modules, "__main__", script)
    made.dataset(files, tmp_path / "one", made.options(2))
    with LocalProcesses(2) as processes:
        made.dataset(files, tmp_path / "two", made.options(2), processes)
    one, two = ((tmp_path / name / MANIFEST).read_bytes() for name in ("one", "two"))
    assert one == two
    assert sorted(each.name for each in (tmp_path / "one").iterdir()) == [
        *("cuts.npz", MANIFEST, "kvscope-plan.json", "requests", "shards", "store.duckdb"),
    ]


def test_no_two_processes_make_one_dataset(files: list[Path], tmp_path: Path) -> None:
    """The second one is refused; what a killed one left half written goes away."""
    folder = tmp_path / "d"
    with pytest.raises(KvscopeError, match="killed"):
        made.dataset(files, folder, made.options(2), Failing(2))
    (folder / "shards" / ".0001.7").mkdir()
    with ingest.alone_in(folder), pytest.raises(KvscopeError, match="another process is making"):
        made.dataset(files, folder, made.options(2))
    made.dataset(files, folder, made.options(2))
    assert not [*folder.glob("**/.*")]


def kill(_: int) -> None:
    """End this process as the system does for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_an_error_of_one_line() -> None:
    """The remedy says that finished steps are kept."""
    with LocalProcesses(2) as processes, pytest.raises(KvscopeError, match="steps are kept"):
        list(processes.results(kill, [1, 2]))


def test_bad_lines_are_those_of_one_trace(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are counted, named by file and line, and stored."""
    for path in files[:2]:
        path.write_text(path.read_text() + "no request\n")
    arguments = ["ingest", *map(str, files), "--max-bad", "20%", "--name", "x"]
    assert run([*arguments, "--db", str(tmp_path / "store.duckdb"), "--json"]) == ExitCode.DONE
    whole = capsys.readouterr()
    assert run([*arguments, "--into", str(tmp_path / "d"), "--workers", "1", "--json"]) == 0
    parts = capsys.readouterr()
    assert parts.out == whole.out
    assert json.loads(parts.out)["trace"]["bad_lines"] == 2
    assert f"{files[0]}:11: " in parts.err
    with pytest.raises(InputError, match="2 of 32 lines cannot be used"):
        made.dataset(files, tmp_path / "refused", made.options(2))


@pytest.mark.parametrize("salts", [("a", "b"), ("a", "a")])
def test_tenants_are_those_of_one_trace(tmp_path: Path, salts: tuple[str, str]) -> None:
    """Files that name other salts share no blocks; an empty file and one of bad lines are read."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
    line = (
        '{"timestamp": %d, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2], '
        '"cache_salt": "%s"}\n'
    )
    for number, salt in enumerate(salts):
        paths[number].write_text(line % (number, salt) * 2)
    paths[2].write_text("")
    paths[3].write_text("no request\n")
    read = IngestOptions(made.NAME, max_bad=0.5)
    found = made.dataset(paths, tmp_path / "d", made.options(2, read=read)).trace
    with StoreFile(str(tmp_path / "store.duckdb")) as stores:
        known = ingest_trace(stores, one_path([*map(str, paths)]), read).trace
    assert found == known
    assert found.distinct_blocks == 2 * len({*salts})
    strict = made.options(2, read=replace(read, strict=True))
    with pytest.raises(InputError, match=r"3\.jsonl:1: "):
        made.dataset(paths, tmp_path / "strict", strict)


def test_a_shard_has_as_many_blocks_as_have_numbers(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are numbered within their shard, so that more shards take more blocks."""
    monkeypatch.setattr(shards, "INT32_MAX", 50)
    with pytest.raises(InputError, match=r"more than 50 distinct blocks.*take more --shards"):
        made.dataset(files, tmp_path / "d", made.options(1, cut_share=1.0))
    assert made.dataset(files, tmp_path / "e", made.options(6)).trace.distinct_blocks == 13


def test_too_little_memory_is_refused(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read, for the programs; after it, for the largest shard."""
    with pytest.raises(UsageError, match=r"--memory: 0.5 GiB is less than the 1 GiB"):
        made.dataset(files, tmp_path / "d", DatasetOptions(512 * MIB))
    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_ACCESS_BYTES", 10**10)
        with pytest.raises(UsageError, match=r"the largest shard takes about"):
            made.dataset(files, tmp_path / "f", made.options(1))
    many = LocalProcesses(13)
    with pytest.raises(
        UsageError, match=r"4 GiB are too little: 30 requests take .*, and 13 workers"
    ):
        made.dataset(files, tmp_path / "e", DatasetOptions(4 * GIB, 1), many)


TAKEN = (
    ("simulate", "--policy", "lru,tlru,belady", "--capacity-blocks", "20000", "--slo", "1s"),
    ("fleet", "--slo", "1s", "--capacity-blocks", "20000", "--router", "random"),
    ("explain", "--capacity-blocks", "20000"),
    ("retention",),
)


def test_commands_take_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What they say of it equals that of its files as one trace, in any order."""
    sample = data_folder("sample_traces") / "agent.jsonl.gz"
    lines = gzip.decompress(sample.read_bytes()).splitlines(keepends=True)[:300]
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(b"".join(lines[2 - number :: 3]))
    folder, db = str(tmp_path / "d"), ["--db", str(tmp_path / "store.duckdb")]
    made.dataset(paths, Path(folder), made.options(4))
    assert run(["ingest", *map(str, paths), "--name", made.NAME, *db]) == ExitCode.DONE
    capsys.readouterr()
    for command, *given in TAKEN:
        documents = []
        for trace in ([folder], [made.NAME, *db]):
            assert run([command, *trace, *given, "--json"]) == ExitCode.DONE, command
            documents.append(without_times(json.loads(capsys.readouterr().out)))
        assert documents[0] == documents[1], command
    assert run(["runs", folder]) == ExitCode.DONE
    assert "belady" in capsys.readouterr().out
    assert run(["runs", "--db", folder]) == ExitCode.DONE
    assert "belady" in capsys.readouterr().out
    exported = []
    for trace in ([folder], [made.NAME, *db]):
        assert run(["export", *trace, "--to", "mooncake", "-o", "-"]) == ExitCode.DONE
        exported.append(capsys.readouterr().out)
    assert exported[0] == exported[1]
    with kvscope.open_trace(folder) as opened:
        assert kvscope.simulate(opened, capacity_blocks=20000).to_dict()["results"]
        analyzed = kvscope.analyze(opened).to_dict()
    assert kvscope.analyze(folder).to_dict() == analyzed


def without_times(document: Any) -> Any:
    """Return a document without the time at which a run was made."""
    if isinstance(document, dict):
        return {k: without_times(v) for k, v in document.items() if k != "created_at"}
    return [*map(without_times, document)] if isinstance(document, list) else document


def test_what_takes_no_dataset_says_so(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with what to do; so does what a folder cannot be."""
    folder = str(tmp_path / "d")
    made.dataset(files, Path(folder), made.options(2))
    db = ["--db", str(tmp_path / "none.duckdb")]
    assert run(["ingest", folder, *db]) == ExitCode.INPUT
    assert "a dataset, and no trace that a store could take" in only_line(capsys)
    assert run(["analyze", folder, "--until", "3s", *db]) == ExitCode.USAGE
    assert "as a whole" in only_line(capsys)
    assert run(["analyze", folder, "--block-size", "3", *db]) == ExitCode.USAGE
    assert "read already" in only_line(capsys)
    assert run(["analyze", folder, "--compat", "libcachesim", *db]) == ExitCode.USAGE
    assert "a flat cache" in only_line(capsys)
    assert run(["doctor", folder, "--save-to", str(tmp_path / "new")]) == ExitCode.USAGE
    assert "blocks lie in its shards" in only_line(capsys)
    assert run(["ingest", str(files[0]), "--into", folder]) == ExitCode.USAGE
    assert "other files or options; name another folder" in only_line(capsys)
    assert run(["ingest", str(files[0]), "--into", str(tmp_path)]) == ExitCode.USAGE
    assert "is there already, and no dataset" in only_line(capsys)
    os.mkfifo(tmp_path / "pipe")
    for stream in ("-", str(tmp_path / "pipe")):
        assert run(["ingest", stream, "--into", str(tmp_path / "new")]) == ExitCode.USAGE
        assert "write it to one first" in only_line(capsys)
    assert run(["ingest", str(files[0]), "--memory", "2GiB", *db]) == ExitCode.USAGE
    assert "add --into DIR" in only_line(capsys)


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed on stderr, one line."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_fit_takes_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models equal those of the file as one trace, and the dataset keeps them."""
    sample, folder = str(data_folder("sample_traces") / "agent.jsonl.gz"), tmp_path / "d"
    made.dataset([sample], folder, made.options(3))
    whole = ["ingest", sample, "--name", made.NAME, "--db", str(tmp_path / "store.duckdb")]
    assert run(whole) == ExitCode.DONE
    capsys.readouterr()
    documents = []
    for arguments in ([made.NAME, *whole[-2:]], [str(folder)]):
        assert run(["fit", *arguments, "--json"]) == ExitCode.DONE
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    monkeypatch.setattr(memory, "available_bytes", lambda: (1000, "are free"))
    assert run(["fit", str(folder)]) == ExitCode.FAILED
    assert "are free; fit to part of its files, or take more memory" in only_line(capsys)


LEAVE_WORK = """
import os, signal, sys
from pathlib import Path
from kvscope.datasets.paths import WorkFolder
kept = WorkFolder(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_analyze_takes_a_folder(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document equals the one of the files as one trace; what a killed run left goes away."""
    folder, store = str(tmp_path / "d"), str(tmp_path / "store.duckdb")
    assert run(["ingest", *map(str, files), "--into", folder, "--workers", "1", "--name", "x"]) == 0
    assert run(["ingest", *map(str, files), "--name", "x", "--db", store]) == 0
    capsys.readouterr()
    left = subprocess.run([sys.executable, "-c", LEAVE_WORK, folder], check=False)
    assert left.returncode == -signal.SIGKILL
    assert [*Path(folder).glob(".*")]
    documents = []
    for trace in (["x", "--db", store], [folder], [folder, "--memory", "1GiB"]):
        assert run(["analyze", *trace, "--json", "--model", "llama3.1-8b"]) == ExitCode.DONE
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1] == documents[2]
    assert not [*Path(folder).glob(".*")]
    assert run(["analyze", folder, "--memory", "512MiB", "--forget"]) == ExitCode.USAGE
    assert "30 requests and the largest shard take 0.717 GiB, 0.5 GiB are" in only_line(capsys)
    assert run(["analyze", "x", "--db", store, "--memory", "8GiB", "--forget"]) == ExitCode.USAGE
    assert "'x' is no dataset" in only_line(capsys)
