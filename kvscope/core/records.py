"""Records: msgspec's structs, and functions on them that do not read annotations.

Python takes a millisecond to make a dataclass, msgspec a thirtieth of one to make a struct: a sixth
of the time in which a command starts. So all records are structs, except abstract classes, and the
documents of `--json` and their base classes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import NODEFAULT, Struct, to_builtins

T = TypeVar("T")

Beside: TypeAlias = Annotated[T, "beside the document"]
"""A field of a result that its sections need and its JSON document lacks."""
Inline: TypeAlias = Annotated[T, "fields of the document"]
"""A record in a result whose fields are fields of the document; null or empty where it is None."""


def defaults(kind: type[Struct]) -> dict[str, Any]:
    """Return the default of each field that has one, by name."""
    stated = kind.__struct_defaults__
    last = kind.__struct_fields__[len(kind.__struct_fields__) - len(stated) :]
    return {name: value for name, value in zip(last, stated, strict=True) if value is not NODEFAULT}


def as_columns(record: Struct) -> dict[str, Any]:
    """Return the fields of a record, nested ones too, in types that the database takes."""
    columns: dict[str, Any] = to_builtins(
        record, builtin_types=(datetime,), enc_hook=lambda number: number.item()
    )
    return columns
