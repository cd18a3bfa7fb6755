"""GPUs: memory as CUDA reports it, rates of dense arithmetic and of memory, and the GPU link.

Latencies on `checked` GPUs were compared with published measurements
(docs/evidence/deployment.md); those on the others follow from data sheets alone.

Source: system files of aiconfigurator-core 0.12.0 (rates and links); total memory from published
start-up logs of vLLM, where CUDA's figure is below the data sheet's (B300, GB200, GB300: that of
nvidia-smi less 0.4 %, as on B200); data sheets of NVIDIA and AMD for H100 NVL, H20, A10G, A40, T4,
V100, GB10, RTX A6000, RTX 3090, RTX 4090, RTX 5090 and the MI300 series.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.units import GIB

_LARGEST_WORKSTATION = 130 * GIB
Family = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna"]


class Gpu(Struct, frozen=True):
    """One GPU. Rates are dense FLOP/s; fp8 and fp4 are 0 if its tensor cores lack them.

    `link_bytes_s` is one direction of the link to the other GPUs of its node.
    """

    name: str
    family: Family
    total_bytes: int
    flops: float
    fp8_flops: float
    fp4_flops: float
    memory_bytes_s: float
    link_bytes_s: float
    checked: bool

    @property
    def default_max_num_seqs(self) -> int:
        """Default limit of running requests in vLLM's API server on this GPU.

        Source: vLLM 0.33.0, vllm/engine/arg_utils.py, get_batch_defaults.
        """
        return self._by_memory(1024, 1024, 256)

    @property
    def default_max_num_batched_tokens(self) -> int:
        """Default limit of tokens per step in vLLM's API server on this GPU; source as above."""
        return self._by_memory(16_384, 8192, 2048)

    @property
    def sglang_chunk_tokens(self) -> int:
        """Default of SGLang's `--chunked-prefill-size` on this GPU, in tokens.

        Source: SGLang 0.5.23, srt/arg_groups/memory_hook.py.
        """
        sizes = ((160, 16_384), (60, 8192), (35, 4096))
        return next((size for least, size in sizes if self.total_bytes >= least * GIB), 2048)

    @property
    def in_server(self) -> bool:
        """Whether the GPU has over 130 GiB: of Blackwell GPUs, only those for servers have."""
        return self.total_bytes > _LARGEST_WORKSTATION

    def _by_memory(self, largest: int, large: int, others: int) -> int:
        if self.total_bytes >= 160 * GIB:
            return largest
        return large if self.total_bytes >= 70 * GIB and "a100" not in self.name else others


def _gpu(
    name: str,
    family: Family,
    gib: float,
    tflops: tuple[float, float, float],
    memory_tb_s: float,
    link_gb_s: float,
    *,
    checked: bool = False,
) -> Gpu:
    flops, fp8, fp4 = (rate * 1e12 for rate in tflops)
    memory, link = memory_tb_s * 1e12, link_gb_s * 1e9
    return Gpu(name, family, round(gib * GIB), flops, fp8, fp4, memory, link, checked)


_TABLE = (
    _gpu("a100-40gb", "ampere", 39.39, (312, 0, 0), 1.555, 300),
    _gpu("a100-80gb", "ampere", 79.25, (312, 0, 0), 2.039, 300, checked=True),
    _gpu("h100", "hopper", 79.19, (989, 1979, 0), 3.35, 450, checked=True),
    _gpu("h100-pcie", "hopper", 79.19, (756, 1513, 0), 2.0, 64),
    _gpu("h100-nvl", "hopper", 93.1, (835, 1671, 0), 3.9, 300),
    _gpu("h200", "hopper", 139.8, (989, 1979, 0), 4.8, 450, checked=True),
    _gpu("h20", "hopper", 95.2, (148, 296, 0), 4.0, 450),
    _gpu("h20-141gb", "hopper", 139.72, (148, 296, 0), 4.8, 450),
    _gpu("b200", "blackwell", 178.4, (2250, 4500, 9000), 7.7, 900, checked=True),
    _gpu("b300", "blackwell", 267.5, (2250, 4500, 14_000), 7.75, 900, checked=True),
    _gpu("gb200", "blackwell", 184.3, (2500, 5000, 10_000), 8.0, 900, checked=True),
    _gpu("gb300", "blackwell", 276.5, (2500, 5000, 15_000), 8.0, 900),
    _gpu("gb10", "blackwell", 119.7, (125, 250, 500), 0.273, 25),
    _gpu("l4", "ada", 22.07, (121, 242, 0), 0.3, 32),
    _gpu("l40s", "ada", 44.39, (362, 733, 0), 0.864, 32, checked=True),
    _gpu("a10g", "ampere", 22.07, (70, 0, 0), 0.6, 32),
    _gpu("a40", "ampere", 44.4, (150, 0, 0), 0.696, 32),
    _gpu("v100", "volta", 31.73, (125, 0, 0), 0.9, 150),
    _gpu("t4", "turing", 14.56, (65, 0, 0), 0.32, 16),
    _gpu("rtx-a6000", "ampere", 47.4, (155, 0, 0), 0.768, 32),
    _gpu("rtx-3090", "ampere", 23.57, (71, 0, 0), 0.936, 32),
    _gpu("rtx-4090", "ada", 23.52, (165, 330, 0), 1.01, 32),
    _gpu("rtx-5090", "blackwell", 31.35, (210, 419, 1676), 1.79, 64),
    _gpu("rtx-pro-6000", "blackwell", 94.97, (468, 936, 1871), 1.79, 64),
    _gpu("mi300x", "cdna", 191.69, (1307, 2615, 0), 5.3, 448),
    _gpu("mi325x", "cdna", 255.7, (1307, 2615, 0), 6.0, 448),
    _gpu("mi355x", "cdna", 287.7, (2517, 5033, 10_066), 8.0, 538),
)
GPUS: Mapping[str, Gpu] = {gpu.name: gpu for gpu in _TABLE}
_OTHER_NAMES = {
    "a100": "a100-80gb",
    "a100-80": "a100-80gb",
    "a100-40": "a100-40gb",
    "a100-sxm": "a100-80gb",
    "h100-sxm": "h100",
    "h100-80gb": "h100",
    "h200-sxm": "h200",
    "b200-sxm": "b200",
    "a6000": "rtx-a6000",
    "h20-96gb": "h20",
    "v100-32gb": "v100",
    "dgx-spark": "gb10",
    "3090": "rtx-3090",
    "rtx3090": "rtx-3090",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "5090": "rtx-5090",
    "rtx5090": "rtx-5090",
}


_KEYS: Mapping[str, tuple[str, float]] = {
    "gpu_memory_gib": ("total_bytes", GIB),
    "gpu_tflops": ("flops", 1e12),
    "gpu_fp8_tflops": ("fp8_flops", 1e12),
    "gpu_fp4_tflops": ("fp4_flops", 1e12),
    "gpu_bandwidth_gb_s": ("memory_bytes_s", 1e9),
    "gpu_link_gb_s": ("link_bytes_s", 1e9),
}
GPU_KEYS = tuple(_KEYS)
"""Keys of kvscope.toml that describe a GPU: memory, dense arithmetic, memory rate, link."""
NEEDED_KEYS = ("gpu_memory_gib", "gpu_tflops", "gpu_bandwidth_gb_s")
"""Keys without which an unknown GPU has neither a pool nor a latency."""


def gpu_name(text: str) -> str:
    """Return the name of a GPU in `GPUS`; for unknown GPUs, `text` in lower case with hyphens."""
    name = text.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    return _OTHER_NAMES.get(name, name)


def resolve_gpu(text: str) -> Gpu:
    """Return the GPU called `text`, in any case. Raises UsageError with the nearest names."""
    name = gpu_name(text)
    if name in GPUS:
        return GPUS[name]
    near = get_close_matches(name, [*GPUS, *_OTHER_NAMES], n=3, cutoff=0.5)
    remedy = f"did you mean {', '.join(near)}" if near else f"GPUs: {', '.join(GPUS)}"
    raise UsageError(f"no GPU {text!r}", remedy=remedy)


def described_gpu(text: str, stated: Mapping[str, float]) -> Gpu:
    """Return the GPU called `text` with `stated` values, whose keys are from GPU_KEYS.

    Stated values replace those of a known GPU. An unknown GPU has a link of 32 GB/s unless stated,
    and counts as Blackwell with fp4, as Ada with fp8 alone, else as Ampere. Raises UsageError for
    an unknown GPU without its memory, FLOP/s or memory rate (NEEDED_KEYS).
    """
    try:
        known = resolve_gpu(text)
    except UsageError as error:
        missing = [key for key in NEEDED_KEYS if key not in stated]
        if missing:
            remedy = f"describe it in kvscope.toml: {', '.join(missing)}"
            if len(missing) == len(NEEDED_KEYS):
                remedy = f"{error.remedy}; or {remedy}"
            raise UsageError(error.what, remedy=remedy) from error
        family: Family = "ampere"
        if "gpu_fp8_tflops" in stated:
            family = "ada"
        if "gpu_fp4_tflops" in stated:
            family = "blackwell"
        known = Gpu(gpu_name(text), family, 0, 0, 0, 0, 0, 32e9, checked=False)
    values = {field: stated[key] * scale for key, (field, scale) in _KEYS.items() if key in stated}
    if "total_bytes" in values:
        values["total_bytes"] = round(values["total_bytes"])
    return replace(known, **values, checked=known.checked and not values)
