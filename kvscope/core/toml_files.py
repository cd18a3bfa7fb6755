"""TOML files with a msgspec schema: read with types and bounds, written complete or not at all.

A schema is a `msgspec.Struct`, which refuses unknown keys if declared so. Every defect is an
InputError with the file, the key, the value and the remedy. A struct's `__post_init__` refuses a
value by `ValueError("key: what is wrong")`.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
import tomli_w

from kvscope import __version__
from kvscope.core.errors import InputError
from kvscope.core.files import TOML_MARK, content_of, write_text
from kvscope.core.units import MIB

SCHEMA = 1
"""The version that each file states as `schema`."""
MAX_BYTES = 4 * MIB
"""Largest TOML file that is read; most that kvscope writes have a few kilobytes."""
MAX_DEPTH = 100
"""Most names in a dotted key: the parser's memory grows with their square."""
T = TypeVar("T")

_LARGEST = sys.float_info.max  # msgspec takes no infinite bound
Number = Annotated[float, msgspec.Meta(ge=-_LARGEST)]
"""A float that is not nan; inf is one."""
Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number that a float64 holds exactly."""

_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a string",
    "bool": "true or false",
    "object": "a table",
    "array": "an array",
    "milliseconds": "a time in milliseconds",
}
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<key>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?P<defect>contains unknown|missing required) field `(?P<name>.*)`$")
_EXPECTED = re.compile(r"^Expected `(?P<kind>\w+)(?: \| null)?`(?P<bound>.*?)(?:, got .*)?$")
_OF_A_KEY = re.compile(r"^(?P<key>[\w\[\]]+): (?P<what>.*)$", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.-])[+-]?\d+\.\d+(?![\w.-])")
_LONGEST = 60  # characters of a value that an error repeats


class Seconds(float):
    """A time in seconds, at least 0, that TOML files state in milliseconds, to the last digit."""


def document_in(path: Path, remedy: str) -> dict[str, Any]:
    """Return the TOML file at `path`; numbers with a decimal point become Decimal.

    Raises InputError, with `remedy` in its message, for a file that is missing, not TOML, or whose
    key `schema` is not SCHEMA.
    """
    try:
        # Decimal, so that milliseconds become the very seconds that were written.
        document = _parsed(content_of(path, MAX_BYTES).decode())
    except OSError as error:
        raise InputError(
            error.strerror or str(error), where=str(path), remedy="name another file"
        ) from error
    except (ValueError, ArithmeticError, RecursionError) as error:  # numbers and nesting, too
        raise InputError(f"not a TOML file: {error}", where=str(path), remedy=remedy) from error
    version = document.get("schema")
    if version != SCHEMA or isinstance(version, bool):
        raise InputError(
            "missing" if version is None else f"{_shown(version)}, this kvscope reads {SCHEMA}",
            where=f"{path}: schema",
            remedy=remedy if version is None else f"{remedy}; or upgrade kvscope",
        )
    return document


def files_named_in(path: Path) -> Iterator[Path]:
    """Yield existing files named in a TOML file, relative to its folder or the current one.

    A command reads them with the file, and so must not write to them. Nothing is yielded for a file
    with another ending than `.toml`, or one that cannot be read.
    """
    if path.suffix != ".toml" or not path.is_file():
        return
    waiting: list[Any] = []
    with suppress(InputError, OSError, ValueError, ArithmeticError, RecursionError):
        waiting = [_parsed(content_of(path, MAX_BYTES).decode())]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str):
            places = (path.parent / value, Path(value))
            yield from (each for each in places if os.path.lexists(each) and each.is_file())


def _parsed(text: str) -> dict[str, Any]:
    """Return TOML text as a dictionary. Raises ValueError, ArithmeticError or RecursionError."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DEPTH and _NUMBER.sub("", line).count(".") > MAX_DEPTH:
            raise ValueError(f"line {number:,} has a key of more than {MAX_DEPTH} names")
    return tomllib.loads(text, parse_float=Decimal)


def table_as(table: object, schema: type[T], where: str, remedy: str) -> T:
    """Return a TOML table or document as an instance of `schema`.

    `where` is the file, or `file: key` for a table. Raises InputError with key, value and remedy.
    """
    try:
        return msgspec.convert(table, schema, dec_hook=_seconds)
    except msgspec.ValidationError as error:
        raise _refused(str(error), table, schema, where, remedy) from error
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can write
        raise InputError(f"not Unicode: {error.object!a}", where=where, remedy=remedy) from error


def write_toml(
    path: Path, document: msgspec.Struct | Mapping[str, object], comments: Sequence[str] = ()
) -> None:
    """Write `comments` and `document` to `path`, completely or not at all, without None values.

    Reading the file returns the same values to the last bit.
    """
    header = [f"{TOML_MARK}{__version__}.", *(f"# {line}" for line in comments)]
    plain = _without_none(msgspec.to_builtins(document, enc_hook=_plain, builtin_types=(Decimal,)))
    text = "".join(f"{line}\n" for line in header) + tomli_w.dumps(plain, indent=2)
    write_text(path, text)


def _seconds(kind: type, value: object) -> Seconds:
    """Return milliseconds as `Seconds`: msgspec's hook for types that it does not know."""
    if kind is not Seconds:
        raise NotImplementedError(kind)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        seconds = float(Decimal(value) / 1_000)
        if 0 <= seconds < math.inf:
            return Seconds(seconds)
    raise ValueError("Expected `milliseconds` >= 0")


def _plain(value: object) -> object:
    """Return a value as a TOML type: `Seconds` in milliseconds, NumPy's floats as Python's."""
    if isinstance(value, Seconds):
        return Decimal(repr(float(value))) * 1_000
    if isinstance(value, float):
        return float(value)
    raise NotImplementedError(type(value))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _refused(message: str, document: object, schema: Any, where: str, remedy: str) -> InputError:
    """Return the InputError for a message of msgspec's ValidationError."""
    at = _AT.fullmatch(message)
    assert at is not None  # noqa: S101  (the pattern takes any text)
    what, keys = at["what"], re.findall(r"\[[^]]*\]|[^.[]+", at["key"] or "")
    kind, value, names = _located(schema, document, keys)
    if (field := _FIELD.fullmatch(what)) is not None:
        names.append(field["name"])
        what = "missing" if field["defect"].startswith("missing") else "unknown key"
        known = [item.encode_name for item in msgspec.structs.fields(kind)]
        if what == "unknown key":
            near = get_close_matches(field["name"], known, n=1)
            remedy = f"did you mean {near[0]!r}" if near else f"keys: {', '.join(known)}"
    elif what.startswith("Invalid enum value"):
        what = f"{_shown(value)} is not known"
        remedy = f"write one of {', '.join(get_args(kind))}"
    elif (expected := _EXPECTED.fullmatch(what)) is not None:
        bound = "" if str(_LARGEST) in expected["bound"] else expected["bound"]
        words = "a finite number" if value == math.inf else _WORDS[expected["kind"]]
        what = f"{_shown(value)} is not {words}{bound}"
    elif (of_a_key := _OF_A_KEY.fullmatch(what)) is not None:
        names.append(of_a_key["key"])
        what = of_a_key["what"]
    else:
        what = f"{_shown(value)}: {what[:1].lower()}{what[1:]}"
    place = ".".join(names).replace(".[", "[")
    join = "." if ": " in where else ": "
    return InputError(what, where=f"{where}{join}{place}" if place else where, remedy=remedy)


def _located(schema: Any, value: Any, keys: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """Return the type and the value at `keys` (of a message of msgspec's), and the keys as in TOML.

    msgspec writes `[...]` for a mapping's key: that of the first value that does not fit its type.
    """
    names = []
    for key in keys:
        schema = _bare(schema)
        if key.startswith("[") and get_origin(schema) is dict:
            schema = get_args(schema)[1]
            at: Any = next(name for name, item in value.items() if not _fits(item, schema))
        elif key.startswith("["):
            at, inner = int(key[1:-1]), get_args(schema)
            schema = inner[at] if get_origin(schema) is tuple and inner[-1] is not ... else inner[0]
        else:
            at = key
            fields = msgspec.structs.fields(schema)
            schema = next(field.type for field in fields if field.encode_name == key)
        value = value[at]
        names.append(key if isinstance(at, int) else at)
    return _bare(schema), value, names


def _bare(schema: Any) -> Any:
    """Return a type without bounds and without `| None`."""
    while get_origin(schema) in {Annotated, Union, types.UnionType}:
        schema = get_args(schema)[0]
    return schema


def _fits(value: object, schema: Any) -> bool:
    try:
        msgspec.convert(value, schema, dec_hook=_seconds)
    except msgspec.ValidationError:
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as in TOML, shortened for an error message."""
    if isinstance(value, bool | Decimal):
        return str(value).lower().replace("infinity", "inf")
    text = str(value) if isinstance(value, date) else repr(value)
    text = re.sub(r"Decimal\('(.*?)'\)", r"\1", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
