"""Attack on the readers of trace formats: mutated lines, straight into reader and columns."""

from __future__ import annotations

import json
import resource
import time
from contextlib import closing
from pathlib import Path
from random import Random

import duckdb

from kvscope.core.errors import InputError, UsageError
from kvscope.ingest.build import build
from kvscope.ingest.clocks import complete_sessions, turns
from kvscope.ingest.columns import Columns
from kvscope.ingest.formats import registry
from kvscope.ingest.formats.base import ReadOptions, Rejects, Turns
from kvscope.ingest.source import Source
from tests.attack.attack import Attack, Case, Harm
from tests.attack.mutations import as_json, mutated_bytes, mutated_document
from tests.ingest.formats.conftest import SAMPLES

_RETENTION = (
    b'"retention":{"retain":[{"from":0,"to":1024,"priority":80,"ttl_s":300},{"from":9}],'
    b'"refresh":false,"ends":true,"pause":true}'
)
_PARTS = b'[["template",1],["system",5],["tool 1 search",7],["user",8],["tool result",9]]'
MORE_LINES = {
    "mooncake": [
        b'{"session_id":"a","delay":12.5,"input_length":900,"output_length":3,"hash_ids":["x",2]}',
        b'{"session_id":"a","input_length":90,"output_length":3,"hash_ids":[1],'
        + _RETENTION
        + b"}",
        b'{"input_length":9,"output_length":3,"hash_ids":[1],"parts":' + _PARTS + b"}",
        b'{"session_id":"a","created_time":3,"input_tokens":9,"output_tokens":3,"block_size":16}',
    ],
    "bailian": [
        (
            b'{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":33,"output_length":7,'
            b'"type":"text","turn":1,"hash_ids":[1,2,3],"model":"m","lora_name":"l","worker":"w",'
            b'"parts":'
            + _PARTS
            + b',"cache_salt":"s","ttft_ms":12.5,"queue_ms":1,"duration_ms":90,"cached_tokens":16,'
            + _RETENTION
            + b"}"
        ),
    ],
    "dynamo": [
        b'{"timestamp":7,"event":' + line + b"}" for line in SAMPLES["dynamo"].data.splitlines()
    ],
    "lengths": [b"Timestamp,Request tokens,Response tokens\n5,472,18\n45,1087,230"],
    "litellm": [
        (
            b'{"request_id":"r","session_id":"s","call_type":"aresponses","cache_hit":"None","status":'
            b'"success","prompt_tokens":9,"completion_tokens":3,"startTime":"2026-05-01T10:00:00Z",'
            b'"metadata":"{\\"usage_object\\":{\\"prompt_tokens_details\\":{\\"cached_tokens\\":8}}}"}'
        ),
        b'startTime,prompt_tokens,cache_hit\n2026-05-01 10:00:00.5,9,False\n3.5,9,"None"',
    ],
    "otlp": [
        (
            b'{"spanId":"1","attributes":[{"key":"gen_ai.provider.name","value":{"stringValue":"a"}},'
            b'{"key":"gen_ai.usage.input_tokens","value":{"intValue":"9"}},'
            b'{"key":"gen_ai.usage.cache_read.input_tokens","value":{"intValue":"90"}}]}'
        ),
        b'{"spanId":"1","attributes":[{"key":"llm.token_count.prompt","value":{"intValue":9}}]}',
    ],
}
PARQUET_ROWS = [
    {
        "timestamp_start_unix_ms": 1_700_000_000_250,
        "prompt": "x",
        "input_tokens": 40,
        "output_tokens": 1,
        "total_hashes": [11, 12],
        "provided_session_id": "s",
        "poor_man_session_id": 1,
        "duration_e2e_ms": 2500,
        "duration_ttft_ms": 250,
        "cached_tokens_reference": 4,
        "model_name": "m",
        "org_id": "o",
        "block_size": 16,
    },
    {
        "arrival_s": 1.5,
        "input_tokens": 50,
        "output_tokens": 2,
        "hash_ids": ["a", "b", "c"],
        "chat_id": "c",
        "parent_chat_id": "p",
        "waits_for": "p",
        "delay_s": 0.5,
        "clock": "k",
        "cache_salt": "0",
        "adapter": "l",
        "retention": _RETENTION.decode().removeprefix('"retention":'),
        "parts": _PARTS.decode(),
    },
]
"""As Baseten and as kvscope name the columns."""
PARQUET = 0.01
"""Share of the cases; each is a file, which takes as long as a hundred lines."""
LONGEST_S = 2.0
MOST_BYTES = 192 * 2**20
"""Time and growth of memory that a case of a few lines may take."""


class Parsers(Attack):
    """A line is read or refused with a reason; nothing else, in bounded time and memory."""

    name = "parsers"
    target = "readers of all trace formats: mutated lines"
    share = 0.3
    short = 80

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.lines = {
            name: [line for line in sample.data.splitlines() if line.strip()]
            + MORE_LINES.get(name, [])
            for name, sample in SAMPLES.items()
            if sample.text
        }
        self.records = {
            name: [json.loads(line) for line in lines if line.startswith(b"{")]
            for name, lines in self.lines.items()
        }

    def attempt(self, case: Case) -> int:
        """Mutate records or their bytes, and read them among sound ones."""
        random = case.random
        path = case.folder / "trace"
        if random.random() < PARQUET:
            name, inputs = "parquet", _write_parquet(random, path)
        else:
            name, inputs = random.choice([*self.lines]), random.choice((1, 2, 120, 120))
            path.write_bytes(self._trace(random, name, inputs))
        size = random.choice((None, None, None, 1, 16, 2**31 - 1))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start_s = time.process_time()
        stated: Turns | None = random.choice((None, None, None, "delta"))
        read(path, name, ReadOptions(block_size=size, turns=stated))
        took_s = time.process_time() - start_s
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        if took_s > LONGEST_S or grown > MOST_BYTES:
            raise Harm(f"{took_s:.1f} s and {grown / 2**20:.0f} MiB for {path.stat().st_size} B")

        return inputs

    def _trace(self, random: Random, name: str, inputs: int) -> bytes:
        """Return a trace with so many mutated lines."""
        lines = [self._mutated(random, name) for _ in range(inputs)]
        for _ in range(random.randrange(4)):
            lines.insert(random.randrange(len(lines) + 1), random.choice(self.lines[name]))
        if name == "lengths" and random.random() < 0.8:
            lines.insert(0, self.lines[name][0])
        return random.choice((b"\n", b"\n", b"\r\n")).join(lines)

    def _mutated(self, random: Random, name: str) -> bytes:
        if self.records[name] and random.random() < 0.6:
            record = mutated_document(random, random.choice(self.records[name]))
            return as_json(random, record)
        return mutated_bytes(random, random.choice(self.lines[name]))


def _write_parquet(random: Random, path: Path) -> int:
    """Write a file with mutated rows, or a sound one whose bytes are; return how many."""
    document = random.choice(PARQUET_ROWS)
    rows = [document, document]
    if has_odd_rows := random.random() < 0.5:
        rows = [mutated_document(random, document) for _ in range(random.choice((1, 4)))]
    lines = path.with_suffix(".jsonl")
    lines.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with duckdb.connect(config={"threads": 1}) as connection:
        try:
            connection.execute(
                f"COPY (FROM read_json('{lines}', format = 'nd')) TO '{path}' (FORMAT parquet)"
            )
        except duckdb.Error:  # rows that DuckDB does not read are none
            path.write_bytes(SAMPLES["parquet"].data)
            has_odd_rows = False
    if not has_odd_rows:
        path.write_bytes(mutated_bytes(random, path.read_bytes()))
    return len(rows)


def read(path: Path, name: str, options: ReadOptions) -> Rejects:
    """Read a trace as the pipeline does; return the lines that it refuses.

    Raises Harm where a line is neither read nor refused nor cut, or is counted twice.
    """
    known = registry.by_name(name)
    rejects = Rejects(str(path))
    columns = Columns(known.default_block_size, options, rejects)
    try:
        with closing(Source(str(path))) as source:
            for other in registry.FORMATS:
                other.recognizes(source.head)
            reader = known(options)
            numbers: list[int] = []
            for records in reader.records(source):
                numbers += [*records.lines, *(line for line, _ in records.refused)]
                columns.add(records)
        if len(columns):
            if turns(columns.gaps, known, options.turns, str(path)) == "delta":
                complete_sessions(columns, str(path))
            build(columns, reader.all_notes(), known.in_ms)
    except (InputError, UsageError) as refusal:
        if not str(refusal).strip():
            raise Harm("a refusal without a word") from refusal
        return rejects
    if len(numbers) != len(set(numbers)) or rejects.accepted + rejects.count != len(numbers):
        raise Harm(f"{rejects.accepted} read, {rejects.count} refused, of {len(numbers)} records")
    _check_count(path, name, len(numbers) + bool(reader.cut))
    for line, reason in rejects.lines:
        if not reason or len(reason) > 400:
            raise Harm(f"line {line}: the reason has {len(reason)} characters")
    return rejects


def _check_count(path: Path, name: str, counted: int) -> None:
    """Raise Harm where so many records are not those of the file's lines."""
    sample = SAMPLES.get(name)
    if sample is None or not sample.text:
        return
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    there = sum(bool(line.strip()) for line in lines)
    may_skip = sample.skips or sample.headers
    if counted > there or (counted < there and not may_skip):
        raise Harm(f"{counted} records of {there} lines")
