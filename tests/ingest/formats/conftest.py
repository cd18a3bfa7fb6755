"""One sample a format; every test of the battery runs on each of them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import BadLine, Reader, ReadOptions, Records, Rejects, Request
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
    broken_line: int
    reason: str
    string_ids: bytes | None = None  # a trace whose first hash ids are "17", "a0ff", "-3"
    headers: int = 0  # lines at its beginning that are no records
    text: bool = True


def parquet(**columns: list[object]) -> bytes:
    """Return a Parquet file with these columns."""
    file = io.BytesIO()
    pl.DataFrame(columns, strict=False).write_parquet(file)
    return file.getvalue()


def _bailian() -> Sample:
    lines = [
        (
            b'{"chat_id":7,"parent_chat_id":-1,"timestamp":61.5,"input_length":40,"output_length":9,'
            b'"type":"text","turn":1,"hash_ids":[10,11,12]}'
        ),
        (
            b'{"chat_id":"8","parent_chat_id":7,"timestamp":61.5,"input_length":50,"output_length":0,'
            b'"type":"search","turn":2,"hash_ids":[10,11,13,14],"user_id":"u1","block_size":16}'
        ),
        (
            b'{"chat_id":9,"parent_chat_id":-1,"timestamp":60,"input_length":1,"output_length":3,'
            b'"type":"text","turn":1,"hash_ids":[]}'
        ),
    ]
    first = Request(
        input_tokens=40,
        output_tokens=9,
        arrival_s=61.5,
        hash_ids=[10, 11, 12],
        chat_id=7,
        parent_chat_id=-1,
        type="text",
        turn=1,
    )
    second = Request(
        input_tokens=50,
        output_tokens=0,
        arrival_s=61.5,
        hash_ids=[10, 11, 13, 14],
        chat_id="8",
        parent_chat_id=7,
        type="search",
        turn=2,
        user_id="u1",
        block_size=16,
    )
    third = Request(
        input_tokens=1,
        output_tokens=3,
        arrival_s=60.0,
        hash_ids=[],
        chat_id=9,
        parent_chat_id=-1,
        type="text",
        turn=1,
    )
    bad = lines[1].replace(b'"input_length":50', b'"input_length":"50"')
    return Sample(
        "bailian",
        b"\n".join(lines) + b"\n",
        ((first,), (second,), (third,)),
        b"\n".join([lines[0], b"", bad, lines[2]]),
        3,
        "Expected `int`, got `str` - at `$.input_length`",
        lines[0].replace(b"[10,11,12]", b'["17","a0ff","-3"]'),
    )


def _mooncake() -> Sample:
    lines = [
        b'{"timestamp": 2500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}',
        b'{"timestamp": 2500, "input_length": 512, "output_length": 6, "hash_ids": [0]}',
        b'{"timestamp": 2.5, "input_length": 3, "output_length": 7, "hash_ids": [9]}',
    ]
    requests = (
        Request(input_tokens=1100, output_tokens=5, arrival_s=2.5, hash_ids=[0, 1, 2]),
        Request(input_tokens=512, output_tokens=6, arrival_s=2.5, hash_ids=[0]),
        Request(input_tokens=3, output_tokens=7, arrival_s=0.0025, hash_ids=[9]),
    )
    return Sample(
        "mooncake",
        b"\n".join(lines),
        tuple((request,) for request in requests),
        b"\n".join([lines[0], lines[1], b'{"timestamp": 1, "output_length": 7}', lines[2]]),
        3,
        "Object missing required field `input_length`",
        lines[0].replace(b"[0, 1, 2]", b'["17", "a0ff", "-3"]'),
    )


def _weka() -> Sample:
    first = (
        b'{"id":"s1","models":["big","small"],"block_size":64,"hash_id_scope":"local","requests":['
        b'{"t":0,"type":"n","model":"big","in":130,"out":4,"hash_ids":[1,2]},'
        b'{"t":1.5,"type":"subagent","agent_id":"a1","requests":['
        b'{"t":0.5,"type":"n","model":"small","in":70,"out":1,"hash_ids":[1]}]},'
        b'{"t":1.0,"type":"s","model":"big","in":200,"out":4,"hash_ids":[1,2,3]}]}'
    )
    second = (
        b'{"id":"s2","block_size":64,"hash_id_scope":"local","requests":['
        b'{"t":0,"in":64,"out":4,"hash_ids":[1],"model":"big"}]}'
    )
    main = {"block_size": 64, "type": "agent"}
    big = {"scope": "s1", "model": "big", "session_id": "s1/main/big", "clock": "s1", **main}
    requests = (
        Request(input_tokens=130, output_tokens=4, arrival_s=0.0, hash_ids=[1, 2], **big),
        Request(
            input_tokens=70,
            output_tokens=1,
            arrival_s=2.0,
            hash_ids=[1],
            scope="s1",
            model="small",
            session_id="s1/main/a1/small",
            clock="s1",
            block_size=64,
            type="subagent",
        ),
        Request(input_tokens=200, output_tokens=4, arrival_s=1.0, hash_ids=[1, 2, 3], **big),
    )
    next_session = Request(
        input_tokens=64,
        output_tokens=4,
        arrival_s=2.0,
        hash_ids=[1],
        scope="s2",
        model="big",
        session_id="s2/main/big",
        clock="s2",
        **main,
    )
    return Sample(
        "weka",
        first + b"\n" + second + b"\n",
        (requests, (next_session,)),
        first + b"\n" + second.replace(b'"in":64,', b"") + b"\n",
        2,
        "Object missing required field `in` - at `$.requests[0]`",
        first.replace(b'"hash_ids":[1,2]}', b'"hash_ids":["17","a0ff","-3"]}'),
    )


def _lengths() -> Sample:
    lines = [
        b"TIMESTAMP,ContextTokens,GeneratedTokens",
        b"2023-11-16 18:15:46.6805900,374,44",
        b"2023-11-16 18:15:46.6805900,396,0",
        b'"2023-11-16 18:15:46.6805899",879,55',
    ]
    requests = (
        Request(input_tokens=374, output_tokens=44, arrival_s=0.0),
        Request(input_tokens=396, output_tokens=0, arrival_s=0.0),
        Request(input_tokens=879, output_tokens=55, arrival_s=-1e-7),
    )
    return Sample(
        "lengths",
        b"\r\n".join(lines) + b"\r\n",
        tuple((request,) for request in requests),
        b"\n".join([*lines[:2], b"2023-11-16 18:15:47.0,12.5,3", lines[3]]),
        3,
        "expected a whole number in ContextTokens: '12.5'",
        headers=1,
    )


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
        "remark": ["is ignored", "", None],
    }
    requests = (
        Request(
            input_tokens=40,
            output_tokens=9,
            arrival_s=61.5,
            hash_ids=[10, 11, 12],
            chat_id=7,
            user_id="u0",
            type="text",
            turn=1,
        ),
        Request(
            input_tokens=50,
            output_tokens=0,
            arrival_s=61.5,
            hash_ids=[10, 11, 13, 14],
            chat_id=8,
            parent_chat_id=7,
            user_id="u1",
            turn=2,
        ),
        Request(
            input_tokens=1,
            output_tokens=3,
            arrival_s=60.0,
            chat_id=9,
            type="search",
            turn=1,
        ),
    )
    return Sample(
        "parquet",
        parquet(**columns),
        tuple((request,) for request in requests),
        parquet(**(columns | {"input_tokens": [40, None, 1]})),
        2,
        "Expected `int`, got `null` - at `$.input_tokens`",
        parquet(input_tokens=[40], output_tokens=[1], hash_ids=[["17", "a0ff", "-3"]]),
        text=False,
    )


SAMPLES = {
    sample.format: sample for sample in (_bailian(), _mooncake(), _weka(), _lengths(), _parquet())
}


@pytest.fixture(scope="session", params=[known.name for known in registry.FORMATS])
def sample(request: pytest.FixtureRequest) -> Sample:
    """Return the sample of each format in turn; a format without one fails here."""
    return SAMPLES[request.param]


@pytest.fixture(scope="session")
def samples() -> dict[str, Sample]:
    """All samples by the name of their format."""
    return SAMPLES


@dataclass(frozen=True)
class ReadTrace:
    """What a reader made of a trace."""

    records: list[tuple[Request, ...]]
    rejects: Rejects
    reader: Reader
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
            reader = chosen.reader(options or ReadOptions())
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
