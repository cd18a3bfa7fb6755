"""The profiles by name, and the sample traces made from them.

`python -m kvscope.synth.profiles FOLDER` writes sample_traces/ again. A new profile is a file with
a frozen dataclass, and a line in `PROFILES`.
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvscope.core.errors import UsageError
from kvscope.core.files import sink
from kvscope.synth.agent import Agent
from kvscope.synth.base import Profile, Record
from kvscope.synth.birth_death import BirthDeath
from kvscope.synth.regime_change import RegimeChange
from kvscope.synth.retrieval import Retrieval
from kvscope.synth.shared_prefix_groups import SharedPrefixGroups
from kvscope.synth.to_b import ToB
from kvscope.synth.to_c import ToC

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        ToC(),
        ToB(),
        Agent(),
        BirthDeath(),
        RegimeChange(),
        Retrieval(),
        SharedPrefixGroups(),
    )
}


class SampleTrace(NamedTuple):
    """A trace file that can be generated again, byte for byte, from its profile and seed."""

    profile: str
    requests: int
    seed: int

    @property
    def file(self) -> str:
        """The name in sample_traces/."""
        return f"{self.profile}.jsonl.gz"


# Sized to stay below 1 MB each. At this size the rare, heavy conversations and programs make or
# break the shares, so the seeds of to-c and to-b are picked: of 1-40, among the nearest to target.
SAMPLES = (
    SampleTrace("to-c", 2_000, 3),
    SampleTrace("to-b", 5_000, 39),
    SampleTrace("agent", 700, 7),
    SampleTrace("birth-death", 10_000, 7),
    SampleTrace("regime-change", 4_000, 7),
)


def by_name(name: str) -> Profile:
    """Return the profile called `name`, in any case. Raises UsageError if there is none."""
    if name.lower() in PROFILES:
        return PROFILES[name.lower()]
    near = get_close_matches(name.lower(), PROFILES, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PROFILES)}"
    raise UsageError(f"no profile is called {name!r}", remedy=remedy)


def write_jsonl(records: Iterable[Record], path: Path | str) -> int:
    """Write a trace file (`-`: standard output); return the number of records.

    Equal records give equal bytes, compressed ones too (`.gz`, `.zst`). Memory: one record. The
    file appears under its name only when it is complete.
    """
    encode = msgspec.json.Encoder().encode
    count = 0
    with sink(str(path)) as stream:
        for record in records:
            stream.write(encode(record) + b"\n")
            count += 1
    return count


def write_sample(sample: SampleTrace, folder: Path) -> Path:
    """Generate one sample into `folder`; return the file's path."""
    path = folder / sample.file
    profile = by_name(sample.profile)
    write_jsonl(profile.generate(requests=sample.requests, seed=sample.seed), path)
    return path


def main(arguments: list[str]) -> int:
    """Write every sample into the folder named on the command line; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m kvscope.synth.profiles FOLDER\n")
        return 2
    for sample in SAMPLES:
        path = write_sample(sample, Path(arguments[0]))
        sys.stderr.write(f"{path}: {sample.requests} requests, {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
