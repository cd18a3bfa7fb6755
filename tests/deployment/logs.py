"""Lines of vLLM's start-up log."""

from __future__ import annotations

from kvscope.core.units import GIB


def advice(fits: int, in_use: float) -> str:
    """Return what vLLM logs once it has captured its CUDA graphs."""
    return (
        f"INFO gpu_worker.py:790] Replace gpu_memory_utilization config with `--kv-cache-memory="
        f"{fits - 3 * GIB}` (9 GiB) to fit into requested memory, or `--kv-cache-memory={fits}`"
        f" ({fits / GIB:.2f} GiB) to fully utilize gpu memory. Current kv cache memory in use is"
        f" {in_use} GiB."
    )
