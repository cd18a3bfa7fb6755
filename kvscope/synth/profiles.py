"""Traffic profiles by name; a new profile is a file with a frozen dataclass, and in `PROFILES`."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import msgspec

from kvscope.core.errors import UsageError
from kvscope.core.files import sink
from kvscope.synth.agent import Agent
from kvscope.synth.base import Profile, Record
from kvscope.synth.to_b import ToB
from kvscope.synth.to_c import ToC

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (ToC(), ToB(), Agent())}


def by_name(name: str) -> Profile:
    """Return the profile called `name`, in any case. Raises UsageError if there is none."""
    if name.lower() in PROFILES:
        return PROFILES[name.lower()]
    near = get_close_matches(name.lower(), PROFILES, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PROFILES)}"
    raise UsageError(f"no profile is called {name!r}", remedy=remedy)


def write_jsonl(records: Iterable[Record], path: Path | str) -> int:
    """Write a trace file (`-`: standard output); return the number of records.

    Equal records make equal bytes, also compressed (`.gz`, `.zst`). Memory holds one record. The
    file appears under its name only when it is complete.
    """
    encode = msgspec.json.Encoder().encode
    count = 0
    with sink(str(path)) as stream:
        for record in records:
            stream.write(encode(record) + b"\n")
            count += 1
    return count
