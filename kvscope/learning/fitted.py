"""What a file brings along for the policy that it names, whichever policy that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from kvscope.core.errors import UsageError
from kvscope.learning.ends.file import TABLE, FittedEnds, fitted_ends_in
from kvscope.learning.returns.file import Fitted, fitted_in
from kvscope.policies.base import Policy

Fit: TypeAlias = Fitted | FittedEnds


def fit_in(document: Mapping[str, Any], policy: Policy, where: str) -> Fit | None:
    """What the document at `where` has for `policy`; None where it has or needs nothing.

    Raises InputError with the place, the key, the value and the remedy.
    """
    if policy.table == "returns":
        return fitted_in(document, where)
    return fitted_ends_in(document, where) if policy.table == "ends" else None


def check_fit(policy: Policy, fitted: Fit | None, where: str) -> None:
    """Raise UsageError for a policy that an engine cannot run without what was fitted for it."""
    if policy.table == "ends" and fitted is None:
        raise UsageError(
            f"{policy.name} goes by a table [{TABLE}], and there is none",
            where=where,
            remedy=f"take the file that `kvscope fit --export PATH --policy {policy.name}` writes",
        )
