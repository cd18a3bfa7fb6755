"""Folders of caches are private: what lies there is executed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvscope.core.files import private_cache


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder to be; the temporary folder is `temporary`, next to it."""
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(tmp_path / "home"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "home"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _in_temporary(home: Path) -> Path:
    return home.parent / "temporary" / f"kvscope-{os.geteuid()}-kernels"


def test_the_folder_is_private_and_stays_the_same(home: Path) -> None:
    """Below the cache folder."""
    assert private_cache("kernels") == private_cache("kernels") == home / "kernels"
    assert _mode(home / "kernels") == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(home: Path) -> None:
    """Nor is one that is a symbolic link, or a file."""
    (home / "kernels").mkdir(parents=True)
    (home / "kernels").chmod(0o770)
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "links").symlink_to(home / "elsewhere")
    (home / "text").write_text("")
    assert private_cache("kernels") == _in_temporary(home)
    assert _mode(_in_temporary(home)) == 0o700
    for name in ("links", "text"):
        assert private_cache(name).parent == home.parent / "temporary"


def test_a_temporary_folder_that_somebody_else_has_made_is_not_used(home: Path) -> None:
    """A folder of this process alone is, which ends with it."""
    home.write_text("a file where the folder should be")
    trap = _in_temporary(home)
    trap.mkdir()
    trap.chmod(0o777)
    script = "from kvscope.core.files import private_cache; print(private_cache('kernels'))"
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"TMPDIR": str(trap.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(process.stdout.strip())
    assert folder.parent == trap.parent
    assert folder != trap
    assert list(trap.parent.iterdir()) == [trap]


def test_a_folder_of_another_user_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its mode."""
    private_cache("kernels")
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert home not in private_cache("kernels").parents
