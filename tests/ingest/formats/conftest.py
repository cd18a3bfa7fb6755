"""One sample a format; every test of the battery runs on each of them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    broken_line: int
    reason: str
    string_ids: bytes | None = None  # a trace whose first hash ids are "17", "a0ff", "-3"
    headers: int = 0  # lines at its beginning that are no records
    text: bool = True
    skips: bool = False  # lines that are no requests, such as events of tools


def sent(
    input_tokens: int,
    output_tokens: int,
    arrival_s: float | None = None,
    hash_ids: list[int | str] | None = None,
    **others: Any,
) -> Request:
    """Return a canonical request: what all samples have comes first."""
    counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return Request(**counts, arrival_s=arrival_s, hash_ids=hash_ids, **others)


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
    first = sent(40, 9, 61.5, [10, 11, 12], chat_id=7, parent_chat_id=-1, type="text", turn=1)
    second = sent(
        50,
        0,
        61.5,
        [10, 11, 13, 14],
        chat_id="8",
        parent_chat_id=7,
        type="search",
        turn=2,
        user_id="u1",
        block_size=16,
    )
    third = sent(1, 3, 60.0, [], chat_id=9, parent_chat_id=-1, type="text", turn=1)
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
        sent(1100, 5, 2.5, [0, 1, 2]),
        sent(512, 6, 2.5, [0]),
        sent(3, 7, 0.0025, [9]),
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
        sent(130, 4, 0.0, [1, 2], **big),
        sent(
            70,
            1,
            2.0,
            [1],
            scope="s1",
            model="small",
            session_id="s1/main/a1/small",
            clock="s1",
            block_size=64,
            type="subagent",
        ),
        sent(200, 4, 1.0, [1, 2, 3], **big),
    )
    next_session = sent(
        64, 4, 2.0, [1], scope="s2", model="big", session_id="s2/main/big", clock="s2", **main
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
        sent(374, 44, 0.0),
        sent(396, 0, 0.0),
        sent(879, 55, -1e-7),
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
        sent(40, 9, 61.5, [10, 11, 12], chat_id=7, user_id="u0", type="text", turn=1),
        sent(50, 0, 61.5, [10, 11, 13, 14], chat_id=8, parent_chat_id=7, user_id="u1", turn=2),
        sent(1, 3, 60.0, chat_id=9, type="search", turn=1),
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


def _lines(
    format_name: str,
    lines: list[bytes],
    requests: tuple[Request, ...],
    *,
    bad: bytes,
    reason: str,
    string_ids: bytes | None = None,
    header: bytes | None = None,
) -> Sample:
    """Return the sample of a format with a request a line; the bad line is its third."""
    head = [] if header is None else [header]
    return Sample(
        format_name,
        b"\n".join([*head, *lines]),
        tuple((request,) for request in requests),
        b"\n".join([*head, *lines[:2], bad, *lines[2:]]),
        len(head) + 3,
        reason,
        string_ids,
        headers=len(head),
        skips=format_name not in {"lmcache", "tracelab"},
    )


def _dynamo() -> Sample:
    def line(received_ms: int, replay: bytes, more: bytes = b"", context: bytes = b"") -> bytes:
        return (
            b'{"schema":"dynamo.request.trace.v1","event_type":"request_end",'
            b'"event_time_unix_ms":%d,%b"request":{"request_id":"r","output_tokens":5,'
            b'"request_received_ms":%d,%b"replay":{%b}}}'
            % (received_ms + 90, context, received_ms, more, replay)
        )

    context = b'"agent_context":{"session_id":"s","parent_session_id":"p"},'
    more = (
        b'"model":"m","cached_tokens":64,"prefill_wait_time_ms":2.5,"ttft_ms":40,'
        b'"total_time_ms":90,"worker":{"prefill_worker_id":7,"prefill_dp_rank":1},'
    )
    replays = [
        b'"trace_block_size":64,"input_length":%d,"input_sequence_hashes":%b' % (tokens, hashes)
        for tokens, hashes in ((130, b"[1,2,18446744073709551615]"), (64, b"[1]"), (3, b"[]"))
    ]
    both = {"output_tokens": 5, "block_size": 64, "chat_id": "r"}
    lines = [line(2500, replays[0], more, context), line(2500, replays[1]), line(2000, replays[2])]
    return _lines(
        "dynamo",
        lines,
        (
            sent(
                130,
                5,
                2.5,
                [1, 2, 2**64 - 1],
                chat_id="r",
                block_size=64,
                session_id="s",
                type="subagent",
                model="m",
                worker="7/1",
                ttft_s=0.04,
                queue_s=0.0025,
                duration_s=0.09,
                cached_tokens=64,
            ),
            Request(input_tokens=64, arrival_s=2.5, hash_ids=[1], **both),
            Request(input_tokens=3, arrival_s=2.0, hash_ids=[], **both),
        ),
        bad=lines[1].replace(b'"input_length":64', b'"input_length":"64"'),
        reason="Expected `int`, got `str` - at `$.request.replay.input_length`",
        string_ids=lines[0].replace(b"[1,2,18446744073709551615]", b'["17","a0ff","-3"]'),
    )


def _lmcache() -> Sample:
    lines = [
        (
            b'{"timestamp":%b,"request_id":"r","model_name":"m","chunk_size":256,"seq_len":%d,'
            b'"dtypes":["int8"],"shapes":[[32,256,128]],"chunk_hashes":[%b]}' % line
        )
        for line in (
            (b"9.5", 600, b'"0xab","0xcd"'),
            (b"9.5", 256, b'"0xab"'),
            (b"9", 1, b""),
        )
    ]
    common = {"output_tokens": 0, "block_size": 256, "model": "m", "chat_id": "r"}
    return _lines(
        "lmcache",
        lines,
        (
            Request(input_tokens=600, arrival_s=9.5, hash_ids=["0xab", "0xcd"], **common),
            Request(input_tokens=256, arrival_s=9.5, hash_ids=["0xab"], **common),
            Request(input_tokens=1, arrival_s=9.0, hash_ids=[], **common),
        ),
        bad=lines[1].replace(b'"seq_len":256,', b""),
        reason="Object missing required field `seq_len`",
        string_ids=lines[0].replace(b'["0xab","0xcd"]', b'["17","a0ff","-3"]'),
    )


def _tair() -> Sample:
    lines = [
        (
            b'{"instance_id":"i","trace_id":"t","timestamp_us":%d,"tokens":[],"keys":%b,'
            b'"query_type":"prefix_match","block_mask":[],"sw_size":0,"input_len":%d,'
            b'"output_len":%d,"total_keys":%b}' % (us, keys, inputs, outputs, keys)
        )
        for us, keys, inputs, outputs in (
            (1_500_000, b"[1,2,3]", 50, 4),
            (1_500_000, b"[1]", 16, 0),
            (1_000_000, b"[]", 3, 9),
        )
    ]
    return _lines(
        "tair",
        lines,
        (
            sent(50, 4, 1.5, [1, 2, 3], model="i"),
            sent(16, 0, 1.5, [1], model="i"),
            sent(3, 9, 1.0, [], model="i"),
        ),
        bad=lines[1].replace(b'"input_len":16,', b"").replace(b"[1]", b"[]"),
        reason="a lookup without input_len and without keys",
        string_ids=lines[0].replace(b"[1,2,3]", b'["17","a0ff","-3"]'),
    )


def _tracelab() -> Sample:
    def line(session: bytes, second: int, total: int, prefix: int) -> bytes:
        return (
            b'{"session_id":"%b","round_index":0,"input_tokens_total":%d,"prefix_tokens":%d,'
            b'"newly_append_tokens":%d,"output_tokens":4,"reasoning_output_tokens":3,"model":"m",'
            b'"timing_events":['
            b'{"event_type":"user_message","timestamp":"1970-01-01T00:00:%02dZ"},'
            b'{"event_type":"text","timestamp":"1970-01-01T00:00:%02d"}]}'
            % (session, total, prefix, total - prefix, second, second + 2)
        )

    lines = [line(b"a", 9, 40, 0), line(b"a", 9, 70, 35), line(b"b", 5, 16, 0)]
    common = {
        "output_tokens": 4,
        "block_size": 16,
        "type": "agent",
        "model": "m",
        "duration_s": 2.0,
    }
    ids = ([1, 2], [1, 2, 3, 4], [5])
    return _lines(
        "tracelab",
        lines,
        tuple(
            Request(
                input_tokens=total,
                arrival_s=second,
                hash_ids=path,
                session_id=session,
                cached_tokens=cached,
                **common,
            )
            for total, second, path, session, cached in (
                (40, 9.0, ids[0], "a", 0),
                (70, 9.0, ids[1], "a", 35),
                (16, 5.0, ids[2], "b", 0),
            )
        ),
        bad=line(b"a", 9, 0, 0),
        reason="input tokens must be 1 to 16,777,216: 0",
    )


def _litellm() -> Sample:
    def line(start: bytes, prompt: int, more: bytes) -> bytes:
        return (
            b'{"id":"i","startTime":%b,"endTime":12.5,"prompt_tokens":%d,"completion_tokens":7,'
            b'"status":"success"%b}' % (start, prompt, more)
        )

    more = (
        b',"completionStartTime":10.75,"trace_id":"t","model":"m","model_id":"w","end_user":"u",'
        b'"metadata":{"usage_object":{"prompt_tokens_details":{"cached_tokens":16}}}'
    )
    both = {"output_tokens": 7, "chat_id": "i"}
    lines = [line(b"10.5", 40, more), line(b"10.5", 9, b""), line(b"10", 8, b"")]
    return _lines(
        "litellm",
        lines,
        (
            sent(
                40,
                7,
                10.5,
                chat_id="i",
                session_id="t",
                user_id="u",
                model="m",
                worker="w",
                ttft_s=0.25,
                duration_s=2.0,
                cached_tokens=16,
            ),
            Request(input_tokens=9, arrival_s=10.5, duration_s=2.0, **both),
            Request(input_tokens=8, arrival_s=10.0, duration_s=2.5, **both),
        ),
        bad=line(b'"noon"', 9, b""),
        reason="startTime is neither a number nor an ISO 8601 time: 'noon'",
    )


def _otlp() -> Sample:
    def line(start_ns: int, attributes: bytes) -> bytes:
        return (
            b'{"resourceSpans":[{"resource":{},"scopeSpans":[{"scope":{},"spans":[{"name":"chat",'
            b'"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":[%b]}]}]}]}'
            % (start_ns, start_ns + 500_000_000, attributes)
        )

    def number(key: bytes, value: int) -> bytes:
        return b'{"key":"gen_ai.usage.%b","value":{"intValue":"%d"}}' % (key, value)

    first = b",".join(
        [
            number(b"input_tokens", 40),
            number(b"output_tokens", 7),
            number(b"cache_read.input_tokens", 16),
            b'{"key":"gen_ai.conversation.id","value":{"stringValue":"c"}}',
            b'{"key":"gen_ai.request.model","value":{"stringValue":"m"}}',
        ]
    )
    latencies = (
        b'{"key":"gen_ai.latency.time_to_first_token","value":{"doubleValue":0.25}},'
        b'{"key":"gen_ai.latency.time_in_queue","value":{"doubleValue":0.125}},'
        b'{"key":"gen_ai.latency.e2e","value":{"doubleValue":2}}'
    )
    second = b",".join([number(b"prompt_tokens", 9), number(b"completion_tokens", 3), latencies])
    lines = [
        line(3_000_000_000, first),
        line(3_000_000_000, second),
        line(2_000_000_000, number(b"input_tokens", 8)),
    ]
    return _lines(
        "otlp",
        lines,
        (
            sent(40, 7, 3.0, session_id="c", model="m", duration_s=0.5, cached_tokens=16),
            sent(9, 3, 3.0, ttft_s=0.25, queue_s=0.125, duration_s=2.0),
            sent(8, 0, 2.0, duration_s=0.5),
        ),
        bad=line(1, b'{"key":"gen_ai.usage.input_tokens","value":{"intValue":"many"}}'),
        reason="expected a whole number: 'many'",
    )


def _agentic() -> Sample:
    header = (
        b'{"schema":"dynamo.agentic_mooncake","version":2,"block_size":64,"hash_id_scope":"local",'
        b'"source":{"format":"weka","digest":"d"}}'
    )

    def line(play: bytes, begin_ms: int, tokens: int, ids: bytes, more: bytes = b"") -> bytes:
        return (
            b'{"request_id":"r%d","play_id":"%b","session_id":"s","model":"m","not_before_ms":%d,'
            b'"input_length":%d,"output_length":3,"hash_ids":%b%b}'
            % (tokens, play, begin_ms, tokens, ids, more)
        )

    more = (
        b',"recorded_api_time_ms":250,"dependencies":[{"request_id":"o","relation":"spawn",'
        b'"trigger":"dispatch","delay_ms":9},{"request_id":"p","relation":"sequence",'
        b'"trigger":"completion","delay_ms":500}]'
    )
    lines = [
        line(b"p", 900, 130, b"[1,2]", more),
        line(b"q", 900, 64, b"[1]"),
        line(b"q", 0, 3, b"[]"),
    ]

    def request(play: str, tokens: int, at_s: float, ids: list[int | str], **more: Any) -> Request:
        return sent(
            tokens,
            3,
            at_s,
            ids,
            session_id=f"{play}/s",
            scope=play,
            chat_id=f"{play}/r{tokens}",
            clock=play,
            block_size=64,
            model="m",
            **more,
        )

    return _lines(
        "agentic-mooncake",
        lines,
        (
            request("p", 130, 0.9, [1, 2], duration_s=0.25, delay_s=0.5, waits_for="p/p"),
            request("q", 64, 0.9, [1]),
            request("q", 3, 0.0, []),
        ),
        bad=lines[1].replace(b'"input_length":64,', b""),
        reason="Object missing required field `input_length`",
        string_ids=lines[0].replace(b"[1,2]", b'["17","a0ff","-3"]'),
        header=header,
    )


def _transcripts(format_name: str) -> Sample:
    """Two calls of one agent's session, and one of another that came earlier."""
    is_claude = format_name == "claude-code"

    def line(session: bytes, second: int, total: int, cached: int) -> bytes:
        at = b'"timestamp":"1970-01-01T00:00:%02dZ","type":' % second
        if not is_claude:
            counts = b'{"input_tokens":%d,"cached_input_tokens":%d,"output_tokens":4}'
            usage = counts % (total, cached)
            payload = b'{"type":"token_count","info":{"last_token_usage":%b}}' % usage
            return b'{%b"event_msg","payload":%b}' % (at, payload)
        counts = b'"input_tokens":3,"cache_read_input_tokens":%d,"cache_creation_input_tokens":%d'
        usage = counts % (cached, total - cached - 3)
        message = b'{"id":"m%d","model":"m","usage":{%b,"output_tokens":4}}' % (total, usage)
        names = b'"sessionId":"%b","parentUuid":null,"message":' % session
        return b'{%b"assistant",%b%b}' % (at, names, message)

    sessions = ("a", "a", "b") if is_claude else ("s", "s", "s")
    calls = [(9, 40, 0), (9, 70, 35), (5, 16, 0)]
    lines = [line(name.encode(), *call) for name, call in zip(sessions, calls, strict=True)]
    paths = [1, 2], [1, 2, 3, 4], [5]
    return _lines(
        format_name,
        lines,
        tuple(
            sent(
                total,
                4,
                float(second),
                path,
                block_size=16,
                session_id=session,
                type="agent",
                model="m" if is_claude else None,
                cached_tokens=cached,
            )
            for (second, total, cached), path, session in zip(calls, paths, sessions, strict=True)
        ),
        bad=lines[1].replace(b":35", b':"35"').replace(b"m70", b"bad"),
        reason="Expected `int | null`, got `str` - at `$.message.usage.cache_read_input_tokens`"
        if is_claude
        else "Expected `int | null`, got `str` - at"
        " `$.payload.info.last_token_usage.cached_input_tokens`",
        header=None
        if is_claude
        else b'{"timestamp":"1970-01-01T00:00:00Z","type":"session_meta","payload":{"id":"s"}}',
    )


SAMPLES = {
    sample.format: sample
    for sample in (
        _bailian(),
        _mooncake(),
        _weka(),
        _lengths(),
        _parquet(),
        _dynamo(),
        _lmcache(),
        _tair(),
        _tracelab(),
        _transcripts("claude-code"),
        _transcripts("codex"),
        _litellm(),
        _otlp(),
        _agentic(),
    )
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
