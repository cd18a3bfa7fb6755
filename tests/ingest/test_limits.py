"""Hostile traces stay within bounds of time and memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path

import pytest
import zstandard

from kvscope.core import files
from kvscope.core.errors import InputError
from kvscope.core.units import MIB
from kvscope.ingest import limits, source
from kvscope.ingest.formats.base import ReadOptions
from kvscope.ingest.formats.mooncake import Mooncake
from kvscope.ingest.pipeline import Ingested, IngestOptions, UnusableLinesError, ingest
from kvscope.ingest.source import Source
from kvscope.store.db import MEMORY, open_store

LINE = b'{"timestamp":1,"input_length":600,"output_length":5,"hash_ids":[1,2]}\n'


def ingested(path: Path | str, data: bytes | None = None, **options: object) -> Ingested:
    """Ingest the trace at `path`, after writing `data` there."""
    if data is not None:
        Path(path).write_bytes(data)
    with open_store(MEMORY) as store:
        return ingest(store, str(path), IngestOptions(**options))  # type: ignore[arg-type]


def packed(path: Path, pieces: Iterable[bytes]) -> Path:
    """Write these bytes compressed, as the path's suffix says."""
    with path.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as stream:
                stream.writelines(pieces)
        else:
            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as writer:
                for piece in pieces:
                    writer.write(piece)
    return path


_INGEST = """
import resource, sys
from kvscope.core import files
from kvscope.core.errors import InputError
from kvscope.ingest.pipeline import IngestOptions, ingest
from kvscope.store.db import MEMORY, open_store

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

ingest(open_store(MEMORY), sys.argv[1])
before = peak_mib()
for path in sys.argv[2:]:
    path, _, form = path.partition("=")
    try:
        ingest(open_store(MEMORY), path, IngestOptions(format=form or None))
    except InputError as error:
        print(error)
print(peak_mib() - before)
"""


def test_hostile_files_take_bounded_memory(tmp_path: Path) -> None:
    """Bombs, devices and lines without end: some tens of MiB, one line of error for each."""
    small, tokens, ids = (tmp_path / name for name in ("small.jsonl", "tokens.jsonl", "ids.jsonl"))
    small.write_bytes(LINE * 20)
    tokens.write_bytes(LINE.replace(b":600,", b":2147483647,") * 3)
    ids.write_bytes((LINE[:-3].replace(b":600,", b":16000000,") + b",1" * 3_000_000 + b"]}\n") * 3)
    spaces = [LINE * 200, *repeat(b" " * MIB, 300)]
    blank = [LINE * 200, *repeat(b"\n" * MIB, 100)]
    expected = {
        f"{packed(tmp_path / 'spaces.gz', spaces)}": ":201: no line feed within 256 MiB",
        f"{packed(tmp_path / 'spaces.zst', spaces)}": ": decompresses to more than 10,000 times",
        f"{packed(tmp_path / 'blank.zst', blank)}": ": more than 100,000,000 lines; ",
        "/dev/zero=bailian": ":1: no line feed within 256 MiB",
        "/dev/zero": ": no trace format that kvscope knows: binary data",
        "/dev/urandom=mooncake": ": none of its ",
        f"{tokens}": ": none of its 3 lines can be read as mooncake",
        f"{ids}": ": none of its 3 lines can be read as mooncake",
    }
    command = [sys.executable, "-c", _INGEST, str(small), *expected]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *errors, more_mib = done.stdout.splitlines()
    starts = [path.partition("=")[0] + error for path, error in expected.items()]
    assert [error[: len(start)] for error, start in zip(errors, starts, strict=True)] == starts
    assert int(more_mib) < 192


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_expands_as_no_trace_does_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the ratio a file is refused, below it a trace of equal lines is read."""
    monkeypatch.setattr(source, "EXPANSION_FREE_BYTES", MIB)
    path = packed(tmp_path / f"a.{kind}", [LINE * 30_000])
    assert ingested(path).trace.requests == 30_000
    monkeypatch.setattr(source, "MAX_EXPANSION", 50)
    with pytest.raises(InputError, match="decompresses to more than 50 times its size"):
        ingested(path)


def test_a_line_may_be_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, wherever chunks begin; the lines around a longer one are read."""
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 1_500_000)
    padded = [LINE[:-2] + b" " * (size - len(LINE) + 1) + b"}\n" for size in (1_500_000, 1_500_001)]
    for at, pieces in enumerate(
        (
            [LINE * 150, padded[0], LINE * 5],
            [LINE * 150, padded[1], LINE * 5],
            [LINE * 150, padded[1], LINE * 5, padded[1]],
            [padded[1], LINE * 150],
            [LINE * 150, padded[1][:-1]],
            [LINE * 150, padded[0][:-1]],
        )
    ):
        result = ingested(tmp_path / f"{at}.jsonl", b"".join(pieces), max_bad=0.02).rejects
        whole = b"".join(pieces).splitlines()
        long = [line for line, text in enumerate(whole, 1) if len(text) > 1_500_000]
        assert result.lines == [
            (line, "line longer than 64 MiB: split what it holds") for line in long
        ]
        assert result.accepted == len(whole) - len(long)


def test_too_many_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines count, and so do the requests of one line."""
    monkeypatch.setattr(source, "MAX_REQUESTS", 100)
    with pytest.raises(InputError, match="more than 100 lines; split the trace"):
        ingested(tmp_path / "a.jsonl", LINE * 101)
    assert ingested(tmp_path / "b.jsonl", LINE * 99).trace.requests == 99
    monkeypatch.setattr("kvscope.ingest.columns.MAX_REQUESTS", 3)
    session = b'{"id":"s","requests":[' + b",".join([b'{"t":0,"in":9,"out":1}'] * 4) + b"]}\n"
    with pytest.raises(InputError, match="more than 3 requests; split the trace"):
        ingested(tmp_path / "c.jsonl", session)


def test_the_last_line_may_be_cut(tmp_path: Path) -> None:
    """A cut last line is left out with a note, even of a short trace; strict reading ends there."""
    path = tmp_path / "a.jsonl"
    result = ingested(path, LINE * 3 + LINE[:-20])
    assert result.trace.requests == result.trace.lines == 3
    assert not result.trace.bad_lines
    assert "the last line is cut: line 4 is left out" in result.trace.notes
    for data in (LINE * 3 + LINE[:-20], gzip.compress(LINE * 3 + LINE[:-20])):
        with pytest.raises(InputError, match="the last line is cut: line 4 is left out; copy or"):
            ingested(path, data, strict=True)
    with pytest.raises(InputError, match="the last line is cut: line 1 is left out; copy or write"):
        ingested(path, LINE[:-20])


def test_a_bad_last_line_is_not_a_cut_one(tmp_path: Path) -> None:
    """Whole JSON that is no request, or no JSON, is a bad line with or without its line feed."""
    for end in (b'{"timestamp":1}', b"[1]", b"hello", b'{"timestamp":1,}'):
        result = ingested(tmp_path / "a.jsonl", LINE * 150 + end)
        assert [line for line, _ in result.rejects.lines] == [151]
        assert not any("cut" in note for note in result.trace.notes)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_of_a_cut_archive_whole_lines_are_stored(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """Not a byte that was decompressed is lost, and the trace notes what is missing."""
    lines = [LINE.replace(b":1,", b":%d," % (at * at)) for at in range(30_000)]
    whole = compress(b"".join(lines))
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    lost = Source(str(path))
    read = b"".join(lost.chunks())
    lost.close()
    assert lost.is_cut
    assert b"".join(lines).startswith(read)
    assert len(read) > 0.4 * sum(map(len, lines))
    trace = ingested(path).trace
    assert trace.requests == read.count(b"\n")
    note = f"the compressed data is cut: line {trace.requests + 1:,} and all that follows is left"
    assert any(text.startswith(note) for text in trace.notes)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    """Data that is wrong, not missing: what comes after it cannot be result apart from noise."""
    whole = bytearray(gzip.compress(os.urandom(100_000) + LINE * 100))
    whole[50_000:50_100] = bytes(100)
    with pytest.raises(InputError, match="the compressed data is damaged after line"):
        ingested(tmp_path / "a.gz", bytes(whole), format="mooncake")


def test_nothing_usable_at_the_beginning_ends_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without an end and without a usable line is refused after its first lines."""
    monkeypatch.setattr("kvscope.ingest.formats.base.HOPELESS_LINES", 1_000)
    read: list[int] = []
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"timestamp":1}\n' * 2_000_000)
    with open_store(MEMORY) as store, pytest.raises(UnusableLinesError, match="none of its "):
        ingest(store, str(path), IngestOptions(format="mooncake"), read.append)
    assert sum(read) < 8 * MIB


def test_a_pipe_without_a_writer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named pipe is read once another process writes to it; without one the wait is bounded."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.2)
    with pytest.raises(InputError, match="no process has opened this pipe to write within"):
        ingested(path)
    monkeypatch.setattr(files, "PIPE_WAIT_S", 60)
    writer = ["sh", "-c", 'sleep 0.3; printf %s "$1" > "$2"', "sh", (LINE * 5).decode(), str(path)]
    with subprocess.Popen(writer):
        assert ingested(path).trace.requests == 5


def test_nesting_is_bounded(tmp_path: Path) -> None:
    """A hundred levels are read, however deep the stack is; thousands are a bad line."""
    reader = Mooncake(ReadOptions())
    nested = [LINE[:-2] + b',"x":' + b"[" * n + b"]" * n + b"}\n" for n in (100, 100_000)]
    result = ingested(tmp_path / "a.jsonl", LINE * 150 + b"".join(nested))
    reason = "values nested more than 100 levels deep: flatten what it holds"
    assert result.rejects.lines == [(152, reason)]
    assert not reader.cut


def test_nesting_of_sub_agents_is_bounded(tmp_path: Path) -> None:
    """Entries at level 99, with their hash ids at 100, are read; one sub-agent more is refused."""

    def session(name: str, agents: int) -> bytes:
        request = '{"t":0,"in":64,"out":1,"hash_ids":[1]}'
        entries = '{"t":0,"type":"subagent","requests":[' * agents + request + "]}" * agents
        head = f'{{"id":"{name}","block_size":64,"requests":'
        return f"{head}[{entries}]}}\n".encode()

    flat = b"".join(session(str(number), 0) for number in range(150))
    result = ingested(tmp_path / "a.jsonl", flat + session("a", 48) + session("b", 49))
    assert result.trace.requests == 151
    reason = "values nested more than 100 levels deep: flatten what it holds"
    assert result.rejects.lines == [(152, reason)]


def test_the_documented_limits_are_the_constants() -> None:
    """The tables of docs/reliability.md state what is compared."""
    page = (Path(__file__).parents[2] / "docs/reliability.md").read_text(encoding="utf-8")
    free = limits.EXPANSION_FREE_BYTES // MIB
    for value in (
        f"{limits.MAX_LINE_BYTES // MIB} MiB",
        f"{limits.MAX_TOKENS:,}",
        f"{limits.MAX_HASH_IDS:,}",
        f"{limits.MAX_ENDLESS_BYTES // MIB} MiB",
        f"{limits.MAX_REQUESTS:,}",
        f"{limits.MAX_EXPANSION:,} times the compressed, beyond {free} MiB",
        f"{limits.HOPELESS_LINES:,}",
        f"{files.PIPE_WAIT_S:g} s",
    ):
        assert f"| {value} |" in page


_PEAK = """
import resource, sys, tracemalloc
from kvscope.ingest.formats.base import ReadOptions, Rejects
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats.mooncake import Mooncake
from kvscope.ingest.source import Source

source = Source(sys.argv[1])
reader, columns = Mooncake(ReadOptions()), Columns(512, ReadOptions(), Rejects(""))
chunks = iter(reader.records(source))
columns.add(next(chunks))  # kernels are loaded, the first tables are there
tracemalloc.start()
for records in chunks:
    columns.add(records)
print(tracemalloc.get_traced_memory()[1], len(columns))
"""


def peak_bytes(path: Path, megabytes: int) -> int:
    """Return what reading a trace of so many megabytes of the same long prompt takes at most."""
    prompt = {
        "input_length": 512 * 2_000,
        "output_length": 1,
        "hash_ids": list(range(10**6, 10**6 + 2_000)),
    }
    line = json.dumps({"timestamp": 0} | prompt) + "\n"
    count = megabytes * 2**20 // len(line)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(line)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
    )
    peak, requests = map(int, done.stdout.split())
    assert requests == count
    return peak


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Three times the text of the same prompts takes no more memory than some megabytes."""
    small, large = (peak_bytes(tmp_path / "a.jsonl", size) for size in (16, 48))
    assert large < small + 4 * 2**20
