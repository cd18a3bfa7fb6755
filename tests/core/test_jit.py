"""Machine code is never stale: the kernels' cache folder follows every source that is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.core.jit import sources_hash

_IMPORTED = """
from kvscope.core.jit import callable_in_kernels
@callable_in_kernels
def step(x):
    return x + {step}
"""
_KERNEL = """
from kvscope.core.jit import kernel
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
    """Wherever something is compiled, kvscope.core.jit is named, which the hash looks for."""
    package = Path(__file__).parents[2] / "kvscope"
    for path in package.rglob("*.py"):
        text = path.read_text()
        if "@kernel" in text or "@callable_in_kernels" in text or "njit" in text:
            assert "kvscope.core.jit" in text


@pytest.mark.parametrize("writable", [True, False])
def test_the_folder_is_found_or_replaced(tmp_path: Path, writable: bool) -> None:
    """Kernels lie under the cache folder; where that cannot be written, somewhere temporary."""
    home = tmp_path / "cache"
    if not writable:
        home.write_text("a file where the folder should be")
    told = subprocess.run(
        [sys.executable, "-c", "import kvscope.core.jit, numba; print(numba.config.CACHE_DIR)"],
        env=os.environ | {"KVSCOPE_CACHE_DIR": str(home), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(told.stdout.strip())
    assert folder.is_dir()
    assert folder.parent == (home if writable else tmp_path)


_SAVES = """
import numba, sys, time
from kvscope.core.jit import kernel
from numba.core.caching import IndexDataCacheFile
load = IndexDataCacheFile._load_index
def slowly(self):
    found = load(self)
    time.sleep(0.5)  # all are between reading the index and writing it
    return found
IndexDataCacheFile._load_index = slowly
write = IndexDataCacheFile._save_data
def later(self, *given):
    time.sleep(2 - int(sys.argv[1]) / 20)  # and the last index is not of the last code
    write(self, *given)
IndexDataCacheFile._save_data = later
def kernel_of(steps):
    @kernel
    def run(x):
        return x + steps[0]
    return run
print(kernel_of((int(sys.argv[1]),))(0))
"""


def test_processes_that_save_together_do_not_mix_up_their_code(tmp_path: Path) -> None:
    """Kernels of one factory share an index: each process finds its own afterwards."""
    (tmp_path / "saves.py").write_text(_SAVES)
    environment = os.environ | {"KVSCOPE_CACHE_DIR": str(tmp_path / "cache")}

    def started(step: int) -> subprocess.Popen[str]:
        words = [sys.executable, str(tmp_path / "saves.py"), str(step)]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    for _ in ("cold", "warm"):
        running = {step: started(step) for step in (10, 20, 30)}
        told = {step: int(process.communicate()[0]) for step, process in running.items()}
        assert told == {10: 10, 20: 20, 30: 30}


_FACTORY = """
import sys
import numpy as np
from kvscope.core.jit import callable_in_kernels, kernel
def kernel_of(step):
    @callable_in_kernels
    def stepped(x):
        return x + step
    @kernel
    def run(x, found):
        found[0] = stepped(x)
        return stepped(x)
    return run
def told(step):
    found = np.zeros(1, dtype=np.int64)
    assert kernel_of(step)(0, found) == found[0]
    return found[0]
print(*[told(int(step)) for step in sys.argv[1:]])
"""


def test_kernels_that_were_compiled_apart_run_together(tmp_path: Path) -> None:
    """Each was the first of its process, so numba counted it as the first; their names differ."""
    (tmp_path / "factory.py").write_text(_FACTORY)
    environment = os.environ | {"KVSCOPE_CACHE_DIR": str(tmp_path / "cache")}

    def told(*steps: str) -> str:
        words = [sys.executable, str(tmp_path / "factory.py"), *steps]
        found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return found.stdout.strip()

    for step in ("10", "20", "30"):
        assert told(step) == step
    assert told("10", "20", "30") == "10 20 30"
