"""The tiers of an engine's cache, from text.

    hbm=40GiB,dram=128GiB,ssd=1TiB:read=12GB/s:latency=80us

One tier is NAME=CAPACITY with options behind colons; the first is the engine's pool. By default,
the time of a copy from or to a lower tier follows from its name:

- dram: 25 GB/s and 10 us. PCIe 4.0 x16 carries 31.5 GB/s (16 GT/s a lane, 128b/130b coding); that
  copies reach 80 % of it is an assumption, and so is the time to start one.
- ssd: 6.5 GB/s for reads and 3.5 GB/s for writes, one data-centre drive (Samsung PM9A3 in U.2,
  sequential, as announced at the OCP Virtual Summit 2020: heise.de/-4720224), and 100 us to the
  first byte of flash, an assumption.
- remote: 10 GB/s and 1 ms, an assumption: four fifths of 100 Gbit/s Ethernet, and a store that
  answers within a millisecond.

Without `write`, the bandwidth of writes is the default of the name, and at most that of reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from kvscope.core import units
from kvscope.core.errors import UsageError, did_you_mean, key_values, placed
from kvscope.core.runs import RunSetting
from kvscope.vllm_sim.offload_spec import OffloadSpec

_WHERE = "--tiers"
_BLOCKS = "blocks"
_FORM = "write for example hbm=40GiB,dram=128GiB"
_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "read": units.parse_bandwidth,
    "write": units.parse_bandwidth,
    "latency": units.parse_duration,
}


def _evicts(text: str) -> bool:
    if text not in {"none", "lru"}:
        raise UsageError(f"{text!r} is no eviction of it", remedy="take none, as vLLM does, or lru")
    return text == "lru"


_POOL_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bandwidth": ("bytes_per_s", units.parse_bandwidth),
    "evict": ("evicts", _evicts),
}


class Read(Struct, frozen=True):
    """The time to read blocks to where the engine computes: a latency, then a bandwidth."""

    latency_s: float
    bytes_per_s: float


IN_PLACE = Read(0.0, math.inf)
READS: Mapping[str, Read] = {
    "dram": Read(10e-6, 25e9),
    "ssd": Read(100e-6, 6.5e9),
    "remote": Read(1e-3, 10e9),
}
WRITES: Mapping[str, float] = {"dram": 25e9, "ssd": 3.5e9, "remote": 10e9}
"""Default bandwidth of writes to a tier, by its name, in bytes per second; latency: as of reads."""


class SharedPool(Struct, frozen=True):
    """Files of KV blocks, below the CPU tiers, that all replicas share over a network.

    `bytes_per_s` is the bandwidth of all replicas' links together. Once full, the pool evicts files
    if `evicts`, else it stores no more.
    """

    bytes_per_s: float = math.inf
    evicts: bool = False

    @classmethod
    def parse(cls, options: Sequence[str], place: str) -> SharedPool:
        """Return the pool with options such as `bandwidth=40GB/s` and `evict=lru`.

        Raises UsageError at `place` for unknown and repeated options and for wrong values.
        """
        values: dict[str, Any] = {}
        example = "write for example bandwidth=40GB/s"
        given = key_values(options, _POOL_OPTIONS, place, owner="a shared pool", example=example)
        for key, value in given:
            with placed(place):
                name, parse = _POOL_OPTIONS[key]
                values[name] = parse(value)
        return cls(**values)


class Tier(Struct, frozen=True):
    """One tier: its capacity, the time of a read, and the bandwidth of writes.

    With a shared `pool`, times are of one replica's link, and the capacity is of the whole pool.
    """

    name: str
    capacity_blocks: int
    read: Read = IN_PLACE
    write_bytes_per_s: float = math.inf
    pool: SharedPool | None = None


def parse_tiers(text: str, *, block_bytes: int | None = None) -> tuple[Tier, ...]:
    """Return the tiers in a text such as `hbm=40GiB,dram=128GiB`, the engine's pool first.

    A capacity is a size, which needs `block_bytes`, or a number of blocks (`5000blocks`). With
    `block_bytes` 0, for a trace not yet known, sizes stay bytes. Options are read and write (bytes
    per second, `25GB/s`) and latency. Raises UsageError for text in another form, a repeated name,
    a size without `block_bytes` or below a block, and an unknown lower tier without `read`.
    """
    tiers: list[Tier] = []
    for part in text.split(","):
        tier = _tier(part.strip(), block_bytes, first=not tiers)
        if tier.name in [above.name for above in tiers]:
            raise UsageError(f"{tier.name!r} is there twice", where=_WHERE, remedy="rename one")
        tiers.append(tier)
    return tuple(tiers)


def setting_tiers(setting: RunSetting) -> tuple[Tier, ...]:
    """Return the tiers of a setting, the pool first; () where it has only a pool."""
    return parse_tiers(setting.tiers, block_bytes=setting.block_bytes) if setting.tiers else ()


def kv_transfer_config(setting: RunSetting) -> Mapping[str, Any] | None:
    """Return vLLM's `--kv-transfer-config` for the tiers of a setting.

    None where it has no offload tier below vLLM's pool, or the bytes of a block are unknown.
    """
    sized = _sized(setting)
    return None if sized is None else sized[0].kv_transfer_config(sized[1])


def offload_launch(setting: RunSetting) -> str | None:
    """Return vLLM's options for the tiers of a setting; None as in `kv_transfer_config`."""
    sized = _sized(setting)
    return None if sized is None else f"vLLM: {sized[0].arguments(sized[1])}"


def offload_of(setting: RunSetting) -> OffloadSpec | None:
    """Return a setting's CPU tier, with the files (vLLM's `fs`) below it, if any; None without.

    None also for a stored run with a tier that only earlier versions of kvscope simulated.
    """
    if setting.capacity_model != "engine" or not setting.tier_mode:
        return None
    with suppress(UsageError):
        return OffloadSpec.parse(setting.tier_mode, files=setting.tiers.count(",") == 2)
    return None


def _sized(setting: RunSetting) -> tuple[OffloadSpec, int] | None:
    """Return the CPU tier of a setting, and its memory in bytes; None if either is unknown."""
    spec = offload_of(setting)
    if spec is None or setting.block_bytes is None:
        return None
    return spec, setting_tiers(setting)[1].capacity_blocks * setting.block_bytes


def _tier(part: str, block_bytes: int | None, *, first: bool) -> Tier:
    main, *rest = part.split(":")
    name, equals, capacity = (piece.strip() for piece in main.partition("="))
    if not (name and equals and capacity):
        raise UsageError(f"{part!r} is no tier", where=_WHERE, remedy=_FORM)
    place = f"{_WHERE} {name}"
    options = _options(rest, place)
    read = _read(name, options, place, first=first)
    usual = min(read.bytes_per_s, math.inf if first else WRITES.get(name, math.inf))
    blocks = _capacity(capacity, block_bytes, place)
    return Tier(name, blocks, read, options.get("write", usual))


def _options(rest: list[str], place: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    example = "write for example read=10GB/s"
    for key, value in key_values(rest, _OPTIONS, place, owner="a tier", example=example):
        with placed(place):
            options[key] = _OPTIONS[key](value)
    return options


def _capacity(text: str, block_bytes: int | None, place: str) -> int:
    if text.endswith(_BLOCKS):
        try:
            blocks = units.parse_tokens(text.removesuffix(_BLOCKS).strip())
        except UsageError as error:
            raise UsageError(
                f"{text!r} is not a number of blocks",
                where=place,
                remedy="write for example 5000blocks or 8kblocks",
            ) from error
    else:
        with placed(place):
            size_bytes = units.parse_size(text)
        if block_bytes is None:
            remedy = "name one, or write for example 5000blocks"
            raise UsageError("bytes need a model", where=place, remedy=remedy)
        blocks = size_bytes // block_bytes if block_bytes else size_bytes
    if blocks == 0:
        remedy = f"a block takes {units.format_size(block_bytes)}" if block_bytes else "take more"
        raise UsageError(f"{text} holds not one block", where=place, remedy=remedy)
    return blocks


def _read(name: str, options: Mapping[str, Any], place: str, *, first: bool) -> Read:
    usual = IN_PLACE if first else READS.get(name)
    if usual is None and "read" not in options:
        remedy = did_you_mean(name, READS, "write for example read=10GB/s:latency=1ms")
        raise UsageError("nothing says what a read takes", where=place, remedy=remedy)
    usual = usual or IN_PLACE
    return Read(options.get("latency", usual.latency_s), options.get("read", usual.bytes_per_s))
