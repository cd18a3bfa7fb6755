"""GPUs that a deployment describes: any name with its values, or other values of a known one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.core.errors import InputError, UsageError
from kvscope.core.units import GIB
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.file import read_deployment, write_deployment
from kvscope.deployment.gpus import described_gpu, resolve_gpu

L40S = {
    "gpu_memory_gib": 44.39,
    "gpu_tflops": 362.0,
    "gpu_fp8_tflops": 733.0,
    "gpu_bandwidth_gb_s": 864.0,
}


def test_a_described_gpu_is_as_good_as_a_known_one(tmp_path: Path) -> None:
    """The same values under another name: the same pool and latency, written and read again."""
    path = tmp_path / "kvscope.toml"
    write_deployment(path, Deployment(gpu="our card", model="llama3.1-8b", **L40S))  # type: ignore[arg-type]
    ours = resolve(read_deployment(path))
    known = resolve(Deployment(gpu="l40s", model="llama3.1-8b"))
    assert ours.gpu is not None
    assert (ours.gpu.name, ours.gpu.family, ours.gpu.checked) == ("our-card", "ada", False)
    assert ours.pool.blocks == known.pool.blocks
    assert ours.latency.ttft_s(8_000, 0) == known.latency.ttft_s(8_000, 0)
    assert ours.max_num_batched_tokens == known.max_num_batched_tokens


def test_values_replace_those_of_a_known_gpu() -> None:
    """A card with more memory keeps its rates; what is not stated stays."""
    large, usual = described_gpu("RTX 4090", {"gpu_memory_gib": 47.5}), resolve_gpu("rtx-4090")
    assert (large.name, large.total_bytes, large.flops) == ("rtx-4090", 47.5 * GIB, usual.flops)
    assert described_gpu("h100", {}) == resolve_gpu("h100")
    assert described_gpu("h100", {"gpu_link_gb_s": 64.0}).checked is False
    pools = (
        resolve(Deployment(gpu="4090", model="qwen3-8b", gpu_memory_gib=gib)).pool.blocks
        for gib in (None, 47.5)
    )
    few, many = pools
    assert many > 4 * few


@pytest.mark.parametrize(
    ("stated", "family"),
    [({}, "ampere"), ({"gpu_fp8_tflops": 1.0}, "ada"), ({"gpu_fp4_tflops": 1.0}, "blackwell")],
)
def test_the_family_of_a_described_gpu(stated: dict[str, float], family: str) -> None:
    """It follows from the precisions of its tensor cores; its link is that of PCIe 4."""
    needed = {"gpu_memory_gib": 40.0, "gpu_tflops": 100.0, "gpu_bandwidth_gb_s": 800.0}
    found = described_gpu("ours", needed | stated)
    assert (found.family, found.link_bytes_s) == (family, 32e9)


def test_what_is_missing_or_absurd_is_named(tmp_path: Path) -> None:
    """In one line, with the key in the file."""
    with pytest.raises(
        UsageError,
        match=r"no GPU 'ours'; describe it in kvscope\.toml: gpu_tflops, gpu_bandwidth_gb_s$",
    ):
        described_gpu("ours", {"gpu_memory_gib": 40.0})
    with pytest.raises(
        UsageError, match=r"'h1000'; did you mean h100.*; or describe it in kvscope\.toml: gpu_m"
    ):
        described_gpu("h1000", {})
    path = tmp_path / "kvscope.toml"
    for value, what in (("-1", "-1 is not above 0"), ("1e7", r"1e\+07 is not above 0, or beyond")):
        path.write_text(f'schema = 1\ngpu = "h100"\ngpu_tflops = {value}\n', encoding="utf-8")
        with pytest.raises(InputError, match=rf"kvscope\.toml: gpu_tflops: {what}"):
            read_deployment(path)
