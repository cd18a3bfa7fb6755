"""What options mean that several commands share: definitions of a hit, latency, sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope.core import units
from kvscope.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvscope.core.hits import HitDefinition, Outputs
    from kvscope.core.kv_size import KvDtype, ModelKv
    from kvscope.core.runs import RunSetting
    from kvscope.core.trace import Trace
    from kvscope.latency import LatencyProfile
    from kvscope.store.db import Store
    from kvscope.store.prompts import Prompts


def definition(compat: str | None, outputs: Outputs, warmup: float) -> HitDefinition:
    """The definition of a hit that `--compat`, or else `--outputs` and `--warmup`, ask for."""
    from kvscope.core.hits import compatible, standard

    if not 0 <= warmup < 1:
        raise UsageError(f"not below 100%: {warmup:.0%}", where="--warmup", remedy="try 20%")
    if compat is None:
        return standard(warmup=warmup, outputs=outputs)
    if outputs != "carried" or warmup:
        raise UsageError(
            "settles outputs and warm-up itself",
            where=f"--compat {compat}",
            remedy="leave out --outputs and --warmup",
        )
    return compatible(compat)


def model(
    name: str | None, kv_dtype: KvDtype | None, sizes_bytes: tuple[int, ...] | None = None
) -> ModelKv | None:
    """The model of `--model`, which `--kv-dtype` and `--capacity` cannot do without."""
    from kvscope.core.kv_size import resolve_model

    if name is None:
        if kv_dtype:
            raise UsageError("needs a model", where="--kv-dtype", remedy="name one with --model")
        if sizes_bytes:
            raise UsageError(
                "bytes need a model", where="--capacity", remedy="name one with --model"
            )
        return None
    try:
        return resolve_model(name, kv_dtype)
    except UsageError as error:
        raise UsageError(error.what, where=error.where or "--model", remedy=error.remedy) from error


def capacities(
    blocks: tuple[int, ...] | None,
    sizes_bytes: tuple[int, ...] | None,
    kv: ModelKv | None,
    block_size: int,
) -> list[int]:
    """The capacities of `--capacity-blocks` and `--capacity`, in blocks, each once."""
    fitting = [kv.blocks_in(size, block_size) for size in sizes_bytes or () if kv]
    if kv is not None and 0 in fitting:
        raise UsageError(
            "holds not one block",
            where="--capacity",
            remedy=f"a block of {kv.name} takes {units.format_size(kv.bytes_for(block_size))}",
        )
    return sorted({*(blocks or ()), *fitting})


def profile(latency: str | None) -> LatencyProfile:
    """The latency profile of `--latency`, or the default one."""
    from kvscope.latency import DEFAULT_PROFILE, load_profile

    try:
        return load_profile(latency or DEFAULT_PROFILE)
    except UsageError as error:
        raise UsageError(error.what, where="--latency", remedy=error.remedy) from error


def setting(takes: LatencyProfile, counted: HitDefinition, slo_s: float | None) -> RunSetting:
    """What runs are to count and assume."""
    from kvscope.replay.workload import setting_of

    return setting_of(counted, takes, slo_s=slo_s)


def above_zero(rate_scale: float) -> float:
    """The value of `--rate-scale`."""
    if not 0 < rate_scale < float("inf"):
        raise UsageError(
            f"not above 0: {rate_scale:g}", where="--rate-scale", remedy="write for example 2"
        )
    return rate_scale


def prompts(store: Store, trace: Trace) -> Prompts:
    """The prompts of a trace to replay; InputError for one that tells lengths only."""
    from kvscope.store.prompts import load_prompts

    if not trace.has_hashes:
        raise InputError(
            "tells lengths only, so that nothing can be replayed",
            where=trace.source,
            remedy="take a trace with block hashes",
        )
    return load_prompts(store, trace)
