"""The definitions of a hit rate that kvscope prints side by side, and those of other tools."""

from __future__ import annotations

from kvscope.errors import UsageError
from kvscope.facts import HitDefinition, Outputs

KVCACHE_SIMULATOR = HitDefinition(
    "kvcache-simulator",
    warmup=0.5,
    partial=True,
    last_token_rule=False,
    outputs="ignored",
)
LIBCACHESIM = HitDefinition(
    "libcachesim",
    weight="block",
    partial=True,
    last_token_rule=False,
    outputs="ignored",
    flat=True,
)
COMPATIBLE = {known.name: known for known in (KVCACHE_SIMULATOR, LIBCACHESIM)}


def standard(*, warmup: float = 0.0, outputs: Outputs = "carried") -> HitDefinition:
    """kvscope's own definition: token-weighted, full blocks, last-token rule on."""
    return HitDefinition("kvscope", warmup=warmup, outputs=outputs)


def compatible(name: str) -> HitDefinition:
    """The definition of the other tool called `name`."""
    if name not in COMPATIBLE:
        raise UsageError(
            f"unknown tool {name!r}", where="--compat", remedy="take " + " or ".join(COMPATIBLE)
        )
    return COMPATIBLE[name]


def side_by_side(chosen: HitDefinition) -> tuple[HitDefinition, ...]:
    """`chosen` and its neighbours, each of which changes one thing, then the other tools'."""
    own = standard()
    ignored = HitDefinition("outputs ignored", outputs="ignored")
    table = (
        own,
        HitDefinition("by block", weight="block"),
        HitDefinition("by request", weight="request"),
        HitDefinition("last half", warmup=0.5),
        ignored,
        HitDefinition("partial kept", partial=True, last_token_rule=False, outputs="ignored"),
        *COMPATIBLE.values(),
    )
    return table if chosen in table else (chosen, *table)
