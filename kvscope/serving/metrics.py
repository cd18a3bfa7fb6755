"""What a vLLM server's metrics tell of its blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass

_INFO = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BlockPool:
    """Blocks that requests can use, and tokens in each."""

    usable_blocks: int
    block_size: int


def block_pool(metrics: str) -> BlockPool | None:
    """The pool in metrics of Prometheus' format; None where they do not tell.

    Source: vLLM 0.32.0, the gauge vllm:cache_config_info; block 0 is never given to a request.
    """
    found = _INFO.search(metrics)
    if found is None:
        return None
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"]))
    try:
        return BlockPool(int(labels["num_gpu_blocks"]) - 1, int(labels["block_size"]))
    except (KeyError, ValueError):
        return None
