"""Latency profiles by name and as files: `latency.toml`, in milliseconds, for people to edit.

schema = 1
name = "my engine"
source = "kvscope calibrate, 2026-07-01, vLLM 0.33.0, one L40S, Qwen2.5-7B"
base_ms = 9.3
per_token_ms = 0.0481
per_token_pair_ms = 2.1e-6

floor_ms = 6.0  # optional: the least time of per_token_ms times the tokens
request_ms = 4.0  # optional: part of base_ms outside of the engine's steps
decode_base_ms = 7.9  # optional: a step that only decodes, alone,
decode_request_ms = 0.018  # with each running request,
decode_context_token_ms = 5.5e-5  # and with each token before theirs

[intervals]  # optional: 95 % CI of each parameter
base_ms = [8.9, 9.8]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvscope.core.errors import InputError, UsageError, placed
from kvscope.core.records import defaults
from kvscope.core.toml_files import SCHEMA, Count, Seconds, document_in, table_as, write_toml
from kvscope.latency.profile import (
    DEFAULT_PROFILE,
    PARAMETERS,
    PRESETS,
    STEP_PARAMETERS,
    TIMES,
    LatencyProfile,
)

_REMEDY = "`kvscope calibrate` writes such a file"
Interval = tuple[Seconds, Seconds]
DEFAULTS = defaults(LatencyProfile)


class IntervalsTable(msgspec.Struct, forbid_unknown_fields=True):
    """The 95 % interval of each parameter, low and high; None where it was not measured."""

    base_s: Interval | None = msgspec.field(default=None, name="base_ms")
    per_token_s: Interval | None = msgspec.field(default=None, name="per_token_ms")
    per_token_pair_s: Interval | None = msgspec.field(default=None, name="per_token_pair_ms")


class LatencyTable(msgspec.Struct, forbid_unknown_fields=True):
    """A latency profile in a file; fields as in `LatencyProfile`."""

    schema: Annotated[int, msgspec.Meta(ge=SCHEMA, le=SCHEMA)]
    name: str
    source: str
    base_s: Seconds = msgspec.field(name="base_ms")
    per_token_s: Seconds = msgspec.field(name="per_token_ms")
    per_token_pair_s: Seconds = msgspec.field(default=Seconds(0), name="per_token_pair_ms")
    floor_s: Seconds | None = msgspec.field(default=None, name="floor_ms")
    request_s: Seconds | None = msgspec.field(default=None, name="request_ms")
    decode_base_s: Seconds | None = msgspec.field(default=None, name="decode_base_ms")
    decode_request_s: Seconds | None = msgspec.field(default=None, name="decode_request_ms")
    decode_context_token_s: Seconds | None = msgspec.field(
        default=None, name="decode_context_token_ms"
    )
    intervals: IntervalsTable | None = None
    measured_tokens: Count | None = None

    @classmethod
    def of(cls, profile: LatencyProfile) -> LatencyTable:
        """Return the table of a profile."""
        intervals = {
            name: (Seconds(low), Seconds(high)) for name, (low, high) in profile.intervals.items()
        }
        return cls(
            schema=SCHEMA,
            name=profile.name,
            source=profile.source,
            intervals=IntervalsTable(**intervals) if intervals else None,
            measured_tokens=profile.measured_tokens,
            **{name: Seconds(getattr(profile, name)) for name in PARAMETERS},
            **{
                name: Seconds(value)
                for name in STEP_PARAMETERS
                if (value := getattr(profile, name)) != DEFAULTS[name]
            },
        )

    def profile(self, where: str) -> LatencyProfile:
        """Return the profile; raise InputError at `where` (file, table) for impossible values."""
        intervals = {name: getattr(self.intervals, name, None) for name in PARAMETERS}
        stated: dict[str, Any] = {
            name: float(value) for name in TIMES if (value := getattr(self, name)) is not None
        }
        with placed(where, InputError):
            return LatencyProfile(
                name=self.name,
                source=self.source,
                intervals={
                    name: (float(ends[0]), float(ends[1]))
                    for name, ends in intervals.items()
                    if ends
                },
                measured_tokens=self.measured_tokens,
                **stated,
            )


def load_profile(name_or_path: str = DEFAULT_PROFILE) -> LatencyProfile:
    """Return the latency profile of a preset's name, or of a file that `kvscope calibrate` wrote.

    A preset's exact name wins over a file of that name: write `./name` for the file. Raises
    UsageError for a name that is neither (with the nearest presets), InputError for a file that
    is not a profile.
    """
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".toml" or (os.path.lexists(path) and path.is_file()):
        return read_profile(path)
    if name_or_path.lower() in PRESETS:
        return PRESETS[name_or_path.lower()]
    near = get_close_matches(name_or_path.lower(), PRESETS, n=3, cutoff=0.5)
    known = f"did you mean {', '.join(near)}" if near else f"presets: {', '.join(PRESETS)}"
    raise UsageError(
        f"no latency profile {name_or_path!r}",
        remedy=f"{known}, or name the file that `kvscope calibrate` wrote",
    )


def read_profile(path: Path) -> LatencyProfile:
    """Return the latency profile in the TOML file at `path`.

    Raises InputError with the file, the key, the value and the remedy.
    """
    table = table_as(document_in(path, _REMEDY), LatencyTable, str(path), _REMEDY)
    return table.profile(str(path))


def write_profile(path: Path, profile: LatencyProfile, comments: Sequence[str] = ()) -> None:
    """Write `profile` to `path` below `comments`, so that reading it returns an equal one."""
    write_toml(path, LatencyTable.of(profile), comments)
