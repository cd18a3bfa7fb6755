"""Latency profiles as files: `latency.toml`, in milliseconds, for people to read and edit.

schema = 1
name = "my engine"
source = "kvscope calibrate, 2026-07-01, vLLM 0.33.0, one L40S, Qwen2.5-7B"
base_ms = 9.3
per_token_ms = 0.0481
per_token_pair_ms = 2.1e-6

[intervals]  # optional: between which values each parameter lies
base_ms = [8.9, 9.8]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kvscope.core.errors import InputError, UsageError
from kvscope.core.toml_files import document_in
from kvscope.latency.profile import PARAMETERS, LatencyProfile

SCHEMA = 1
_KEYS = {f"{parameter.removesuffix('_s')}_ms": parameter for parameter in PARAMETERS}
_KNOWN = ("schema", "name", "source", *_KEYS, "intervals")
_OPTIONAL = ("per_token_pair_ms", "intervals")
_REMEDY = f"`kvscope calibrate` writes such a file; its keys: {', '.join(_KNOWN)}"


def read_profile(path: Path) -> LatencyProfile:
    """The latency profile in the TOML file at `path`.

    Raises InputError with the file, the key, the value and the remedy.
    """
    return profile_in(document_in(path, _REMEDY), str(path))


def profile_in(document: Mapping[str, Any], where: str) -> LatencyProfile:
    """The latency profile in a TOML table that stands at `where`; InputError as above."""
    for key in document:
        if key not in _KNOWN:
            near = get_close_matches(key, _KNOWN, n=1)
            remedy = f"did you mean {near[0]!r}" if near else f"keys: {', '.join(_KNOWN)}"
            raise InputError("unknown key", where=f"{where}: {key}", remedy=remedy)
    for key in _KNOWN:
        if key not in document and key not in _OPTIONAL:
            raise InputError("missing", where=f"{where}: {key}", remedy=_REMEDY)
    if document["schema"] != SCHEMA:
        raise InputError(
            f"schema {document['schema']!r}, this kvscope knows {SCHEMA}",
            where=f"{where}: schema",
            remedy="calibrate again, or upgrade kvscope",
        )
    try:
        return LatencyProfile(
            name=_text(where, document, "name"),
            source=_text(where, document, "source"),
            intervals=_intervals(where, document.get("intervals", {})),
            **{
                parameter: _seconds(f"{where}: {key}", document[key])
                for key, parameter in _KEYS.items()
                if key in document
            },
        )
    except UsageError as error:
        raise InputError(error.what, where=where, remedy=error.remedy) from error


def write_profile(path: Path, profile: LatencyProfile) -> None:
    """Write `profile` to `path`, so that reading it gives the very same one."""
    lines = lines_of(profile)
    if profile.intervals:
        lines += ["", "[intervals]"]
        for key, parameter in _KEYS.items():
            if parameter in profile.intervals:
                low, high = profile.intervals[parameter]
                lines.append(f"{key} = [{_ms(low)}, {_ms(high)}]")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def lines_of(profile: LatencyProfile) -> list[str]:
    """The keys and values of a profile, without its intervals, as lines of TOML."""
    return [
        f"schema = {SCHEMA}",
        f"name = {quoted(profile.name)}",
        f"source = {quoted(profile.source)}",
        *(f"{key} = {_ms(getattr(profile, parameter))}" for key, parameter in _KEYS.items()),
    ]


def _text(where: str, document: Mapping[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise InputError(f"{value!r} is not a text", where=f"{where}: {key}", remedy="quote it")
    return value


def _intervals(place: str, table: object) -> dict[str, tuple[float, float]]:
    if not isinstance(table, dict):
        raise InputError("not a table", where=f"{place}: intervals", remedy="write [intervals]")
    found = {}
    for key, value in table.items():
        where = f"{place}: intervals.{key}"
        if key not in _KEYS:
            raise InputError("unknown key", where=where, remedy=f"keys: {', '.join(_KEYS)}")
        if not (isinstance(value, list) and len(value) == 2):
            raise InputError(f"{value!r} is not an interval", where=where, remedy="[low, high]")
        found[_KEYS[key]] = (_seconds(where, value[0]), _seconds(where, value[1]))
    return found


def _seconds(where: str, value: object) -> float:
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        raise InputError(
            f"{value!r} is not a number", where=where, remedy="write milliseconds, such as 8.2"
        )
    return float(Decimal(value) / 1_000)


def quoted(text: str) -> str:
    """A text as TOML has it: as JSON has it, but for one control character that JSON leaves."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _ms(seconds: float) -> str:
    return str(Decimal(repr(float(seconds))) * 1_000)
