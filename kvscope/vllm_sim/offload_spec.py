"""How a CPU tier below an engine works, from text, and as options of the engine.

    vllm@0.33:eviction_policy=arc:blocks_per_chunk=4
    vllm@0.33:eviction_policy=tlru:xi_tokens=4k:guard=1

An engine with its version, with options of vLLM's OffloadingConnector behind colons, under vLLM's
names; what is left out is vLLM's default. A policy of kvscope's plugin takes its parameters there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.errors import UsageError, placed
from kvscope.core.records import defaults
from kvscope.policies.base import GUARD, LanePolicy, Parameter, Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import NOT_OF_CHUNKS, TLru
from kvscope.replay.policy_options import parse_value
from kvscope.vllm_sim.offload_launch import OffloadLaunch
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
_EXTRA = "kv_connector_extra_config"
_NAMES = {"lru": "LRU", "arc": "ARC"}
_CHUNK_POLICIES: Mapping[str, tuple[type[LanePolicy], str]] = {
    "tlru": (TLru, "TLruCachePolicy"),
    "gittins": (Gittins, "GittinsCachePolicy"),
}
"""The policies of kvscope for chunks, each with its class in `kvscope.vllm_plugin`."""
_ALL = ", ".join(get_args(ChunkPolicy)[:-1]) + f" or {get_args(ChunkPolicy)[-1]}"
FIXED = {
    "prefetch_timeout_base": "it is simulated at its default of 1 s",
    "prefetch_timeout_per_ki_token": "it is simulated at its default of 0.25 s",
    "load_back_threshold": "SGLang has it fixed at 10 tokens",
    "cache_policy": "only LRU is simulated",
}
"""Options of engines that are not simulated, and why."""
_FORM = f"write for example {_VLLM}{RELEASES[-1]} or {_VLLM}{RELEASES[-1]}:eviction_policy=arc"


class OffloadSpec(Struct, frozen=True):
    """vLLM's CPU tier without its size; fields are vLLM's options, with its defaults.

    `params` are parameters of the policy, where that is one of kvscope's.
    """

    release: Release
    eviction_policy: ChunkPolicy = "lru"
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True
    store_threshold: int = 0
    max_tracker_size: int = 64_000
    params: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, text: str) -> OffloadSpec:
        """Return what `vllm@0.33:store_threshold=2` stands for; UsageError for anything else."""
        engine, *rest = (piece.strip() for piece in text.split(":"))
        release = engine.removeprefix(_VLLM)
        if not engine.startswith(_VLLM) or release not in RELEASES:
            near = " or ".join(f"{_VLLM}{known}" for known in RELEASES)
            remedy = f"take {near}, sglang-hicache or lmcache"
            raise UsageError(f"{engine!r} is not modelled", where=WHERE, remedy=remedy)
        policy = next((x.partition("=")[2] for x in rest if x.startswith("eviction_policy")), "")
        known, own, others = chunk_parameters(policy.strip()), {}, []
        for piece in rest:
            name, _, value = (side.strip() for side in piece.partition("="))
            if name in known and value and name not in own:
                own[name] = _parameter(known[name], value)
            else:
                others.append(piece)
        options = option_values(OffloadSpec, others, _value, "vLLM's tier", own=known)
        spec = cls(release, **options, params=tuple(own.items()))
        spec.settings(1)
        return spec

    @property
    def text(self) -> str:
        """The spec as `--offload` takes it, without what is a default."""
        stated = stated_options(self, OffloadSpec(self.release, params=self.params))
        own = {name: f"{value:.17g}" for name, value in self.params}
        return written(f"{_VLLM}{self.release}", stated | own)

    @property
    def in_words(self) -> str:
        """A sentence on how the tier works."""
        policy = _NAMES.get(self.eviction_policy, f"{self.eviction_policy} by kvscope's plugin")
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

    @property
    def policy(self) -> LanePolicy | None:
        """The policy of kvscope that orders the chunks; None for vLLM's own."""
        kind = _CHUNK_POLICIES.get(self.eviction_policy)
        return None if kind is None else kind[0](self._given)

    def bound(self, bind: Callable[[type[LanePolicy], Mapping[str, float]], Policy]) -> OffloadSpec:
        """Return the spec with every parameter of its policy, as `bind` gives them."""
        kind = _CHUNK_POLICIES.get(self.eviction_policy)
        if kind is None:
            return self
        values = bind(kind[0], self._given).values
        params = tuple((name, values[name]) for name in chunk_parameters(self.eviction_policy))
        return replace(self, params=params)

    @property
    def _given(self) -> dict[str, float]:
        """The parameters of the policy, with a guard by default."""
        guard = {GUARD.name: 1.0} if GUARD.name in chunk_parameters(self.eviction_policy) else {}
        return guard | dict(self.params)

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
        storage: StorageSettings | None = None,
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
            policy=self.policy,
            storage=storage,
        )

    def kv_transfer_config(self, cpu_bytes: int) -> Mapping[str, Any]:
        """Return the value of vLLM's `--kv-transfer-config` for so many bytes."""
        plain = OffloadSpec(self.release, params=self.params)
        stated = {name: getattr(self, name) for name in stated_options(self, plain)}
        if self.eviction_policy in _CHUNK_POLICIES:
            stated["eviction_policy"] = _CHUNK_POLICIES[self.eviction_policy][1]
            stated["cache_policy_module_path"] = "kvscope.vllm_plugin"
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            _EXTRA: {"cpu_bytes_to_use": cpu_bytes, **stated},
        }

    def launch(self, cpu_bytes: int, ranks: int = 1) -> OffloadLaunch:
        """Return vLLM's arguments for so many bytes, and those of kvscope's plugin."""
        arguments = ["--kv-transfer-config", json.dumps(self.kv_transfer_config(cpu_bytes))]
        plugin = self.additional_config()
        if plugin is None:
            return OffloadLaunch("vLLM", tuple(arguments))
        arguments += [
            "--scheduler-cls",
            "kvscope.vllm_plugin.KvscopeScheduler",
            "--additional-config",
            json.dumps(plugin),
        ]
        return OffloadLaunch("vLLM", tuple(arguments), needs="kvscope installed beside it")

    def additional_config(self) -> Mapping[str, Any] | None:
        """Return the value of vLLM's `--additional-config` for kvscope's policy; None without."""
        policy = self.policy
        if policy is None:
            return None
        return {"kvscope": {"cpu_tier": {"name": policy.name, "params": self._given}}}


class OffloadToFilesSpec(OffloadSpec, frozen=True):
    """vLLM's CPU tier with its files (`fs`) below, in a folder to be named for PATH."""

    @property
    def in_words(self) -> str:
        """Sentences on how the tiers work."""
        return (
            f"{super().in_words} Below the CPU tier, files (vLLM's fs): all that"
            " it stores is written on to them, and read back into it before a load. vLLM deletes"
            " none; once they fill their size, nothing more is written."
        )

    def kv_transfer_config(self, cpu_bytes: int) -> Mapping[str, Any]:
        """Return the value of vLLM's `--kv-transfer-config` for so many bytes of memory."""
        config = super().kv_transfer_config(cpu_bytes)
        files = [{"type": "fs", "root_dir": "PATH"}]
        extra = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": files}
        return {**config, _EXTRA: {**config[_EXTRA], **extra}}


def chunk_parameters(name: str) -> dict[str, Parameter]:
    """Return the parameters of the policy `name` of kvscope in a CPU tier; none for vLLM's own."""
    kind = _CHUNK_POLICIES.get(name)
    known = kind[0].parameters if kind else ()
    return {parameter.name: parameter for parameter in known if parameter not in NOT_OF_CHUNKS}


def option_values(
    kind: type,
    pieces: Sequence[str],
    read: Callable[[str, str], object],
    tier: str,
    own: Collection[str] = (),
) -> dict[str, Any]:
    """Return the options in `pieces`, by the names of a record's fields with a default.

    `read` returns the value of an option from its text; those of the names `own` were read before.
    Raises UsageError for what is no option of `tier`.
    """
    options: dict[str, Any] = {}
    known = [name for name, default in defaults(kind).items() if default != ()]
    for piece in pieces:
        name, equals, value = (side.strip() for side in piece.partition("="))
        if not equals or not value:
            raise UsageError(f"{piece!r} is no option", where=WHERE, remedy=_FORM)
        if name not in known and name not in own:
            near = "".join(get_close_matches(name, [*known, *own], n=1))
            remedy = f"did you mean {near}?" if near else f"it has {', '.join([*known, *own])}"
            remedy = FIXED.get(name, remedy)
            raise UsageError(f"{tier} has no option {name!r}", where=WHERE, remedy=remedy)
        if name in options or name in own:
            raise UsageError(f"{name} is there twice", where=WHERE, remedy="leave one out")
        options[name] = read(name, value)
    return options


def stated_options(spec: Any, plain: Any) -> dict[str, str]:
    """Return the options that differ from those of `plain`, as text."""
    return {
        name: json.dumps(value).strip('"')
        for name in spec.__struct_fields__
        if (value := getattr(spec, name)) != getattr(plain, name)
    }


def written(name: str, options: Mapping[str, str]) -> str:
    """Return a tier with its options as `--offload` takes them."""
    return name + "".join(f":{option}={value}" for option, value in options.items())


def parse_switch(text: str) -> bool:
    """Return what true or false stands for; UsageError for anything else."""
    if text not in {"true", "false"}:
        raise UsageError(f"{text!r} is neither", where=WHERE, remedy="take true or false")
    return text == "true"


def _parameter(parameter: Parameter, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        with placed(f"{WHERE} {parameter.name}"):
            return parse_value(parameter, text)


def _value(name: str, text: str) -> object:
    if name == "eviction_policy":
        if text not in get_args(ChunkPolicy):
            raise UsageError(f"{text!r} is no policy of it", where=WHERE, remedy=f"take {_ALL}")
        return text
    if name == "offload_prompt_only":
        return parse_switch(text)
    with placed(f"{WHERE} {name}"):
        return units.parse_tokens(text)
