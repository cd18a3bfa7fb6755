"""The engine of a deployment and its version, written `vllm@0.33` or `sglang`."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from kvscope.core.errors import UsageError

EngineName = Literal["vllm", "sglang"]
DEFAULT_ENGINE = "vllm@0.33"
_WRITTEN = re.compile(r"(?P<name>[a-z]+)(?:@v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.\S*)?)?")
_NEWEST: dict[str, tuple[int, int]] = {"vllm": (0, 33), "sglang": (0, 5)}


class Engine(Struct, frozen=True):
    """An engine and its (major, minor) version."""

    name: EngineName
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name}@{self.version[0]}.{self.version[1]}"

    @property
    def default_utilization(self) -> float:
        """Share of the GPU's memory that the engine takes: vLLM's 0.92 since 0.20, 0.9 before."""
        return 0.92 if self.version >= (0, 20) else 0.9

    @property
    def default_block_size(self) -> int:
        """Tokens per block on a GPU; SGLang caches single tokens."""
        return 16 if self.name == "vllm" else 1

    @property
    def null_blocks(self) -> int:
        """Blocks that the engine never hands to a request: block 0 of vLLM."""
        return 1 if self.name == "vllm" else 0


def parse_engine(text: str) -> Engine:
    """Return the engine that `text` names, its newest known version if none is stated.

    Raises UsageError for another engine or an unreadable version.
    """
    match = _WRITTEN.fullmatch(text.strip().lower())
    if match is None or match["name"] not in _NEWEST:
        raise UsageError(f"no engine {text!r}", remedy="write vllm, vllm@0.33 or sglang")
    name: EngineName = "vllm" if match["name"] == "vllm" else "sglang"
    if match["major"] is None:
        return Engine(name, _NEWEST[name])
    return Engine(name, (int(match["major"]), int(match["minor"])))
