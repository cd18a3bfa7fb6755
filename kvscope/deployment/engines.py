"""The engine of a deployment and its version, written `vllm@0.33` or `sglang`."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.gpus import Gpu
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.versions import (
    LARGE_BATCHES,
    NEWEST,
    PLUGIN,
    RETENTION_VARIABLE,
    STATES_COMPARED,
    STATES_WRITTEN_ONCE,
    THIN_RETENTION,
    UNHASHED_FIRST,
    UTILIZATION,
    WHOLE_PROMPT,
    EngineChange,
    not_compared,
    version_text,
)

EngineName = Literal["vllm", "sglang"]
DEFAULT_ENGINE = f"vllm@{version_text(NEWEST)}"
_WRITTEN = re.compile(r"(?P<name>[a-z]+)(?:@v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.\S*)?)?")
_NEWEST: dict[str, tuple[int, int]] = {"vllm": NEWEST, "sglang": (0, 5)}


class Engine(Struct, frozen=True):
    """An engine and its (major, minor) version."""

    name: EngineName
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name}@{version_text(self.version)}"

    def has(self, change: EngineChange) -> bool:
        """Return whether it is a vLLM with this behaviour."""
        return self.name == "vllm" and self.version >= change.since

    @property
    def default_utilization(self) -> float:
        """Share of the GPU's memory that the engine takes."""
        return 0.92 if self.has(UTILIZATION) else 0.9

    def default_batched_tokens(self, gpu: Gpu) -> int:
        """Return the limit of tokens per step on a GPU; of SGLang, that of a prompt's chunk."""
        if self.name == "sglang":
            return gpu.sglang_chunk_tokens
        usual = gpu.default_max_num_batched_tokens
        return usual if self.has(LARGE_BATCHES) else min(usual, 8192)

    @property
    def simulated_as(self) -> str:
        """Its name where the simulator does something else for it than for the newest vLLM."""
        own = (WHOLE_PROMPT, UNHASHED_FIRST, STATES_WRITTEN_ONCE)
        return "" if self.name != "vllm" or all(map(self.has, own)) else str(self)

    @property
    def runs_plugin(self) -> bool:
        """Whether kvscope's plugin loads into it."""
        return self.name == "vllm" and self.version in PLUGIN

    def retaining(self, groups: KvGroups) -> KvGroups:
        """Return groups with the retention interval that is this vLLM's default."""
        if self.has(THIN_RETENTION) or not groups.sparse:
            return groups
        return replace(groups, retention_tokens=None)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What kvscope cannot do in this vLLM."""
        if self.name != "vllm" or self.runs_plugin:
            return ()
        known = ", ".join(map(version_text, PLUGIN))
        own = version_text(self.version)
        why = f"kvscope's plugin does not load into vLLM {own}, but into {known}"
        return (f"{why}: other policies than LRU get no flags",)

    def doubts(self, groups: KvGroups | None) -> tuple[str, ...]:
        """Return what is uncertain of its cache, for a model with these groups of layers."""
        if self.name != "vllm":
            newest, own = (version_text(each) for each in (_NEWEST[self.name], self.version))
            other = f"SGLang {own} was not compared with kvscope, and is simulated as {newest}"
            return () if own == newest else (f"{other}: its hits may differ",)
        doubts = [not_compared(self.version)]
        if groups is not None and groups.state_tokens and self.version < STATES_COMPARED:
            since = version_text(STATES_COMPARED)
            doubts.append(
                f"states of linear attention were not compared before vLLM {since}: hits may differ"
            )
        if groups is not None and groups.sparse and not self.has(THIN_RETENTION):
            thinner = (
                "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=0 in its environment keeps less"
                if self.has(RETENTION_VARIABLE)
                else "no setting keeps less"
            )
            since = version_text(THIN_RETENTION.since)
            doubts.append(f"before {since} vLLM keeps all windows and states; {thinner}")
        return tuple(note for note in doubts if note is not None)

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
