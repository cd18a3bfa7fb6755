"""Measure a GPU's rates with torch alone: arithmetic, memory, and copies from and to the host.

    python rates.py            # one JSON object: FLOP/s and bytes/s

Every figure is the median of repeated runs between synchronizations, of sizes beyond any cache.
Without CUDA it measures small sizes on the CPU, to try the script.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

REPEATS = 9


def main() -> None:
    """Print the rates, and what was measured on."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    size = 8192 if cuda else 512
    count = 2**32 if cuda else 2**24  # bytes
    factors = [torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2)]
    on_device = torch.empty(count, dtype=torch.uint8, device=device)
    other = torch.empty_like(on_device)
    host = torch.empty(count // 4, dtype=torch.uint8, pin_memory=cuda)
    part = on_device[: count // 4]
    copied = {
        "host_to_device": (part, host),
        "device_to_host": (host, part),
    }
    rates = {
        "bf16_flops": 2 * size**3 / _seconds(lambda: factors[0] @ factors[1]),
        # bytes read and bytes written both pass the memory
        "memory_bytes_s": 2 * count / _seconds(lambda: other.copy_(on_device)),
    }
    for name, (to, of) in copied.items():
        seconds = _seconds(partial(to.copy_, of, non_blocking=True))
        rates[f"{name}_bytes_s"] = host.numel() / seconds
    about = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "memory_bytes": torch.cuda.mem_get_info()[1] if cuda else None,
        "torch": torch.__version__,
        "rates": rates,
    }
    print(json.dumps(about))


def _seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of a run, after two that do not count."""
    times = []
    for _ in range(2 + REPEATS):
        before = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
    return statistics.median(times[2:])


if __name__ == "__main__":
    main()
