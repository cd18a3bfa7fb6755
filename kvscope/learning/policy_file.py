"""The table `[policy]` of a policy file or a recommendation: a policy with its parameters.

[policy]
name = "tlru"
leaves = "leaf"
params = { xi_tokens = 2048.0, next_prompt_tokens = 256.0, ttl_s = inf }
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from kvscope.core.errors import InputError, UsageError, placed
from kvscope.core.toml_files import Number, table_as
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.registry import by_name

REMEDY = "`kvscope tune` and `kvscope fit --export` write such a file"
KEYS = (
    *("schema", "trace", "block_size", "policy", "verdict", "target", "capacity", "latency"),
    *("grade", "expected", "gain", "flags", "deployment", "canary", "tier"),
    "returns",  # a fit: a table a learner
)
"""The keys at the top level of a policy file or a recommendation."""


class PolicyTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table `[policy]`; parameters that are left out of `params` have the policy's defaults.

    `leaves` says which blocks the policy evicts: "leaf" only those without cached children, "any"
    all; None: as the policy does by default.
    """

    name: str
    params: dict[str, Number]
    leaves: str | None = None

    @classmethod
    def of(cls, policy: Policy) -> PolicyTable:
        """Return the table of a policy."""
        return cls(policy.name, dict(policy.values), policy.evicts)


def policy_in(document: Mapping[str, Any], where: str) -> Policy:
    """Return the policy in the table `policy` of a document; `where` is the file or option.

    Raises InputError with the place, the key, the value and the remedy, also for a policy that
    needs the future.
    """
    place = f"{where}: policy"
    for key in document:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1)
            raise InputError(
                "unknown key",
                where=f"{where}: {key}",
                remedy=f"did you mean {near[0]!r}" if near else REMEDY,
            )
    size = document.get("block_size", 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(
            f"{size!r} is not a number of tokens", where=f"{where}: block_size", remedy=REMEDY
        )
    if "policy" not in document:
        raise InputError("missing", where=place, remedy=REMEDY)
    table = table_as(document["policy"], PolicyTable, place, REMEDY)
    with placed(f"{place}.name", InputError):
        kind = by_name(table.name)
    if kind.hindsight:
        raise InputError(
            f"{kind.name} needs the future and cannot be run", where=f"{place}.name", remedy=REMEDY
        )
    try:
        return kind(table.params, cast(Leaves | None, table.leaves))  # which refuses others
    except UsageError as error:
        raise InputError(
            error.what, where=f"{place}: {error.where}", remedy=error.remedy
        ) from error
