"""Memory that is left, and what executors make of it."""

from __future__ import annotations

import errno
import os
import platform
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from kvscope.cli import diagnostics
from kvscope.core import memory
from kvscope.core.errors import ExitCode, InputError
from kvscope.core.hits import standard
from kvscope.core.memory import OutOfMemoryError, available_bytes, out_of_memory, require
from kvscope.core.units import GIB, MIB
from kvscope.ingest.pipeline import ingest
from kvscope.learning.offline.learners import tables_for
from kvscope.policies.gittins import Gittins
from kvscope.replay.footprint import analysis_bytes, replays_bytes, tables_bytes
from kvscope.replay.traffic import traffic
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from tests.cli.shell import Streams


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that writes a file of a made-up machine: 8 GiB free, no limits."""

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_address_space", lambda: None)
    write("proc/meminfo", "MemTotal: 99 kB\nMemAvailable: 7340032 kB\nSwapFree: 1048576 kB\n")
    write("proc/self/cgroup", "0::/a/b\n")
    return write


def test_the_least_of_all_limits_is_available(machine: Callable[[str, str], None]) -> None:
    """Free memory and swap; a container's limit without what caches files; `ulimit -v`."""
    assert available_bytes() == (8 * GIB, "are free")
    machine("cgroup/a/b/memory.max", "max\n")
    machine("cgroup/a/memory.max", f"{4 * GIB}\n")
    machine("cgroup/a/memory.current", f"{3 * GIB}\n")
    machine("cgroup/a/memory.stat", f"anon 1\ninactive_file {GIB}\n")
    assert available_bytes() == (2 * GIB, "are left in this container")
    machine("cgroup/memory/x/memory.limit_in_bytes", f"{GIB}\n")
    machine("cgroup/memory/x/memory.usage_in_bytes", "5\n")
    machine("cgroup/memory/x/memory.stat", "total_inactive_file 2\n")
    machine("proc/self/cgroup", "4:memory:/x\n0::/a/b\n")
    assert available_bytes() == (GIB - 3, "are left in this container")
    require(GIB - 3, "a replay")
    with pytest.raises(OutOfMemoryError) as caught:
        require(3 * GIB, "a replay", "take less")
    line = "a replay: needs about 3 GiB of memory, 1 GiB are left in this container; take less"
    assert str(caught.value) == line
    assert caught.value.exit_code == ExitCode.FAILED
    assert [memory.at_once(size, 4) for size in (1, GIB // 3, 3 * GIB)] == [4, 2, 1]


def test_unknown_memory_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system tells nothing, nothing is refused."""
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(memory, "_address_space", lambda: None)
    assert available_bytes() is None
    require(1e18, "a replay")
    assert memory.at_once(1e18, 3) == 3


def wrapped(cause: Exception) -> Exception:
    """Return an error that was raised from another."""
    error = InputError("cannot be opened")
    error.__cause__ = cause
    return error


def numpy_error() -> Exception:
    """Return what NumPy raises for an array that no machine holds."""
    with pytest.raises(MemoryError) as caught:
        np.empty(2**59)
    return caught.value


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError(),
        numpy_error(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("can't start new thread"),
        ImportError("libx.so: failed to map segment from shared object"),
        duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate 8 bytes"),
        wrapped(duckdb.IOException("bad allocation")),
    ],
)
def test_failed_allocations_end_in_one_line(failure: Exception, capsys: Streams) -> None:
    """Whichever library raises it: what is left, what to do, exit code 1, no traceback."""

    def command() -> None:
        raise failure

    assert diagnostics.guarded(command) == ExitCode.FAILED
    shown = capsys.readouterr().err
    assert shown.startswith("error: out of memory: ")
    assert "; take a part of the trace (a sample of a dataset: simulate --sample)" in shown
    assert shown.count("\n") == 1


def test_other_errors_are_no_shortage() -> None:
    """An error that only mentions memory stays what it is."""
    assert out_of_memory(ValueError("memory")) is None
    assert out_of_memory(wrapped(ValueError("bad"))) is None


MEASURED = """
import resource, subprocess, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
command = [sys.executable, "-m", "kvscope", *sys.argv[2:]]
code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A small process in between: Linux counts the peak of the one that forks as its child's."""


def run(arguments: list[str], limit_bytes: int | None = None) -> tuple[int, str, int]:
    """Return the exit code, stderr and peak (bytes) of a kvscope below a limit of `ulimit -v`."""
    limit = resource.RLIM_INFINITY if limit_bytes is None else limit_bytes
    asked = [sys.executable, "-c", MEASURED, str(limit), *arguments]
    process = subprocess.run(asked, capture_output=True, text=True, check=True)
    code, peak_kib = map(int, process.stdout.split())
    return code, process.stderr, peak_kib * 1024


def traces(folder: Path, count: int, blocks: int) -> Path:
    """Write a trace of so many requests, with prompts of so many blocks, half of them shared."""
    path = folder / f"{count}.jsonl"
    half = blocks // 2
    with path.open("w") as file:
        for at in range(count):
            first = at % 997 * half
            ids = [*range(first, first + half), *range((1000 + at) * half, (1001 + at) * half)]
            file.write(
                f'{{"timestamp":{at},"input_length":{512 * 2 * half},"output_length":9,'
                f'"hash_ids":{ids}}}\n'
            )
    return path


@pytest.mark.slow
def test_estimates_are_near_the_peaks(tmp_path: Path) -> None:
    """Between traces of two sizes the measured peak grows as estimated: a third to 1.5 times.

    Small traces fit into what loading the libraries took before, so their peaks grow more slowly.
    """
    db = str(tmp_path / "s.duckdb")
    sizes = 40_000, 160_000
    with open_store(db) as store:
        stored = {count: ingest(store, str(traces(tmp_path, count, 4))).trace for count in sizes}
    for estimate, command in (
        (analysis_bytes, ["analyze"]),
        (replays_bytes, ["simulate", "--policy", "lru", "--capacity-blocks", "5000"]),
    ):
        peaks = {}
        for count in (sizes[0], *sizes):  # the first one may have to compile kernels
            code, errors, peaks[count] = run([*command, stored[count].name, "--db", db])
            assert code == 0, errors
        small, large = (estimate(stored[count]) for count in sizes)
        ratio = (peaks[sizes[1]] - peaks[sizes[0]]) / (large - small)
        assert 1 / 3 < ratio < 1.5, (command, ratio)


@pytest.mark.parametrize("refit_requests", [512.0, 64.0, 4.0])
def test_learned_tables_take_no_more_than_estimated(tmp_path: Path, refit_requests: float) -> None:
    """Those of gittins grow with its refits."""
    with open_store(MEMORY) as store:
        trace = ingest(store, str(traces(tmp_path, 2_000, 4))).trace
        requests = traffic(load_prompts(store, trace), standard())
    policy = Gittins({"refit_requests": refit_requests})
    tables_for(requests, Gittins, policy.refit_every)  # compiled
    tracemalloc.start()
    tables_for(requests, Gittins, policy.refit_every)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < tables_bytes(requests, policy) < 4 * peak


@pytest.mark.slow
def test_below_ulimit_every_command_ends_in_one_line(tmp_path: Path) -> None:
    """Too low for the libraries, for the trace, or high enough: never a traceback or a signal."""
    path = traces(tmp_path, 150_000, 6)
    least = memory.LEAST_ADDRESS_SPACE_BYTES
    code, errors, _ = run(["ingest", str(path), "--db", ":memory:"], 400 * MIB)
    assert code == ExitCode.FAILED
    assert errors.startswith("error: ulimit -v: the address space is limited to 0.391 GiB")
    assert run(["--version"], 400 * MIB)[0] == 0
    for command, limit in (
        (["ingest"], least),
        (["simulate", "--policy", "lru"], least + GIB // 16),
    ):
        code, errors, _ = run([*command, str(path), "--db", str(tmp_path / "s.duckdb")], limit)
        assert "Traceback" not in errors
        assert code in {ExitCode.DONE, ExitCode.FAILED}, errors
        if code:
            last = errors.splitlines()[-1]
            assert last.startswith("error: ")
            assert "memory" in last


HEAPS = """
import ctypes, os, sys, threading
from kvscope.core import memory
if sys.argv[2] == "limited":
    os.cpu_count = lambda: 2
    memory.limit_heaps()
libc, together = ctypes.CDLL(None), threading.Barrier(5)
libc.fopen.restype = ctypes.c_void_p
def allocate():
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
together.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has several heaps")
def test_threads_share_as_many_heaps_as_there_are_cores(tmp_path: Path) -> None:
    """Left alone, each of these five has one of its own."""
    heaps = {}
    for which in ("limited", "alone"):
        told = tmp_path / which
        subprocess.run([sys.executable, "-c", HEAPS, str(told), which], check=True)
        heaps[which] = told.read_text().count("<heap nr=")
    assert heaps["limited"] == 2
    assert heaps["alone"] > 2


_SCRIPT = """
import os, time
from kvscope.core.executor import LocalProcesses

def step(task):
    return os.getpid()

with LocalProcesses(2) as processes:
    workers = {worker for _, worker in processes.results(step, range(8))}
    print(*workers, flush=True)
    time.sleep(600)
"""
_WAIT_S = 30.0


def is_running(process: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def test_workers_end_where_the_command_is_killed() -> None:
    """None is left that would keep its memory for ever."""
    command = subprocess.Popen([sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    workers = [int(word) for word in command.stdout.readline().split()]
    assert workers
    assert all(is_running(worker) for worker in workers)
    assert os.getpid() not in workers
    command.send_signal(signal.SIGKILL)
    command.wait()
    command.stdout.close()
    deadline = time.monotonic() + _WAIT_S
    while any(is_running(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(is_running(worker) for worker in workers)
