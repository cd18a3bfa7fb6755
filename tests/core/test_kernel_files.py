"""Files of machine code: whole or not there, private, and removed when nothing uses them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvscope.core import kernel_files
from kvscope.core.kernel_files import UNUSED_DAYS, KernelFiles

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


def test_unused_files_and_folders_of_before_are_removed(files: KernelFiles) -> None:
    """Where nothing has used them for long, as something else is written."""
    home = files.folder.parent
    for name in ("used", "unused", "read"):
        files.write(name, b"code")
    old, recent, foreign = (home / f"kernels-{sixteen}" for sixteen in ("0" * 16, "1" * 16, "mine"))
    for folder in (old, recent, foreign):
        (folder / "inside").mkdir(parents=True)
    for path in (_path(files, "unused"), _path(files, "read"), old, foreign):
        _age(path, UNUSED_DAYS + 1)
    _age(_path(files, "used"), UNUSED_DAYS - 1)
    assert files.read("read") == b"code"
    files.write("new", b"code")
    assert [files.has(name) for name in ("new", "read", "used", "unused")] == [True] * 3 + [False]
    assert [folder.exists() for folder in (old, recent, foreign)] == [False, True, True]


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
