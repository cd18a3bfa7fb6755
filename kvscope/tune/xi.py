"""Which values of xi are worth a look at one capacity: those that a search begins with."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.simulate.variants import Variant, bind, found_values
from kvscope.simulate.workload import Workload
from kvscope.tune.evaluate import Evaluator
from kvscope.tune.objective import Target
from kvscope.tune.search import hints_from
from kvscope.tune.space import XI, changed, values_to_try


def has_xi(policy: type[Policy]) -> bool:
    """Whether a policy has a xi."""
    return any(one.name == XI for one in policy.parameters)


def over_xi(
    workload: Workload, variant: Variant, capacity_blocks: int, target: Target
) -> list[Policy]:
    """The variant with every xi to try, ascending; its other parameters as a replay has them.

    What the variant says of xi itself does not count. Its policy must have one (`has_xi`).
    """
    given = {name: value for name, value in variant.given.items() if name != XI}
    free = replace(variant, given=given)
    found = found_values(workload.turns, workload.profile, target.slo_s)
    with closing(Evaluator(workload, target)) as evaluator:
        hints = hints_from(evaluator, Lru(), capacity_blocks)
    start = bind(free, found)
    return [changed(start, XI, xi) for xi in values_to_try(free, found, hints)[XI]]
