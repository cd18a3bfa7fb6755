"""Options of vLLM's CPU tier: parsed from text, and written as vLLM's own arguments.

    vllm@0.33:eviction_policy=arc:blocks_per_chunk=4

The text is an engine with its version, then options of vLLM's OffloadingConnector behind colons,
under vLLM's names and with vLLM's defaults.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, get_args

from msgspec import Struct

from kvscope.core import units
from kvscope.core.errors import UsageError, key_values, placed
from kvscope.deployment.engines import Engine
from kvscope.vllm_sim.settings import (
    AT_ONCE,
    RELEASES,
    ChunkPolicy,
    OffloadSettings,
    Release,
    StorageSettings,
    Transfers,
)

WHERE = "--offload"
_VLLM = "vllm@"
_LAST_VERSION = (0, 33)  # of RELEASES
_EXTRA = "kv_connector_extra_config"
_NAMES = {"lru": "LRU", "arc": "ARC"}
_OPTIONS = (
    "eviction_policy",
    "blocks_per_chunk",
    "offload_prompt_only",
    "store_threshold",
    "max_tracker_size",
)
_FORM = f"write for example {_VLLM}{RELEASES[-1]} or {_VLLM}{RELEASES[-1]}:eviction_policy=arc"


class OffloadSpec(Struct, frozen=True):
    """vLLM's CPU tier without its size; fields are vLLM's options, with its defaults.

    `files`: a file tier (vLLM's `fs`) is below it; in the arguments for vLLM, the text PATH stands
    for its folder, which users put there.
    """

    release: Release
    eviction_policy: ChunkPolicy = "lru"
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True
    store_threshold: int = 0
    max_tracker_size: int = 64_000
    files: bool = False

    @classmethod
    def parse(cls, text: str, *, files: bool = False) -> OffloadSpec:
        """Return the tier of a text such as `vllm@0.33:store_threshold=2`, with or without `files`.

        Raises UsageError for any other text, and for values that vLLM refuses.
        """
        engine, *rest = (piece.strip() for piece in text.split(":"))
        release = engine.removeprefix(_VLLM)
        if not engine.startswith(_VLLM) or release not in RELEASES:
            near = " or ".join(f"{_VLLM}{known}" for known in RELEASES)
            raise UsageError(f"{engine!r} is not modelled", where=WHERE, remedy=f"take {near}")
        given = key_values(rest, _OPTIONS, WHERE, owner="vLLM's tier", example=_FORM)
        spec = cls(release, **{name: _value(name, value) for name, value in given}, files=files)
        with placed(f"{WHERE} {spec.text}"):
            spec.settings(1)
        return spec

    @property
    def text(self) -> str:
        """The spec in the form of `--offload`, without options at their defaults."""
        stated = (f":{name}={json.dumps(value)}" for name, value in self._stated.items())
        return f"{_VLLM}{self.release}{''.join(stated)}".replace('"', "")

    @property
    def in_words(self) -> str:
        """The behaviour of the tier in sentences."""
        content = "prompts only" if self.offload_prompt_only else "prompts and outputs"
        chunk = "" if self.blocks_per_chunk == 1 else f", {self.blocks_per_chunk} blocks a chunk"
        offers = ""
        if self.store_threshold > 1:
            offers = f", from the {self.store_threshold}th time a chunk is computed on"
        files = (
            " Below the CPU tier, files (vLLM's fs): all that it stores is written on to them, and"
            " read back into it before a load. vLLM deletes none; once they fill their size,"
            " nothing more is written."
        )
        return (
            f"Offloading as in vLLM {self.release}: stored when computed{offers}, {content},"
            f" {_NAMES[self.eviction_policy]}{chunk}.{files if self.files else ''}"
        )

    def settings(
        self,
        blocks: int,
        load: Transfers = AT_ONCE,
        store: Transfers = AT_ONCE,
        storage: StorageSettings | None = None,
    ) -> OffloadSettings:
        """Return the settings of a tier with room for `blocks` blocks, and these copy times.

        `storage`, the file tier, counts with `files` only; by default ample, and takes no time.
        """
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
            (storage or StorageSettings()) if self.files else None,
        )

    def kv_transfer_config(self, cpu_bytes: int) -> Mapping[str, Any]:
        """Return the value of vLLM's `--kv-transfer-config` for `cpu_bytes` of memory."""
        extra = {"cpu_bytes_to_use": cpu_bytes, **self._stated}
        if self.files:
            extra["spec_name"] = "TieringOffloadingSpec"
            extra["secondary_tiers"] = [{"type": "fs", "root_dir": "PATH"}]
        return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", _EXTRA: extra}

    def arguments(self, cpu_bytes: int) -> str:
        """Return vLLM's command-line arguments for `cpu_bytes` of memory, quoted for a shell."""
        config = json.dumps(self.kv_transfer_config(cpu_bytes))
        return shlex.join(["--kv-transfer-config", config])

    @property
    def _stated(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        plain = OffloadSpec(self.release)
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value != getattr(plain, name)}


def own_offload(engine: Engine | None) -> str:
    """Return the `--offload` text of the modelled vLLM nearest to `engine`; None: the last."""
    last = engine is None or engine.version >= _LAST_VERSION
    return f"{_VLLM}{RELEASES[-1 if last else 0]}"


def _value(name: str, text: str) -> Any:
    if name == "eviction_policy":
        known = get_args(ChunkPolicy)
        if text not in known:
            remedy = f"take {' or '.join(known)}"
            raise UsageError(f"{text!r} is no policy of it", where=WHERE, remedy=remedy)
        return text
    if name == "offload_prompt_only":
        if text not in {"true", "false"}:
            raise UsageError(f"{text!r} is neither", where=WHERE, remedy="take true or false")
        return text == "true"
    with placed(f"{WHERE} {name}"):
        return units.parse_tokens(text)
