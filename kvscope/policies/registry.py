"""Every policy kvscope knows; a new policy is a file in this folder and a line here."""

from __future__ import annotations

from collections.abc import Container

from kvscope.core.errors import UsageError, did_you_mean
from kvscope.policies.base import Policy
from kvscope.policies.belady import Belady, TailBelady
from kvscope.policies.etlru import Etlru
from kvscope.policies.gdfs import Gdfs
from kvscope.policies.gittins import Gittins
from kvscope.policies.lfu import Lfu, Slru
from kvscope.policies.lru import Lru, LruRetention, ThresholdLru, Ttl
from kvscope.policies.queues import Arc, Fifo, S3Fifo, Sieve
from kvscope.policies.tlru import TLru, TLruEnd, TLruLength
from kvscope.policies.trtllm_priority import TrtllmPriority
from kvscope.policies.wa import Wa

POLICIES: tuple[type[Policy], ...] = (
    Lru,
    Fifo,
    Lfu,
    S3Fifo,
    Sieve,
    Arc,
    Slru,
    Gdfs,
    ThresholdLru,
    TLru,
    Etlru,
    Wa,
    Gittins,
    Ttl,
    LruRetention,
    TrtllmPriority,
    TLruEnd,
    TLruLength,
    Belady,
    TailBelady,
)

REMOVED = {"soft-ttl": "trtllm-priority"}
"""Policies of the version before, each with the one to take instead."""


def by_name(name: str) -> type[Policy]:
    """Return the policy with this name or alias, in upper or lower case.

    Raises UsageError with the nearest name, or with what replaces a removed policy.
    """
    wanted = name.casefold()
    for known in POLICIES:
        if wanted in (known.name, *known.aliases):
            return known
    if wanted in REMOVED:
        raise UsageError(
            f"the policy {wanted} was removed",
            where="--policy",
            remedy=f"take {REMOVED[wanted]} instead",
        )
    names = [known.name for known in POLICIES]
    remedy = did_you_mean(wanted, names, "take some of " + ", ".join(names))
    raise UsageError(f"unknown policy {name!r}", where="--policy", remedy=remedy)


def plugin_policies() -> str:
    """Return the names of the policies that kvscope's plugin for vLLM runs, with commas between."""
    return ",".join(known.name for known in POLICIES if known.runs_in_plugin())


def check_required(policy: type[Policy], values: Container[str], where: str) -> None:
    """Raise UsageError, at option `where`, if `values` lack a `required` parameter of `policy`."""
    for parameter in policy.parameters:
        if parameter.required and parameter.name not in values:
            raise UsageError(
                f"{policy.name} needs {parameter.name}: {parameter.help}",
                where=where,
                remedy=f"add --param {policy.name}.{parameter.name}=10m",
            )
