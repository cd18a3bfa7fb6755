"""Definitions of a hit rate: kvscope's, its variants, and those of other tools."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError

Weight = Literal["token", "block", "request"]


Outputs = Literal["carried", "ignored"]


class HitDefinition(Struct, frozen=True):
    """A definition of a hit rate; one trace has a different hit rate under each.

    `warmup` is the share of requests, from the first on, that fill the cache and are not counted.
    `partial` makes a partial last block cacheable; `last_token_rule` recomputes the last token as
    vLLM does, so at most floor((I - 1) / B) blocks hit; `flat` treats every block as an object of
    its own, which can hit even if the blocks before it do not.
    """

    name: str
    weight: Weight = "token"
    warmup: float = 0.0
    partial: bool = False
    last_token_rule: bool = True
    outputs: Outputs = "carried"
    flat: bool = False


KVCACHE_SIMULATOR = HitDefinition(
    "kvcache-simulator", warmup=0.5, partial=True, last_token_rule=False, outputs="ignored"
)
LIBCACHESIM = replace(KVCACHE_SIMULATOR, name="libcachesim", weight="block", warmup=0.0, flat=True)
COMPATIBLE = {tool.name: tool for tool in (KVCACHE_SIMULATOR, LIBCACHESIM)}


def standard(*, warmup: float = 0.0, outputs: Outputs = "carried") -> HitDefinition:
    """Return kvscope's own definition: token-weighted, full blocks, last-token rule on.

    `name` is "kvscope", or states the arguments that differ from the defaults.
    """
    changed = ["outputs ignored"] if outputs == "ignored" else []
    if warmup:
        changed.append("last half" if warmup == 0.5 else f"last {100 * (1 - warmup):.4g}%")
    return HitDefinition(", ".join(changed) or "kvscope", warmup=warmup, outputs=outputs)


def compatible(name: str) -> HitDefinition:
    """Return the definition of the tool `name`. Raises UsageError for an unknown name."""
    if name not in COMPATIBLE:
        raise UsageError(
            f"unknown tool {name!r}", where="--compat", remedy="take " + " or ".join(COMPATIBLE)
        )
    return COMPATIBLE[name]


def side_by_side(chosen: HitDefinition) -> tuple[HitDefinition, ...]:
    """Return `chosen`, kvscope's own definition, its variants, and those of other tools.

    Each variant changes one field; "partial kept" changes three, since a partial last block hits
    only with outputs ignored and the last-token rule off.
    """
    table = (
        standard(),
        HitDefinition("by block", weight="block"),
        HitDefinition("by request", weight="request"),
        standard(warmup=0.5),
        HitDefinition("last-token rule off", last_token_rule=False),
        standard(outputs="ignored"),
        HitDefinition("partial kept", partial=True, last_token_rule=False, outputs="ignored"),
        *COMPATIBLE.values(),
    )
    return table if chosen in table else (chosen, *table)
