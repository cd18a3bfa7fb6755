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
from pathlib import Path
from typing import Any

from kvscope.core.errors import InputError, UsageError
from kvscope.core.toml_files import document_in
from kvscope.policies.base import Policy
from kvscope.policies.registry import by_name

SCHEMA = 1
REMEDY = "`kvscope tune` writes such a file"


def recommendation_in(path: Path) -> dict[str, Any]:
    """The recommendation file at `path` as it is written; InputError for one of another schema."""
    document = document_in(path, REMEDY)
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"schema {document.get('schema')!r}, this kvscope knows {SCHEMA}",
            where=f"{path}: schema",
            remedy="tune again, or upgrade kvscope",
        )
    return document


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
    """The policy in the table `policy` of a document that stands at `where`.

    Raises InputError with the place, the key, the value and the remedy; also for a policy that
    knows the future.
    """
    table = table_in(document, "policy", where)
    try:
        kind = by_name(str(table.get("name")))
    except UsageError as error:
        raise InputError(error.what, where=f"{where}: policy.name", remedy=error.remedy) from error
    if kind.hindsight:
        raise InputError(
            f"{kind.name} knows the future, and cannot be run",
            where=f"{where}: policy.name",
            remedy=REMEDY,
        )
    params = table.get("params")
    if not isinstance(params, dict):
        raise InputError("missing", where=f"{where}: policy.params", remedy=REMEDY)
    values = {name: number(f"{where}: policy.params.{name}", one) for name, one in params.items()}
    try:
        return kind(values, table.get("leaves"))
    except UsageError as error:
        place = f"{where}: policy: {error.where}"
        raise InputError(error.what, where=place, remedy=error.remedy) from error


def number(where: str, value: object) -> float:
    """A number of the file; InputError for anything else, also for what is not a number (nan)."""
    found = math.nan
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = float(value)
    if math.isnan(found):
        raise InputError(f"{value!r} is not a number", where=where, remedy=REMEDY)
    return found
