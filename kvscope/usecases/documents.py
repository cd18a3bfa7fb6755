"""The documents of `--json`: which fields of a result they show.

A record shows its fields, except those marked `Beside`, or the fields that its `DOCUMENT` lists:

    DOCUMENT = "*outcome router=fleet.router.name slo_ms"

`*outcome` adds the fields of a nested record, `router` is the record's value at a dotted path (null
if a part is None), and `slo_ms` converts seconds: `name_ms` also takes an attribute `name_s`.
Units are in the names, rates from 0 to 1. Fields are added, never renamed or removed. Infinities
and NaN become null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from kvscope import __version__

_PLAIN = frozenset({NoneType, bool, datetime, float, int, str})


class Shown(NamedTuple):
    """A field of a record in a document (`--json`): its `name`, and the attribute that it shows.

    `path` is the attribute's dotted name in the record. If `inline`, the value is a record, whose
    fields stand in place of this one.
    """

    name: str
    path: str
    inline: bool = False

    @property
    def in_ms(self) -> bool:
        """Whether the record has the value in seconds, the document in milliseconds."""
        return self.name.endswith("_ms") and self.path.endswith("_s")

    def value(self, record: Any) -> Any:
        """Return the record's value in the document's unit; None if part of `path` is None."""
        for name in self.path.split("."):
            if record is None:
                return None
            record = getattr(record, name)
        return record * 1e3 if record is not None and self.in_ms else record


def is_record(kind: Any) -> bool:
    """Return whether documents show a value of this type as an object with fields."""
    return isinstance(kind, type) and (
        issubclass(kind, Struct) or is_dataclass(kind) or hasattr(kind, "DOCUMENT")
    )


@cache
def shown_fields(kind: type) -> tuple[Shown, ...]:
    """Return the fields that documents show of records of this class."""
    annotations = {
        name: str(annotation)
        for each in reversed(kind.__mro__)
        for name, annotation in vars(each).get("__annotations__", {}).items()
        if not str(annotation).startswith(("Beside[", "ClassVar["))
    }
    stated: str | None = getattr(kind, "DOCUMENT", None)
    if stated is None:
        return tuple(
            Shown(name, name, inline=text.startswith("Inline["))
            for name, text in annotations.items()
        )

    def shown(word: str) -> Shown:
        name, _, path = word.partition("=")
        if not path and name.endswith("_ms") and not hasattr(kind, name):
            path = f"{name.removesuffix('_ms')}_s"
        return Shown(name.removeprefix("*"), path or name.removeprefix("*"), name[0] == "*")

    return tuple(map(shown, stated.split()))


def document(
    command: str, result: Any, figures: Mapping[str, Any] | None = None, schema: int = 1
) -> dict[str, Any]:
    """Return the document of a command's result: the common fields, then the result's.

    Common: `kvscope` (the version), `schema`, `command`, `trace` and, if given, `figures`: those
    that `--fail-on` compares, by their names there, in seconds, shares, requests per second and
    counts, and the verdict. A figure that cannot be computed is null.
    """
    head = {"kvscope": __version__, "schema": schema, "command": command}
    head["trace"] = getattr(result, "trace", None)
    if figures is not None:
        head["figures"] = figures
    return head | dict(result if isinstance(result, dict) else _fields(result))


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field that documents show of a record."""
    kind = record if isinstance(record, type) else type(record)
    for field in shown_fields(kind):
        value = field.value(record)
        if not field.inline:
            yield field.name, value
        elif value is not None:
            yield from _fields(value)
        else:
            from kvscope.usecases.schemas import empty

            yield from empty(kind, field.path).items()


def shown(value: Any) -> Any:
    """Return a value as documents show it, records as dictionaries."""
    kind = value if isinstance(value, type) else type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return list(map(shown, value))
    if is_record(kind):
        return {name: shown(each) for name, each in _fields(value)}
    return value


def to_json(document: Any) -> str:
    """Return a document as indented JSON, in ASCII."""
    encoded = msgspec.json.encode(shown(document), enc_hook=_plain)
    text = msgspec.json.format(encoded, indent=2).decode()
    # escapes are JSON in any encoding of stdout
    return text if text.isascii() else json.dumps(json.loads(text), indent=2)


def to_dict(document: Any) -> dict[str, Any]:
    """Return a document as a dictionary, equal to its JSON read back."""
    encoded = msgspec.json.encode(shown(document), enc_hook=_plain)
    plain: dict[str, Any] = msgspec.json.decode(encoded)
    return plain


def _plain(value: object) -> object:
    """Return a NumPy scalar or array as Python's own type."""
    convert = getattr(value, "tolist", None)
    if convert is None:
        raise TypeError(f"no JSON for {type(value).__name__}")
    return convert()
