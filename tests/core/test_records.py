"""What is asked of records without reading their annotations."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from msgspec import Struct

from kvscope.core.records import as_columns, defaults


class Base(Struct, frozen=True):
    """Has a field without a default."""

    name: str
    size: int = 3


class Derived(Base, frozen=True, kw_only=True):
    """Has one, too, behind a default, and types that nothing has imported."""

    rate: Unknown  # type: ignore[name-defined]  # noqa: F821
    whole: Base | None = None


def test_defaults_are_by_name() -> None:
    """Of a record and of what it inherits from; fields that must be stated are left out."""
    assert defaults(Base) == {"size": 3}
    assert defaults(Derived) == {"size": 3, "whole": None}


def test_records_within_records_become_columns() -> None:
    """Dates stay dates, tuples tuples, and numbers of NumPy become Python's own."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    record = Derived("a", rate=np.float64(0.5), whole=Base("b", size=np.int64(1)))  # type: ignore[arg-type]
    assert as_columns(record) == {
        "name": "a",
        "size": 3,
        "rate": 0.5,
        "whole": {"name": "b", "size": 1},
    }
    assert as_columns(Derived("a", rate=(at, 1))) == {
        "name": "a",
        "size": 3,
        "rate": (at, 1),
        "whole": None,
    }
