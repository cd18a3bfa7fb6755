"""The traces in sample_traces/: `python -m kvscope.synth.samples FOLDER` writes them again."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvscope.core.files import sink
from kvscope.synth.base import Record
from kvscope.synth.registry import by_name


def write_jsonl(records: Iterable[Record], path: Path | str) -> int:
    """Write a trace file (`-`: standard output); returns the number of records.

    `.gz` and `.zst` endings compress, anything else is plain. Memory: one record.
    Equal records give equal bytes: no time and no file name is stored. The file appears under
    its name only when it is complete.
    """
    encoder = msgspec.json.Encoder()
    line = bytearray()
    count = 0
    with sink(str(path)) as stream:
        for record in records:
            count += 1
            encoder.encode_into(record, line)
            line += b"\n"
            stream.write(line)
    return count


class Sample(NamedTuple):
    """A trace file that can be generated again, byte for byte, from its profile and seed."""

    file: str
    profile: str
    requests: int
    seed: int


# Sized to stay below 1 MB each. At this size the rare, heavy conversations and programs make or
# break the shares, so the seeds of to-c and to-b are picked: of 1-40, among the nearest to target.
SAMPLES = (
    Sample("to-c.jsonl.gz", "to-c", 2_000, 3),
    Sample("to-b.jsonl.gz", "to-b", 5_000, 39),
    Sample("agent.jsonl.gz", "agent", 700, 7),
    Sample("birth-death.jsonl.gz", "birth-death", 10_000, 7),
    Sample("regime-change.jsonl.gz", "regime-change", 4_000, 7),
)


def write_sample(sample: Sample, folder: Path) -> Path:
    """Generate one sample into `folder`; returns the file's path."""
    path = folder / sample.file
    records = by_name(sample.profile).generate(requests=sample.requests, seed=sample.seed)
    write_jsonl(records, path)
    return path


def main(arguments: list[str]) -> int:
    """Write every sample into the folder named on the command line; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m kvscope.synth.samples FOLDER\n")
        return 2
    for sample in SAMPLES:
        path = write_sample(sample, Path(arguments[0]))
        sys.stderr.write(f"{path}: {sample.requests} requests, {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
