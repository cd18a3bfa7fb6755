"""What options mean that several commands share: definitions of a hit, models, capacities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope import units
from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.facts import HitDefinition, Outputs
    from kvscope.kv_size import KvDtype, ModelKv


def definition(compat: str | None, outputs: Outputs, warmup: float) -> HitDefinition:
    """The definition of a hit that `--compat`, or else `--outputs` and `--warmup`, ask for."""
    from kvscope.simulate.definitions import compatible, standard

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
    from kvscope.kv_size import resolve_model

    if name is None:
        if kv_dtype:
            raise UsageError("needs a model", where="--kv-dtype", remedy="name one with --model")
        if sizes_bytes:
            raise UsageError(
                "bytes need a model", where="--capacity", remedy="name one with --model"
            )
        return None
    return resolve_model(name, kv_dtype)


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
