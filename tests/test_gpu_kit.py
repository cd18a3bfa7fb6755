"""The kit that proves predictions on a GPU: what it packs, and its stages on a CPU."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from benchmarks.gpu import stages
from benchmarks.gpu.models import CONFIGS, write_model
from benchmarks.gpu.pack import LISTS, thin
from benchmarks.gpu.page import tables
from benchmarks.gpu.stages import run_stage
from kvscope.deployment.models import read_config
from kvscope.serving.interpreter import interpreter

PTX, CUBIN = 1, 2


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """Return a fat binary of entries: kind, architecture, code."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 0, 64, len(code)).ljust(28, b"\0")
        + struct.pack("<I", architecture).ljust(36, b"\0")
        + code
        for kind, architecture, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_code_of_other_gpus_is_blanked() -> None:
    """Of every container the machine code of the GPU stays, or else its PTX; sizes stay."""
    both = container((CUBIN, 80, b"A" * 24), (CUBIN, 90, b"B" * 16), (PTX, 80, b"C" * 8))
    only_ptx = container((CUBIN, 80, b"D" * 16), (PTX, 80, b"E" * 8))
    library = bytearray(b"\x7fELF..." + both + b"between" + only_ptx + b"the end")
    before = len(library)
    assert thin(library, 90) == 24 + 8 + 16
    assert len(library) == before
    assert [bytes([letter]) in library[8:-7] for letter in b"ABCDE"] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert library.endswith(b"the end")
    assert b"between" in library


def test_lists_are_pinned() -> None:
    """Each wheel by its version: what was tried is what travels."""
    folder = Path(stages.__file__).parent
    for name in LISTS:
        lines = (folder / f"wheels-{name}.txt").read_text(encoding="utf-8").splitlines()
        wheels = [line for line in lines if not line.startswith("#")]
        assert wheels
        assert all(line.count("==") == 1 for line in wheels), name


def test_models_are_those_that_kvscope_sizes(tmp_path: Path) -> None:
    """Their config.json files read back; small ones are of the same kind."""
    for name in CONFIGS:
        large = read_config(write_model(tmp_path, name) / "config.json")
        small = read_config(write_model(tmp_path / "small", name, small=True) / "config.json")
        assert (large.moe, large.hybrid) == (small.moe, small.hybrid), name
        assert small.weight_bytes(1) < large.weight_bytes(1) / 100


def test_a_failed_step_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is missing, in the stage's file; so does a stage without time."""

    def some_fail(run: stages.Run) -> None:
        with run.step("broken") as found:
            found["begun"] = True
            raise ValueError("no such thing")
        with run.step("whole") as found:
            found["answer"] = 42

    monkeypatch.setitem(stages.STAGES, "torch", some_fail)
    assert not run_stage("torch", tmp_path, small=True)
    found = json.loads((tmp_path / "torch.json").read_text(encoding="utf-8"))
    assert found["failed"] == {"broken": "ValueError: no such thing"}
    assert found["steps"]["whole"]["answer"] == 42
    assert not run_stage("torch", tmp_path, small=True, limit_s=-1.0)
    assert "no time left" in (tmp_path / "torch.json").read_text(encoding="utf-8")


@pytest.mark.engine
@pytest.mark.skipif(interpreter().torch is None, reason="no torch here: make test-engine")
def test_the_first_stage_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates, prefill and decoding of a small model on the CPU, and their tables."""
    monkeypatch.setattr(stages, "TORCH_MODELS", ("qwen3-30b-a3b",))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # beside other tests, threads wait for each other
    assert run_stage("torch", tmp_path, small=True)
    titles = [table.title for table in tables(tmp_path, "h100")]
    assert titles == ["Rates", "Prefill, plain torch", "A step of decoding, plain torch"]
