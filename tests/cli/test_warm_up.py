"""The kernels of all commands are compiled at once, where an installation asks for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.cli import warm_up
from kvscope.core.files import private_cache
from tests.cli.replayed import write_short
from tests.cli.shell import Streams

LATER = (
    "simulate --points 4",
    "explain --capacity-blocks 20000",
    "simulate --model qwen2-7b --capacity 20GiB --capacity-model engine",
    "simulate --gpu h100 --model gpt-oss-20b",
    "fleet --slo 200ms --gpu h100 --model gpt-oss-20b --replicas 3",
)
_ALL = """
import sys
from kvscope.cli.app import run
for line in sys.argv[2:]:
    command, *options = line.split()
    assert run([command, sys.argv[1], "--db", ":memory:", *options]) == 0
"""


def compile_more(cache: Path) -> set[str]:
    """Run commands on a sample, and return the names of the kernels that they add to a cache."""
    kernels = cache / "kernels"
    before = {path.name for path in kernels.iterdir()}
    trace = write_short(cache)
    subprocess.run([sys.executable, "-c", _ALL, trace, *LATER], check=True, capture_output=True)
    return {path.name for path in kernels.iterdir()} - before


def test_nothing_is_left_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """On another trace than the one of the warm-up, which `make setup` ran; if not, run it here.

    In a copy of the cache, to which other tests add nothing meanwhile.
    """
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    (warm / "kernels").mkdir(parents=True)
    for kernel in private_cache("kernels").glob("*.kernel"):
        shutil.copy(kernel, warm / "kernels")
    monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(warm))
    if compile_more(warm):
        monkeypatch.setenv("KVSCOPE_CACHE_DIR", str(cold))
        assert warm_up.main() == 0, capsys.readouterr().err
        assert not compile_more(cold)
