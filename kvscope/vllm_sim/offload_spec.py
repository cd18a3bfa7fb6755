"""How a CPU tier below an engine works, from text, and as options of the engine.

    vllm@0.33:eviction_policy=arc:blocks_per_chunk=4

An engine with its version, with options of vLLM's OffloadingConnector behind colons, under vLLM's
names; what is left out is vLLM's default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, get_args

from kvscope.core import units
from kvscope.core.errors import UsageError, placed
from kvscope.vllm_sim.settings import (
    AT_ONCE,
    RELEASES,
    ChunkPolicy,
    OffloadSettings,
    Release,
    Transfers,
)

WHERE = "--offload"
_VLLM = "vllm@"
FIXED = {
    "prefetch_threshold": "it is of storage below the host's memory, which is not simulated",
    "load_back_threshold": "SGLang has it fixed at 10 tokens",
    "cache_policy": "only LRU is simulated",
}
"""Options of engines that are not simulated, and why."""
_FORM = f"write for example {_VLLM}{RELEASES[-1]} or {_VLLM}{RELEASES[-1]}:eviction_policy=arc"


@dataclass(frozen=True, slots=True)
class OffloadSpec:
    """vLLM's CPU tier without its size; fields are vLLM's options, with its defaults."""

    release: Release
    eviction_policy: ChunkPolicy = "lru"
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True
    store_threshold: int = 0
    max_tracker_size: int = 64_000

    @classmethod
    def parse(cls, text: str) -> OffloadSpec:
        """Return what `vllm@0.33:store_threshold=2` stands for; UsageError for anything else."""
        engine, *rest = (piece.strip() for piece in text.split(":"))
        release = engine.removeprefix(_VLLM)
        if not engine.startswith(_VLLM) or release not in RELEASES:
            near = " or ".join(f"{_VLLM}{known}" for known in RELEASES)
            remedy = f"take {near}, sglang-hicache or lmcache"
            raise UsageError(f"{engine!r} is not modelled", where=WHERE, remedy=remedy)
        options = option_values(cls, rest, _value, "vLLM's tier")
        spec = cls(release, **options)
        spec.settings(1)
        return spec

    @property
    def text(self) -> str:
        """The spec as `--offload` takes it, without what is a default."""
        stated = stated_options(self, OffloadSpec(self.release))
        return written(f"{_VLLM}{self.release}", stated)

    @property
    def in_words(self) -> str:
        """A sentence on how the tier works."""
        policy = "LRU" if self.eviction_policy == "lru" else "ARC"
        content = "prompts only" if self.offload_prompt_only else "prompts and outputs"
        chunk = "" if self.blocks_per_chunk == 1 else f", {self.blocks_per_chunk} blocks a chunk"
        offers = ""
        if self.store_threshold > 1:
            offers = f", from the {self.store_threshold}th time a chunk is computed on"
        return (
            f"Offloading as in vLLM {self.release}: stored when computed{offers}, {content},"
            f" {policy}{chunk}."
        )

    @property
    def left_out(self) -> str:
        """Nothing: its steps are compared with vLLM's."""
        return ""

    def chunk_blocks(self, block_size: int) -> int:
        """Return the blocks of a chunk."""
        return self.blocks_per_chunk

    def settings(
        self,
        blocks: int,
        load: Transfers = AT_ONCE,
        store: Transfers = AT_ONCE,
        *,
        block_size: int = 16,
    ) -> OffloadSettings:
        """Return the tier with room for so many blocks, and these times of a copy."""
        return OffloadSettings(
            max(1, blocks // max(1, self.blocks_per_chunk)),
            self.release,
            self.eviction_policy,
            self.blocks_per_chunk,
            self.offload_prompt_only,
            self.store_threshold,
            self.max_tracker_size,
            load,
            store,
        )

    def kv_transfer_config(self, cpu_bytes: int) -> Mapping[str, Any]:
        """Return the value of vLLM's `--kv-transfer-config` for so many bytes."""
        stated = {
            name: getattr(self, name) for name in stated_options(self, OffloadSpec(self.release))
        }
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": cpu_bytes, **stated},
        }

    def launch(self, cpu_bytes: int, ranks: int = 1) -> str:
        """Return vLLM's option for so many bytes."""
        return f"vLLM: --kv-transfer-config '{json.dumps(self.kv_transfer_config(cpu_bytes))}'"


def option_values(
    kind: type, pieces: Sequence[str], read: Callable[[str, str], object], tier: str
) -> dict[str, Any]:
    """Return the options in `pieces`, by the names of a dataclass's fields with a default.

    `read` returns the value of an option from its text. Raises UsageError for what is no option of
    `tier`.
    """
    options: dict[str, Any] = {}
    known = [field.name for field in fields(kind) if field.default is not MISSING]
    for piece in pieces:
        name, equals, value = (side.strip() for side in piece.partition("="))
        if not equals or not value:
            raise UsageError(f"{piece!r} is no option", where=WHERE, remedy=_FORM)
        if name not in known:
            near = "".join(get_close_matches(name, known, n=1))
            remedy = f"did you mean {near}?" if near else f"it has {', '.join(known)}"
            remedy = FIXED.get(name, remedy)
            raise UsageError(f"{tier} has no option {name!r}", where=WHERE, remedy=remedy)
        if name in options:
            raise UsageError(f"{name} is there twice", where=WHERE, remedy="leave one out")
        options[name] = read(name, value)
    return options


def stated_options(spec: Any, plain: Any) -> dict[str, str]:
    """Return the options that differ from those of `plain`, as text."""
    return {
        field.name: json.dumps(value).strip('"')
        for field in fields(spec)
        if (value := getattr(spec, field.name)) != getattr(plain, field.name)
    }


def written(name: str, options: Mapping[str, str]) -> str:
    """Return a tier with its options as `--offload` takes them."""
    return name + "".join(f":{option}={value}" for option, value in options.items())


def parse_switch(text: str) -> bool:
    """Return what true or false stands for; UsageError for anything else."""
    if text not in {"true", "false"}:
        raise UsageError(f"{text!r} is neither", where=WHERE, remedy="take true or false")
    return text == "true"


def _value(name: str, text: str) -> object:
    if name == "eviction_policy":
        if text not in get_args(ChunkPolicy):
            raise UsageError(f"{text!r} is no policy of it", where=WHERE, remedy="take lru or arc")
        return text
    if name == "offload_prompt_only":
        return parse_switch(text)
    with placed(f"{WHERE} {name}"):
        return units.parse_tokens(text)
