"""Kernels run the machine code of their sources as they are now, from a cache that is shared."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from kvscope.core import machine_code
from kvscope.core.jit import kernel
from kvscope.core.kernel_files import KernelFiles

_STEPPING = '''
from kvscope.core.jit import callable_in_kernels

STEP = 1


@callable_in_kernels
def step(x):
    """Return the next x."""
    return 2 * x + STEP
'''
_RUNNING = '''
from typing import NamedTuple

from kvscope.core.jit import callable_in_kernels, kernel
from stepping import step


class Bounds(NamedTuple):
    """Two bounds of what `run` returns."""

    low: int
    high: int


def below(x, limit):
    """Return x, at most the limit."""
    return min(x, limit)


def kernel_of(bound):
    """Return the kernel that keeps to `bound`."""
    callable_in_kernels(bound)

    @kernel
    def run(x, bounds):
        """Return the next x within the bounds."""
        highest = bound(step(x), bounds.high)  # one step
        return max(highest, bounds.low)

    return run


def result():
    run = kernel_of(below)
    value = run(1, Bounds(0, 100))
    return f"{value} {'loaded' if run.stats.cache_hits else 'compiled'}"
'''


def python(*words: str, cache: Path, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a Python process that imports from `folder` and has this cache folder."""
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    changed = {"KVSCOPE_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(
        [sys.executable, "-B", *words],  # a module edited within a second has the bytecode's date
        env=os.environ | changed | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """Return what a process prints, which must not warn of anything."""
    printed, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    return printed.strip()


class Checkout:
    """A folder of sources whose kernel is called, and the cache folder of its processes."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        folder.mkdir()
        (folder / "stepping.py").write_text(_STEPPING)
        (folder / "running.py").write_text(_RUNNING)

    def edit(self, name: str, *, old: str, new: str) -> None:
        """Replace `old` by `new` in a source."""
        text = (self.folder / name).read_text()
        assert old in text
        (self.folder / name).write_text(text.replace(old, new))

    def start(self, module: str = "running", **environment: str) -> subprocess.Popen[str]:
        """Start a process that prints the kernel's value and whether it was compiled or loaded."""
        words = ("-c", f"import {module}; print({module}.result())")
        return python(*words, cache=self.cache, folder=self.folder, **environment)

    def result(self, module: str = "running", **environment: str) -> str:
        """Return what such a process prints."""
        return output(self.start(module, **environment))

    def file(self) -> Path:
        """Return the only file of machine code."""
        (file,) = (self.cache / "kernels").glob("*.kernel")
        return file


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder with the kernel of a checkout elsewhere."""
    checkout = Checkout(tmp_path_factory.mktemp("first") / "sources", tmp_path_factory.mktemp("c"))
    assert checkout.result() == "3 compiled"
    assert checkout.result() == "3 loaded"
    return checkout.cache


@pytest.fixture
def checkout(tmp_path: Path, filled: Path) -> Checkout:
    """Return a new checkout, with a copy of the cache that another one has filled."""
    shutil.copytree(filled, tmp_path / "cache")
    return Checkout(tmp_path / "sources", tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "old", "new", "value"),
    [
        ("running.py", "max(highest, ", "-max(highest, ", "-3"),
        ("running.py", "return min(x, limit)", "return min(x, limit) + 7", "10"),
        ("running.py", "low: int\n    high: int", "high: int\n    low: int", "100"),
        ("stepping.py", "return 2 * x", "return 5 * x", "6"),
        ("stepping.py", "STEP = 1", "STEP = 10", "12"),
    ],
    ids=["kernel", "closure", "fields of an argument", "imported function", "constant"],
)
def test_an_edit_of_what_is_compiled_in_compiles_again(
    checkout: Checkout, name: str, old: str, new: str, value: str
) -> None:
    """The kernel of before stays for checkouts that still have its sources."""
    checkout.edit(name, old=old, new=new)
    assert checkout.result() == f"{value} compiled"
    checkout.edit(name, old=new, new=old)
    assert checkout.result() == "3 loaded"


def test_other_edits_and_places_compile_nothing(checkout: Checkout) -> None:
    """Docstrings, comments, line numbers, dates and names of files are not compiled in."""
    assert checkout.result() == "3 loaded"
    checkout.edit("running.py", old="Return the next x within the bounds.", new="Step.")
    checkout.edit("running.py", old="# one step", new="# the step of stepping.py")
    checkout.edit("running.py", old='    """Return x, at most the limit."""\n', new="")
    checkout.edit("stepping.py", old="STEP = 1", new="OTHER = 5\nSTEP = 1")
    checkout.edit("stepping.py", old="the next x", new="what comes after x")
    os.utime(checkout.folder / "stepping.py", (1, 1))
    assert checkout.result() == "3 loaded"
    (checkout.folder / "stepping.py").rename(checkout.folder / "walking.py")
    checkout.edit("running.py", old="from stepping", new="from walking")
    (checkout.folder / "running.py").rename(checkout.folder / "replaying.py")
    assert checkout.result("replaying") == "3 loaded"


def test_a_damaged_file_is_compiled_again(checkout: Checkout) -> None:
    """No message, no error: the next process loads it."""
    checkout.file().write_bytes(checkout.file().read_bytes()[:-1])
    assert checkout.result() == "3 compiled"
    assert checkout.result() == "3 loaded"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelFiles:
    """Return the files of an empty cache folder, which the kernels of this process use."""
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(tmp_path))
    files = KernelFiles()
    monkeypatch.setattr(machine_code, "_files", files)
    return files


def _sum_of_new_kernel() -> str:
    """Return how a kernel of always the same sources got its machine code."""

    @kernel
    def add(x: int, y: int) -> int:
        return x + y

    assert add(1, 2) == 3
    return "loaded" if add.stats.cache_hits else "compiled"  # type: ignore[attr-defined]


def _flip_a_bit(data: bytes) -> bytes:
    return data[:999] + bytes([data[999] ^ 1]) + data[1000:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:10],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        _flip_a_bit,
        lambda _: b"garbage" * 1000,
        lambda _: pickle.dumps(["not", "machine code"]),
    ],
    ids=["empty", "checksum cut", "half", "longer", "bit", "garbage", "pickle"],
)
def test_damage_of_any_kind_is_compiled_again(
    files: KernelFiles, damage: Callable[[bytes], bytes]
) -> None:
    """The damaged file is replaced."""
    assert _sum_of_new_kernel() == "compiled"
    (file,) = files.folder.glob("*.kernel")
    file.write_bytes(damage(file.read_bytes()))
    assert [_sum_of_new_kernel() for _ in range(2)] == ["compiled", "loaded"]


@pytest.mark.parametrize(
    "content",
    [b"no pickle", pickle.dumps(["not", "machine code"]), b"cno_such_module\nname\n."],
    ids=["garbage", "list", "unknown module"],
)
def test_a_whole_file_of_something_else_is_compiled_again(
    files: KernelFiles, content: bytes
) -> None:
    """One whose checksum is right, say of a numba that writes other things."""
    assert _sum_of_new_kernel() == "compiled"
    (file,) = files.folder.glob("*.kernel")
    files.write(file.stem, content)
    assert [_sum_of_new_kernel() for _ in range(2)] == ["compiled", "loaded"]


def test_a_home_that_cannot_be_written_is_replaced(checkout: Checkout, tmp_path: Path) -> None:
    """A folder of this user's alone, in the temporary one, keeps the kernels instead."""
    checkout.cache = tmp_path / "taken"
    checkout.cache.write_text("a file where the folder should be")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert checkout.result(TMPDIR=str(temporary)) == "3 compiled"
    assert checkout.result(TMPDIR=str(temporary)) == "3 loaded"
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_one_process_compiles_for_those_that_wait(checkout: Checkout) -> None:
    """Of processes that need a kernel at the same time, the others load what the first made."""
    checkout.edit("stepping.py", old="STEP = 1", new="STEP = 20")
    processes = [checkout.start() for _ in range(3)]
    assert sorted(map(output, processes)) == ["22 compiled", "22 loaded", "22 loaded"]


def test_a_kernel_that_is_there_is_read_while_another_process_holds_its_lock(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is about to read it, and waits for a thread of its own that compiles."""
    checkout.result()
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(checkout.cache))
    with ExitStack() as locks:
        for file in (checkout.cache / "kernels").glob("*.kernel"):
            locks.enter_context(KernelFiles().compiling(file.stem))
        printed, _ = checkout.start().communicate(timeout=60)
    assert printed.strip() == "3 loaded"


def test_a_wheels_kernels_run_on_cpus_that_have_their_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not read where a feature lacks, or where the environment names a CPU."""
    target = machine_code.numba.core.registry.cpu_target.target_context
    triple = target.codegen().magic_tuple()[0]
    cache = machine_code.KernelCache(_swapped.py_func)  # type: ignore[attr-defined]

    def names() -> list[str]:
        machine_code._fits_wheels.cache_clear()
        return cache.names((), target)

    monkeypatch.setattr(machine_code.numba.config, "CPU_NAME", None)
    monkeypatch.setattr(machine_code.platform, "machine", lambda: "x86_64")
    features = dict.fromkeys(machine_code._FEATURES, True)
    monkeypatch.setattr(machine_code.ll, "get_host_cpu_features", lambda: features)
    _, wheels = names()
    monkeypatch.setattr(target.codegen(), "magic_tuple", lambda: (triple, "haswell", ""))
    assert names() == [wheels, wheels]
    assert machine_code.wheels_environment()["NUMBA_CPU_NAME"] == "haswell"
    features["avx2"] = False
    assert names() == [wheels]
    assert not machine_code.wheels_environment()
    features["avx2"] = True
    monkeypatch.setattr(machine_code.numba.config, "CPU_NAME", "generic")
    assert names() == [wheels]
    machine_code._fits_wheels.cache_clear()


def test_another_numba_compiles_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is part of what a file's name says."""

    def source() -> str:
        return machine_code.KernelCache(_swapped.py_func).source  # type: ignore[attr-defined]

    before = source()
    assert source() == before
    monkeypatch.setattr(machine_code.numba, "__version__", "0.1")
    assert source() != before


def test_numba_loads_with_the_first_call(checkout: Checkout) -> None:
    """A module of kernels, and a kernel that is not called, do not load numba."""
    code = "import sys, running; running.kernel_of(running.below); print('numba' in sys.modules)"
    words = ("-c", code)
    assert output(python(*words, cache=checkout.cache, folder=checkout.folder)) == "False"


class Pair(NamedTuple):
    """Two numbers."""

    first: int
    second: int


@kernel
def _swapped(pair: Pair) -> Pair:
    return Pair(pair.second, pair.first)


@kernel
def _length(text: str) -> int:
    return len(text)


def test_types_that_no_key_describes_are_refused() -> None:
    """Better an error for the developer than machine code of another type."""
    with pytest.raises(TypeError, match="returns Pair"):
        _swapped(Pair(1, 2))
    with pytest.raises(TypeError, match="unicode_type"):
        _length("text")


_FACTORY = """
import sys
import numpy as np
from kvscope.core.jit import callable_in_kernels, kernel
def kernel_of(step):
    @callable_in_kernels
    def stepped(x):
        return x + step
    @kernel
    def run(x, copy):
        copy[0] = stepped(x)
        return stepped(x)
    return run
def result(step):
    copy = np.zeros(1, dtype=np.int64)
    assert kernel_of(step)(0, copy) == copy[0]
    return copy[0]
print(*[result(int(step)) for step in sys.argv[1:]])
"""


def test_kernels_that_were_compiled_apart_run_together(tmp_path: Path) -> None:
    """Each was the first of its process, so numba counted it as the first; their names differ."""
    (tmp_path / "factory.py").write_text(_FACTORY)

    def start(*steps: str) -> subprocess.Popen[str]:
        words = (str(tmp_path / "factory.py"), *steps)
        return python(*words, cache=tmp_path / "cache", folder=tmp_path)

    processes = {step: start(step) for step in ("10", "20", "30")}
    assert {step: output(process) for step, process in processes.items()} == {
        step: step for step in processes
    }
    assert output(start("10", "20", "30")) == "10 20 30"


_CALLING = """
import sys
from kvscope.core.jit import kernel
@kernel
def inner(x):
    return 3 * x
@kernel
def outer(x):
    return inner(x) + 1
called = {"inner": inner, "outer": outer}[sys.argv[1]]
print(called(5), "loaded" if inner.stats.cache_hits else "compiled")
"""


def test_a_kernel_from_a_file_is_compiled_into_another(tmp_path: Path) -> None:
    """Its bitcode, which is in the file, is read only then."""
    (tmp_path / "calling.py").write_text(_CALLING)

    def result(called: str) -> str:
        words = (str(tmp_path / "calling.py"), called)
        return output(python(*words, cache=tmp_path / "cache", folder=tmp_path))

    assert result("inner") == "15 compiled"
    assert result("outer") == "16 loaded"
    assert result("inner") == "15 loaded"
