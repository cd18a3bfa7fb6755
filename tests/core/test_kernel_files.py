"""Files of machine code, and the digests that name them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.core import kernel_files
from kvscope.core.kernel_files import UNUSED_DAYS, KernelFiles, SourceDigest

_DAY_S = 86_400


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelFiles:
    """Return the files of an empty cache folder."""
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    return KernelFiles()


def _path(files: KernelFiles, name: str) -> Path:
    return files.folder / f"{name}.kernel"


def _age(path: Path, days: float) -> None:
    then = time.time() - days * _DAY_S
    os.utime(path, (then, then))


def test_a_file_is_read_as_it_was_written(files: KernelFiles) -> None:
    """By this and by another user of the folder; nothing else is left there."""
    assert files.read("run-1") is None
    assert not files.has("run-1")
    files.write("run-1", b"code")
    files.write("run-1", b"codes")
    assert KernelFiles().read("run-1") == b"codes"
    assert files.has("run-1")
    assert not files.has("run-2")
    assert [path.name for path in files.folder.iterdir()] == ["run-1.kernel"]
    files.remove("run-1")
    files.remove("run-1")
    assert files.read("run-1") is None


def test_the_content_of_another_name_is_damage(files: KernelFiles) -> None:
    """So is any other: the file is removed."""
    files.write("run-1", b"code")
    _path(files, "run-1").rename(_path(files, "run-2"))
    assert files.read("run-2") is None
    assert not _path(files, "run-2").exists()


def test_a_file_is_small_and_one_without_compression_is_made_anew(files: KernelFiles) -> None:
    """Its checksum is right: an earlier kvscope wrote it."""
    files.write("run-1", b"name" * 100_000)
    assert _path(files, "run-1").stat().st_size < 1_000
    _path(files, "run-1").write_bytes(kernel_files._checksum("run-1", b"code") + b"code")
    assert files.read("run-1") is None
    assert not _path(files, "run-1").exists()


def test_what_is_shipped_is_read_where_nothing_is_saved(
    files: KernelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it; it is never changed, and a damaged one counts as none."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(kernel_files, "_SHIPPED", folder)
    assert files.read("run-1", "run-2") is None
    files.write("run-2", b"shipped")
    shipped = _path(files, "run-2").rename(folder / "run-2.kernel")
    shipped.chmod(0o666)
    assert files.read("run-1", "run-2") == files.read("run-2") == b"shipped"
    assert files.has("run-1", "run-2")
    assert not files.has("run-1")
    assert not files.has()
    files.write("run-1", b"saved")
    assert files.read("run-1", "run-2") == b"saved"
    files.remove("run-1")
    files.remove("run-2")
    assert files.read("run-1", "run-2") == b"shipped"
    shipped.write_bytes(b"damaged")
    assert files.read("run-1", "run-2") is None
    assert shipped.read_bytes() == b"damaged"


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_could_write_is_not_read(files: KernelFiles, mode: int) -> None:
    """Writing it anew makes it private again."""
    files.write("run-1", b"code")
    _path(files, "run-1").chmod(mode)
    assert files.read("run-1") is None
    files.write("run-1", b"code")
    assert files.read("run-1") == b"code"


def test_a_file_of_another_user_is_not_read(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its mode."""
    files.write("run-1", b"code")
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert files.read("run-1") is None


def test_a_full_disk_costs_the_file_alone(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has been compiled and runs; nothing half written stays."""

    def full(_from: str, _to: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        files.write("run-1", b"code")
    assert list(files.folder.iterdir()) == []


def test_unused_files_are_removed(files: KernelFiles) -> None:
    """Where nothing has used them for long, as something else is written."""
    for name in ("used", "unused", "read"):
        files.write(name, b"code")
    for name in ("unused", "read"):
        _age(_path(files, name), UNUSED_DAYS + 1)
    _age(_path(files, "used"), UNUSED_DAYS - 1)
    assert files.read("read") == b"code"
    files.write("new", b"code")
    assert [files.has(name) for name in ("new", "read", "used", "unused")] == [True] * 3 + [False]


def test_the_longest_unused_go_when_the_folder_is_too_large(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder keeps below its limit."""
    monkeypatch.setattr(kernel_files, "MAX_BYTES", 2500)
    for days, name in ((1, "first"), (3, "second"), (2, "third")):
        files.write(name, os.urandom(700))
        _age(_path(files, name), days)
    files.write("fourth", os.urandom(700))
    kept = [name for name in ("first", "second", "third", "fourth") if files.read(name)]
    assert kept == ["first", "third", "fourth"]


_SOURCE = '''
import math
from typing import NamedTuple

import numpy as np

LIMIT = 3
WEIGHTS = np.array([1.0, 2.0])
UNUSED = 5


class Bounds(NamedTuple):
    """Two bounds."""

    low: int = 0
    high: int = 9


def deepest(x):
    """Return x within its limit."""
    return min(x, LIMIT) if x in {1, 2, 3} else math.floor(x)


def deeper(x, *, scale=2.0):
    # scaled
    return deepest(x) * scale * WEIGHTS[0]


def kernel_of(inner, offset):
    def run(x):
        """Return the sum."""
        def shifted(y):
            return y - offset

        total = 0
        for at in range(x):
            total += inner(at) + shifted(at)
        return Bounds(total).low

    return run


run = kernel_of(deeper, 1)
'''


def _names(source: str, module: str = "somewhere") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": module}
    exec(compile(source, f"/{module}.py", "exec"), names)  # noqa: S102
    return names


def _digest(source: str = _SOURCE, module: str = "somewhere") -> str:
    return SourceDigest({}).function(_names(source, module)["run"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("LIMIT = 3", "LIMIT = np.int64(3)"),
        ("LIMIT = 3", "LIMIT = (3,)"),
        ("[1.0, 2.0]", "[1.0, 2.5]"),
        ("[1.0, 2.0])", "[1.0, 2.0], dtype=np.float32)"),
        ("{1, 2, 3}", "{1, 2, 4}"),
        ("math.floor(x)", "math.ceil(x)"),
        ("math.floor(x)", "np.floor(x)"),
        ("scale=2.0", "scale=-2.0"),
        ("scale=2.0", "scale=2"),
        ("deepest(x) * scale", "scale * deepest(x)"),
        ("y - offset", "y + offset"),
        ("inner(at) + shifted(at)", "shifted(at) + inner(at)"),
        ("kernel_of(deeper, 1)", "kernel_of(deeper, 2)"),
        ("kernel_of(deeper, 1)", "kernel_of(deepest, 1)"),
        ("low: int = 0\n    high: int = 9", "high: int = 9\n    low: int = 0"),
        ("high: int = 9", "high: int = 8"),
        (".low", ".high"),
    ],
)
def test_what_is_compiled_in_counts(old: str, new: str) -> None:
    """Bytecode, constants, globals, closures, defaults and fields, at any depth."""
    assert old in _SOURCE
    assert _digest(_SOURCE.replace(old, new)) != _digest()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Return the sum."""', '"""Return another sum."""'),
        ('        """Return the sum."""\n', ""),
        ("    # scaled\n", '    """Return x, scaled."""\n'),
        ("    # scaled\n", "\n\n"),
        ("deepest(x) * scale * WEIGHTS[0]", "(\n        deepest(x) * scale * WEIGHTS[0]\n    )"),
        ("UNUSED = 5", "UNUSED = 6"),
        ("def deepest(x):", "def deepest(x: int) -> float:"),
        ('"""Two bounds."""', '"""The bounds."""'),
    ],
)
def test_what_is_not_compiled_in_does_not_count(old: str, new: str) -> None:
    """Docstrings, there or not, comments, places of lines, annotations and other names."""
    assert old in _SOURCE
    assert _digest(_SOURCE.replace(old, new)) == _digest()


def test_a_docstring_that_shifts_the_constants_does_not_count() -> None:
    """None is the first constant of a function without a docstring, and here also its result."""
    plain = "def run(x):\n    x[0] = 5\n"
    assert _digest(plain) == _digest(plain.replace(":\n", ':\n    """Change x."""\n'))


def test_more_constants_than_an_instruction_can_count_are_told_apart() -> None:
    """Beyond 255 the number of a constant takes a second instruction."""
    values = [f"    x += {number}.5\n" for number in range(600)]
    long = "def run(x):\n" + "".join(values) + "    return x\n"
    digests = {_digest(long.replace(f" {at}.5", f" {at}.75")) for at in (1, 254, 256, 258, 599)}
    assert len(digests | {_digest(long)}) == 6


def test_the_place_of_the_source_does_not_count() -> None:
    """Other clones and moved modules share the machine code."""
    assert _digest(module="elsewhere") == _digest()


def test_a_function_that_kernels_replace_counts_with_its_replacement() -> None:
    """Kernels compile the replacement in."""
    source = "def replaced(x):\n    return x\n\ndef run(x):\n    return replaced(x)\n"
    names = _names(source)
    run, replaced = names["run"], names["replaced"]
    replacements: list[Callable[[int], int]] = [lambda x: x + 1, lambda x: x + 2]
    digests = {SourceDigest({replaced: other}).function(run) for other in replacements}
    assert len(digests | {SourceDigest({}).function(run)}) == 3


class _Kind(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (0.0, -0.0),
        (True, 1),
        (None, "None"),
        (b"a", "a"),
        ((1, (2,)), ((1, 2),)),
        (_Kind.LOW, 1),
        (np.float64(1), np.array(1.0)),
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones((2, 2)), np.ones((2, 2), order="F")),
        (np.dtype("i4"), np.dtype("i8")),
        (np.minimum, np.maximum),
        (math.floor, math.ceil),
        (math, np),
        (int, float),
    ],
)
def test_values_of_other_types_or_bytes_are_told_apart(value: object, other: object) -> None:
    """As numba does when it compiles them in."""
    digest = SourceDigest({})
    assert digest.value(value) == digest.value(value)
    assert digest.value(value) != digest.value(other)


@pytest.mark.parametrize("value", [[1], {1: 2}, object(), SourceDigest({})])
def test_a_value_without_a_digest_is_refused(value: object) -> None:
    """Better an error for the developer than machine code of another value."""
    with pytest.raises(TypeError, match="no digest"):
        SourceDigest({}).value(value)


def test_a_function_that_calls_itself_is_refused() -> None:
    """No kernel can: what they call is inlined."""
    with pytest.raises(TypeError, match="calls itself"):
        _digest("def run(x):\n    return run(x - 1)\n")
