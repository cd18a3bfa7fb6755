"""A policy with its parameters as a table of a file says it: the `[policy]` of a recommendation.

[policy]
name = "tlru"
leaves = "leaf"
params = { xi_tokens = 2048.0, next_prompt_tokens = 256.0, ttl_s = inf }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, cast

import msgspec

from kvscope.core.errors import InputError, UsageError
from kvscope.core.toml_files import Number, table_as
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.registry import by_name

REMEDY = "`kvscope tune` and `kvscope fit --export` write such a file"


class PolicyTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table `[policy]`; parameters that are left out have the policy's defaults."""

    name: str
    params: dict[str, Number]
    leaves: str | None = None

    @classmethod
    def of(cls, policy: Policy) -> PolicyTable:
        """Return the table of a policy."""
        return cls(policy.name, dict(policy.values), policy.evicts)


def table_in(
    document: Mapping[str, Any],
    name: str,
    where: str,
    keys: Sequence[str] = (),
    remedy: str = REMEDY,
) -> Mapping[str, Any]:
    """The table `name` of a document that stands at `where`, with no key but `keys`, if any.

    Raises InputError without the table, and with the place of a key that is none of these.
    """
    table = document.get(name)
    if not isinstance(table, dict):
        raise InputError("missing", where=f"{where}: [{name}]", remedy=remedy)
    for key in table:
        if keys and key not in keys:
            raise InputError("unknown key", where=f"{where}: {name}.{key}", remedy=remedy)
    return table


def policy_in(document: Mapping[str, Any], where: str) -> Policy:
    """Return the policy in the table `policy` of a document that stands at `where`.

    Raises InputError with the place, the key, the value and the remedy, also for a policy that
    needs the future.
    """
    place = f"{where}: policy"
    if "policy" not in document:
        raise InputError("missing", where=place, remedy=REMEDY)
    table = table_as(document["policy"], PolicyTable, place, REMEDY)
    try:
        kind = by_name(table.name)
    except UsageError as error:
        raise InputError(error.what, where=f"{place}.name", remedy=error.remedy) from error
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


def number(where: str, value: object) -> float:
    """A number of the file; InputError for anything else, also for what is not a number (nan)."""
    found = math.nan
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = float(value)
    if math.isnan(found):
        raise InputError(f"{value!r} is not a number", where=where, remedy=REMEDY)
    return found
