"""One sample a format; every test of the battery runs on each of them.

The samples are in samples/, a file a format, as its producer writes it.
"""

from __future__ import annotations

import io
import tomllib
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import (
    BadLine,
    ReadOptions,
    Records,
    Rejects,
    Request,
    TraceFormat,
)
from kvscope.ingest.hash_ids import decoded
from kvscope.ingest.source import Source


@dataclass(frozen=True)
class Sample:
    """A small trace, told twice: as its format writes it, and as canonical requests.

    Each has a tie and disorder in time. `broken` is the trace with one record that cannot be used.
    """

    format: str
    data: bytes
    records: tuple[tuple[Request, ...], ...]
    broken: bytes
    bad_line: int
    reason: str
    string_ids: bytes | None = None  # a trace whose first hash ids are "17", "a0ff", "-3"
    headers: int = 0  # lines at its beginning that are no records
    text: bool = True
    skips: bool = False  # lines may be no requests, such as events of tools


def loaded(path: Path) -> Sample:
    """Return the sample in a file; its `bad` record ends in `bad_line` of the broken trace."""
    sample = tomllib.loads(path.read_text(encoding="utf-8"))
    bad, lines = sample.pop("bad").split("\n"), sample["trace"].split("\n")
    at = sample["bad_line"] - len(bad)
    records = sample.pop("records")
    ids = sample.pop("string_ids", None)
    return Sample(
        path.stem,
        sample.pop("trace").encode(),
        records=tuple(tuple(Request(**each) for each in record) for record in records),
        broken="\n".join([*lines[:at], *bad, *lines[at:]]).encode(),
        string_ids=None if ids is None else ids.encode(),
        **sample,
    )


def parquet(**columns: list[object]) -> bytes:
    """Return a Parquet file with these columns."""
    file = io.BytesIO()
    pl.DataFrame(columns, strict=False).write_parquet(file)
    return file.getvalue()


def _parquet() -> Sample:
    columns: dict[str, list[object]] = {
        "input_tokens": [40, 50, 1],
        "output_tokens": [9, 0, 3],
        "arrival_s": [61.5, 61.5, 60.0],
        "hash_ids": [[10, 11, 12], [10, 11, 13, 14], None],
        "chat_id": [7, 8, 9],
        "parent_chat_id": [None, 7, None],
        "user_id": ["u0", "u1", None],
        "type": ["text", None, "search"],
        "turn": [1, 2, 1],
    }
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return Sample(
        "parquet",
        parquet(**columns, remark=["is ignored", "", None]),
        tuple((Request(**row),) for row in rows),
        parquet(**(columns | {"input_tokens": [40, None, 1]})),
        2,
        "Expected `int`, got `null` - at `$.input_tokens`",
        parquet(input_tokens=[40], output_tokens=[1], hash_ids=[["17", "a0ff", "-3"]]),
        text=False,
    )


FILES = sorted((Path(__file__).parent / "samples").glob("*.toml"))
SAMPLES = {file.stem: loaded(file) for file in FILES} | {"parquet": _parquet()}


@pytest.fixture(scope="session", params=[known.name for known in registry.FORMATS])
def sample(request: pytest.FixtureRequest) -> Sample:
    """Return the sample of each format in turn; a format without one fails here."""
    return SAMPLES[request.param]


@dataclass(frozen=True)
class ReadTrace:
    """What a reader made of a trace."""

    records: list[tuple[Request, ...]]
    rejects: Rejects
    reader: TraceFormat
    last: int  # the last record's number

    @property
    def requests(self) -> list[Request]:
        """The requests of all records, in file order."""
        return [request for record in self.records for request in record]


class TraceReading:
    """Writes bytes to a file and reads them back as a trace."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace"

    def __call__(
        self,
        data: bytes,
        name: str | None = None,
        *,
        options: ReadOptions | None = None,
        strict: bool = False,
    ) -> ReadTrace:
        """Read `data` as the format called `name`, or as the one that recognizes it."""
        self.path.write_bytes(data)
        source = Source(str(self.path))
        try:
            chosen = registry.by_name(name) if name else registry.detect(source.head, source.path)
            reader = chosen(options or ReadOptions())
            rejects = Rejects(source.path, strict)
            records, last = [], 0
            for read in map(self.with_ids, reader.records(source)):
                for line, reason in sorted(read.refused):
                    rejects.reject(line, reason)
                records += [tuple(requests) for _, requests in read]
                last = max([last, *read.lines, *(line for line, _ in read.refused)])
        finally:
            source.close()
        return ReadTrace(records, rejects, reader, last)

    @staticmethod
    def with_ids(read: Records) -> Records:
        """Return the records with their hash ids, which a reader may leave to others to decode.

        Of what does for a request, as a format's own row may, there is one with all that it tells.
        """
        made = Records(refused=read.refused)
        for line, requests in read:
            try:
                for request in requests:
                    request.hash_ids = decoded(request.hash_ids)
            except BadLine as error:
                made.refuse(line, str(error))
            else:
                made.add(line, [_whole(request) for request in requests])
        return made


def _whole(request: Request) -> Request:
    return Request(**{name: getattr(request, name) for name in Request.__struct_fields__})


@pytest.fixture(scope="session")
def read(tmp_path_factory: pytest.TempPathFactory) -> TraceReading:
    """Read bytes as a trace."""
    return TraceReading(tmp_path_factory.mktemp("traces"))
