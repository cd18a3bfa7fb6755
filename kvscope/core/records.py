"""Records: functions on msgspec's structs that do not read annotations, and marks of their fields.

Structs instead of dataclasses save a sixth of a command's start-up time. So all records are
structs, except abstract classes, and the documents of `--json` and their base classes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import NODEFAULT, Struct, to_builtins

T = TypeVar("T")

Beside: TypeAlias = Annotated[T, "beside the document"]
"""A field of a result that its sections need and its JSON document lacks."""
Inline: TypeAlias = Annotated[T, "fields of the document"]
"""A record in a result whose fields the result's document has as its own (None: null or empty)."""


def defaults(kind: type[Struct]) -> dict[str, Any]:
    """Return the defaults of a struct's fields by name, without fields that have no default."""
    stated = kind.__struct_defaults__
    last = kind.__struct_fields__[len(kind.__struct_fields__) - len(stated) :]
    return {name: value for name, value in zip(last, stated, strict=True) if value is not NODEFAULT}


def as_columns(record: Struct) -> dict[str, Any]:
    """Return a record's fields by name, nested records as dicts, in types for the database.

    Enums become their values, NumPy's numbers Python's; tuples, texts and datetimes stay.
    """
    columns: dict[str, Any] = to_builtins(
        record, builtin_types=(datetime,), enc_hook=lambda number: number.item()
    )
    return columns
