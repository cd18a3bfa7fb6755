"""Every router kvscope knows; a new one is a file in this folder and a line here."""

from __future__ import annotations

from kvscope.core.errors import UsageError, did_you_mean
from kvscope.routers.balancers import (
    LeastRequests,
    PowerOfTwo,
    Random,
    RoundRobin,
    Session,
    SglangDp,
    SglangDpTokens,
    VllmDp,
)
from kvscope.routers.base import Router
from kvscope.routers.dynamo import Dynamo, DynamoApprox
from kvscope.routers.hash_ring import ConsistentHash, PrefixHash
from kvscope.routers.llm_d import LlmD, LlmDPrecise
from kvscope.routers.prefixaware import Prefixaware
from kvscope.routers.ray_serve import RayPrefixAware
from kvscope.routers.references import BestCached, MinTtft, MooncakeConductor
from kvscope.routers.sglang import Sglang

ROUTERS: tuple[type[Router], ...] = (
    RoundRobin,
    Random,
    LeastRequests,
    PowerOfTwo,
    Session,
    ConsistentHash,
    PrefixHash,
    Sglang,
    Prefixaware,
    RayPrefixAware,
    VllmDp,
    SglangDp,
    SglangDpTokens,
    LlmD,
    LlmDPrecise,
    Dynamo,
    DynamoApprox,
    MooncakeConductor,
    BestCached,
    MinTtft,
)


def router_by_name(name: str) -> type[Router]:
    """Return the router with this name or alias, in upper or lower case.

    Raises UsageError with the nearest name, or with the known versions of that router.
    """
    wanted = name.casefold()
    for known in ROUTERS:
        if wanted in (known.name, *known.aliases):
            return known
    names = [known.name for known in ROUTERS]
    base = wanted.partition("@")[0]
    versions = [known for known in names if known.partition("@")[0] == base]
    remedy = did_you_mean(wanted, names, "take some of " + ", ".join(names))
    if versions:
        remedy = "take " + " or ".join(versions)
    raise UsageError(f"unknown router {name!r}", where="--router", remedy=remedy)
