"""What an operator sees at 100 columns: every sample's answer on one screen, and clean lines."""

from __future__ import annotations

import gzip
import re
from itertools import islice
from pathlib import Path

import pytest

from kvscope.core.files import data_folder
from tests.cli.shell import Streams, streams_of
from tests.long import long

SCREEN = 45  # lines
SAMPLES = sorted(path.name for path in data_folder("sample_traces").glob("*.jsonl.gz"))
CACHE = ("--view", "unloaded")
DEPLOYMENT = ("--gpu", "h100", "--model", "llama3-8b")
CLOCK_DECIMALS = re.compile(r"\d\.\d+(h|m|d)\b")  # 1.69h, where people say 1 h 41 min


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a store for all samples."""
    return str(tmp_path_factory.mktemp("screens") / "store.duckdb")


def printed(capsys: Streams, command: str, sample: str, db: str, *options: str) -> list[str]:
    """Return the lines that a command prints about a sample or another file, all of them clean."""
    path = str(data_folder("sample_traces") / sample)
    lines = streams_of(capsys, command, path, "--db", db, *options).out.splitlines()
    for line in lines:
        assert line == line.rstrip()
        assert len(line) <= 100 or " " not in line.strip()
        assert not CLOCK_DECIMALS.search(line), line
    return lines


@pytest.mark.parametrize("sample", SAMPLES)
def test_analyze_answers_on_one_screen_and_all_of_it_is_clean(
    sample: str, db: str, capsys: Streams
) -> None:
    """What caching gives and could give, a capacity table, why tokens miss, one category table.

    No table names a category of fewer than 30 requests.
    """
    screen = printed(capsys, "analyze", sample, db, "--model", "llama3-8b", "--hbm", "16GiB")
    assert len(screen) <= SCREEN
    words = " ".join(screen)
    assert "An infinite cache would hit" in words
    assert "Input tokens that miss at" in words
    assert " of the input tokens with 16 GiB" in words
    assert sum(line.startswith("type, turn") for line in screen) == 1
    assert sum(line.startswith("capacity") for line in screen) == 1
    lines = printed(capsys, "analyze", sample, db, "--full")
    assert len(lines) > SCREEN
    start = next(at for at, line in enumerate(lines) if line.startswith("Categories ─"))
    head = next(at for at in range(start, len(lines)) if lines[at].startswith("type, turn"))
    requests = lines[head].index("requests") + len("requests")
    for line in lines[head + 2 :]:
        if line.startswith(("other", "input")):
            break
        assert int(line[:requests].rsplit(maxsplit=1)[-1].replace(",", "")) >= 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "requests"),
    [
        ("agent.jsonl.gz", 500),
        *(long(sample, requests) for sample in SAMPLES for requests in (500, None)),
    ],
)
def test_every_sample_is_answered_on_one_screen(
    sample: str, requests: int | None, db: str, capsys: Streams, tmp_path: Path
) -> None:
    """Replays and recommendations of its first requests, with the default policies."""
    short = tmp_path / sample.removesuffix(".gz")
    with gzip.open(data_folder("sample_traces") / sample, "rt") as lines:
        short.write_text("".join(islice(lines, requests)))
    assert len(printed(capsys, "simulate", str(short), db)) <= SCREEN
    for deployment in ((), CACHE, DEPLOYMENT):
        options = ("--slo", "200ms", "--output", str(tmp_path / "r.toml"), *deployment)
        assert len(printed(capsys, "tune", str(short), db, *options)) <= SCREEN
