"""Options of a fleet, from text: routers with parameters, and autoscaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvscope.core.errors import UsageError
from kvscope.replay.policy_options import ALL, combinations, format_value, parameter_values

if TYPE_CHECKING:
    from kvscope.routers.base import Router

ROUTED = "round-robin,session,sglang@0.3.2,llm-d@0.8,dynamo@1.6,min-ttft"  # by default
RANKS_ROUTER = "vllm-dp@0.32"  # of the ranks of one engine

Assignments = list[tuple[str, str]]
"""Pairs of a parameter's name and its values as they are written."""

SYNC_S = 15.0
RATE_S = 60.0
SETTLE_S = 300.0
READY_S = 60.0  # a usual time to load a model from a disk


class Scaling(NamedTuple):
    """Autoscale from `low` to `high` replicas, one per `requests_per_s`; a new one takes `ready_s`.

    Every 15 s (SYNC_S), the wanted number is the arrival rate of the last 60 s (RATE_S) over
    `requests_per_s`, rounded up, or the present number if within 10 %. A step at most doubles the
    number or adds 4, whichever is more; it falls to the most wanted in the last 300 s (SETTLE_S).
    Source: Kubernetes, Horizontal Pod Autoscaling, algorithm details, and the default behavior of
    autoscaling/v2. The window of the rate is a usual one; Kubernetes has none.
    """

    low: int
    high: int
    requests_per_s: float
    ready_s: float

    def __str__(self) -> str:
        """Return the value of the option `--autoscale`."""
        return f"{self.low}..{self.high}@{self.requests_per_s:.12g}:ready={self.ready_s:.12g}s"


def parse_routers(text: str) -> list[type[Router]]:
    """Return the routers in text such as `session,sglang@0.3.2`, each once; `all`: every router."""
    from kvscope.routers.registry import ROUTERS, router_by_name

    if text == ALL:
        return list(ROUTERS)
    return list(dict.fromkeys(router_by_name(name.strip()) for name in text.split(",")))


def split_assignments(
    routers: Sequence[type[Router]], assignments: Sequence[str]
) -> tuple[dict[type[Router], Assignments], list[str]]:
    """Return by router (parameter, values) of `NAME.PARAMETER=VALUE,...`; and texts for policies.

    Raises UsageError for a known router that is not in `routers`.
    """
    from kvscope.routers.registry import ROUTERS

    by_name = {name: known for known in ROUTERS for name in (known.name, *known.aliases)}
    taken: dict[type[Router], Assignments] = {}
    others = []
    for assignment in assignments:
        place, _, written = assignment.partition("=")
        owner, _, parameter = place.rpartition(".")  # versions have dots too
        router = by_name.get(owner.casefold())
        if router is None:
            others.append(assignment)
            continue
        if router not in routers:
            raise UsageError(
                f"{router.name} is not replayed",
                where=f"--param {place}",
                remedy=f"add {router.name} to --router",
            )
        taken.setdefault(router, []).append((parameter, written))
    return taken, others


def router_variants(router: type[Router], assignments: Assignments) -> list[Router]:
    """Return routers of one class with every combination of the assigned parameter values.

    Raises UsageError for a parameter or a value that it does not take.
    """
    values: dict[str, list[float]] = {}
    for name, written in assignments:
        where = f"--param {router.name}.{name}"
        values.setdefault(name, []).extend(parameter_values(router, name, written, where))
    return [router(chosen) for chosen in combinations(values)]


def router_flags(router: Router, replicas: int) -> str:
    """Return the launch flags of a router in front of `replicas` replicas; empty for none."""
    return " ".join(router.flags()).replace("-size N", f"-size {replicas}")


def router_label(router: Router) -> str:
    """Return a router's name with its parameters that differ from the defaults."""
    usual = {parameter.name: parameter.default for parameter in router.parameters}
    changed = (
        f"{name}={format_value(name, value)}"
        for name, value in router.values.items()
        if value != usual[name]
    )
    return " ".join([router.name, *changed])
