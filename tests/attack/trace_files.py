"""Attack on whole trace files, plain and compressed, through `kvscope analyze`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

import zstandard

from kvscope.core.files import data_folder
from tests.attack.attack import Attack, Case
from tests.attack.commands import USABLE, command
from tests.attack.mutations import as_json, mutated_bytes, mutated_document, overwritten
from tests.ingest.formats.conftest import SAMPLES

LINES = 120


def sample_lines(name: str, lines: int) -> list[bytes]:
    """Return the first lines of a sample trace."""
    with gzip.open(data_folder("sample_traces") / f"{name}.jsonl.gz") as file:
        return [line.rstrip(b"\n") for line, _ in zip(file, range(lines), strict=False)]


class TraceFiles(Attack):
    """`analyze` ends with a report or with one line that says what is wrong in the file."""

    name = "trace-files"
    target = "`kvscope analyze` of mutated files: plain, gzip, zstd, Parquet"
    share = 0.15
    short = 12

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.traces = [sample_lines(name, LINES) for name in ("to-c", "birth-death")]
        self.traces += [sample_lines("agent", 4)]
        self.traces += [SAMPLES[name].data.split(b"\n") for name in ("mooncake", "lengths")]

    def attempt(self, case: Case) -> int:
        """Mutate a file's lines, its bytes, or what compression made of them."""
        random = case.random
        suffix = random.choice(("", "", "", ".gz", ".zst", ".parquet"))
        data = (
            mutated_bytes(random, SAMPLES["parquet"].data)
            if suffix == ".parquet"
            else _compressed(random, suffix, self._text(random))
        )
        path = case.folder / f"trace.jsonl{suffix}"
        path.write_bytes(data)
        words = ["analyze", str(path), "--db", ":memory:"]
        words += random.choice(([], [], ["--full"], ["--json"], ["--max-bad", "1"], ["--strict"]))
        if random.random() < 0.2:
            words += ["--html", str(case.folder / "report.html")]
        outcome = command(*words).check(*USABLE)
        if "--json" in words and not outcome.code:
            outcome.document()
        return 1

    def _text(self, random: Random) -> bytes:
        """Return a trace with a few odd lines, few enough to be read with --max-bad."""
        sound = random.choice(self.traces)
        lines = list(sound)
        if random.random() < 0.3:
            return mutated_bytes(random, b"\n".join(sound))
        for _ in range(random.choice((1, 1, 3, 20))):
            at, line = random.randrange(len(lines)), random.choice(sound)
            if line.startswith(b"{") and random.random() < 0.7:
                line = as_json(random, mutated_document(random, json.loads(line)))
            else:
                line = mutated_bytes(random, line)
            lines[at] = line
        return b"\n".join(lines)


def _compressed(random: Random, suffix: str, text: bytes) -> bytes:
    if not suffix:
        return text
    data = gzip.compress(text) if suffix == ".gz" else zstandard.compress(text)
    if random.random() < 0.2:
        data += data  # a second member, or frame
    return overwritten(random, data, 64) if random.random() < 0.7 else data
