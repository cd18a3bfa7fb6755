"""Machine code is never stale: the kernels' cache folder follows every source that is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.jit import sources_hash

_IMPORTED = """
from kvscope.jit import callable_in_kernels
@callable_in_kernels
def step(x):
    return x + {step}
"""
_KERNEL = """
from kvscope.jit import kernel
from stepping import step
@kernel
def run(x):
    return step(x)
"""


def test_an_edit_in_an_imported_function_changes_the_folder(tmp_path: Path) -> None:
    """Sources that take part in compilation count wherever they are; others do not."""
    (tmp_path / "stepping.py").write_text(_IMPORTED.format(step=1))
    (tmp_path / "running.py").write_text(_KERNEL)
    before = sources_hash(tmp_path)
    (tmp_path / "plain.py").write_text("x = 1\n")
    assert sources_hash(tmp_path) == before
    (tmp_path / "stepping.py").write_text(_IMPORTED.format(step=2))
    edited = sources_hash(tmp_path)
    assert edited != before
    (tmp_path / "stepping.py").rename(tmp_path / "moved.py")
    assert sources_hash(tmp_path) not in {before, edited}


def test_every_source_that_numba_compiles_is_hashed() -> None:
    """Wherever something is compiled, kvscope.jit is named: that is what the hash looks for."""
    package = Path(__file__).parent.parent / "kvscope"
    for path in package.rglob("*.py"):
        text = path.read_text()
        if "@kernel" in text or "@callable_in_kernels" in text or "njit" in text:
            assert "kvscope.jit" in text


@pytest.mark.parametrize("writable", [True, False])
def test_the_folder_is_found_or_replaced(tmp_path: Path, writable: bool) -> None:
    """Kernels lie under the cache folder; where that cannot be written, somewhere temporary."""
    home = tmp_path / "cache"
    if not writable:
        home.write_text("a file where the folder should be")
    told = subprocess.run(
        [sys.executable, "-c", "import kvscope.jit, numba; print(numba.config.CACHE_DIR)"],
        env=os.environ | {"KVSCOPE_CACHE_DIR": str(home), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(told.stdout.strip())
    assert folder.is_dir()
    assert folder.parent == (home if writable else tmp_path)
