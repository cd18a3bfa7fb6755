"""The Mooncake format and its relatives: JSON lines with milliseconds and blocks of 512 tokens.

The relatives (aiperf, Dynamo, kvcache-simulator) rename fields, leave some out, or add sessions
with delays; this reader takes them all.
"""

from __future__ import annotations

import reprlib
from typing import TypeVar

import msgspec

from kvscope.ingest.formats.base import BadLine, HashIds, Identifier, Request, in_seconds
from kvscope.ingest.formats.exporter import LineExporter, milliseconds
from kvscope.ingest.formats.json_lines import RowFormat, ServiceRow
from kvscope.ingest.hash_ids import decoded

TEXT_PROMPTS = "prompts as text, without input_length"

_BLOCK_SIZE = 512
_TEXTS = ("messages", "text_input", "text_inputs", "texts")
_NO_OUTPUTS = "output_length is missing in some rows: taken as 0 tokens"
_ABSENT = msgspec.Raw()
_decode_parts = msgspec.json.Decoder(dict[str, list[Identifier]]).decode

_Number = TypeVar("_Number", int, float)


class _MooncakeRow(ServiceRow, gc=False):
    """A line as it is written, with the alternative names of related formats."""

    input_length: int | None = None
    output_length: int | None = None
    timestamp: float | str | None = None
    timestamp_ms: float | None = None
    delay: float | None = None
    delay_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    created_time: float | None = None
    tool_wait_ms: float | None = None
    hash_ids: msgspec.Raw = _ABSENT
    session_id: Identifier | None = None
    chat_id: msgspec.Raw = _ABSENT
    request_id: Identifier | None = None
    parent_request_id: Identifier | None = None
    block_size: int | None = None
    block_tokens: list[int] | None = None
    user_id: Identifier | None = None
    type: str | None = None
    turn: int | None = None
    messages: msgspec.Raw = _ABSENT
    text_input: msgspec.Raw = _ABSENT
    text_inputs: msgspec.Raw = _ABSENT
    texts: msgspec.Raw = _ABSENT


class Mooncake(RowFormat):
    """Mooncake JSONL and relatives: JSON lines with lengths; a line with `chat_id` is unusable."""

    name = "mooncake"
    summary = "Mooncake JSONL (aiperf, Dynamo too): times in ms, blocks of 512 tokens"
    source = "Mooncake traces (FAST'25); aiperf and Dynamo write relatives"
    fields = ("timestamp", "input_length", "output_length", "hash_ids")
    marks = ("input_length", "input_tokens", "hash_ids", *_TEXTS)
    default_block_size = _BLOCK_SIZE
    places_sessions = True  # those of its relatives
    has_deltas = True
    in_ms = True
    row = _MooncakeRow

    def request(self, row: _MooncakeRow) -> Request:
        if bytes(row.chat_id):
            raise BadLine("a line with chat_id among others: Qwen-Bailian's, whose times are in s")
        inputs = _agreed("input_length", row.input_length, "input_tokens", row.input_tokens)
        if inputs is None:
            if any(map(bytes, (row.messages, row.text_input, row.text_inputs, row.texts))):
                raise BadLine(f"{TEXT_PROMPTS}: kvscope reads hashed traces only")
            raise BadLine("Object missing required field `input_length`")
        outputs = _agreed("output_length", row.output_length, "output_tokens", row.output_tokens)
        if outputs is None:
            outputs = 0
            self.note(_NO_OUTPUTS)
        arrival_ms = _agreed("timestamp", _ms(row.timestamp), "created_time", row.created_time)
        arrival_ms = _agreed("timestamp", arrival_ms, "timestamp_ms", row.timestamp_ms)
        delay_ms = _agreed("delay", row.delay, "delay_ms", row.delay_ms)
        if row.tool_wait_ms is not None:
            delay_ms = (delay_ms or 0.0) + row.tool_wait_ms
        if row.block_tokens is not None:
            self._check_block_tokens(row.block_tokens, inputs, row)
        return Request(
            input_tokens=inputs,
            output_tokens=outputs,
            arrival_s=in_seconds(arrival_ms),
            delay_s=in_seconds(delay_ms),
            hash_ids=_whole_prompt(row.hash_ids),
            chat_id=row.request_id,
            parent_chat_id=row.parent_request_id,
            session_id=row.session_id,
            user_id=row.user_id,
            type=row.type,
            turn=row.turn,
            block_size=row.block_size,
            model=row.model,
            adapter=row.adapter,
            cache_salt=row.cache_salt,
            worker=row.worker,
            ttft_s=row.ttft_s,
            queue_s=row.queue_s,
            duration_s=row.duration_s,
            cached_tokens=row.cached_tokens,
            retention=row.retention,
            repeated_tokens=row.repeated_tokens,
            parts=row.parts,
        )

    def _check_block_tokens(self, counts: list[int], inputs: int, row: _MooncakeRow) -> None:
        """Raise BadLine unless `counts` (the row's `block_tokens`) has each hashed block's size.

        All have the row's `block_size` (else the option's, else 512), except a shorter last one.
        """
        size = row.block_size or self.options.block_size or _BLOCK_SIZE
        hashes = len(decoded(_whole_prompt(row.hash_ids)) or ())
        if len(counts) != hashes:
            raise BadLine(f"block_tokens and hash_ids differ in length: {len(counts)} and {hashes}")
        blocks = -(-inputs // size)
        if len(counts) > blocks:
            raise BadLine(
                f"more block_tokens than the prompt has blocks: {len(counts)},"
                f" but {inputs} tokens are {blocks} of {size}"
            )
        for depth, tokens in enumerate(counts):
            expected = min(size, inputs - depth * size)
            if tokens != expected:
                raise BadLine(
                    "block_tokens must be full blocks but for the prompt's last:"
                    f" block {depth} has {tokens} tokens, expected {expected}"
                    f" (block_size {size}, input_length {inputs})"
                )


def _ms(timestamp: float | str | None) -> float | None:
    """Return a timestamp in ms, also where it is written as a string."""
    if not isinstance(timestamp, str):
        return timestamp
    try:
        return float(timestamp)
    except ValueError as error:
        raise BadLine(f"expected ms in timestamp: {reprlib.repr(timestamp)}") from error


def _whole_prompt(hash_ids: msgspec.Raw) -> HashIds:
    """Return the prompt's hash ids; an object of parts with ids each is joined in order."""
    text = bytes(hash_ids)
    if not text.startswith(b"{"):
        return hash_ids
    return [each for part in _decode_parts(text).values() for each in part]


def _agreed(name: str, value: _Number | None, alias: str, other: _Number | None) -> _Number | None:
    """Return the value under either name, None if neither has one; BadLine if they differ."""
    if other is None:
        return value
    if value is not None and value != other:
        raise BadLine(
            f"{name} and {alias} disagree: {reprlib.repr(value)} and {reprlib.repr(other)}"
        )
    return other


class MooncakeExport(LineExporter):
    """Export of arrivals, lengths and blocks; all other fields are lost.

    Conversations can be inferred again from the prompts. Times are written in ms, with a fraction
    where they need it, exact to a float's last place.
    """

    name = Mooncake.name
    summary = Mooncake.summary

    def line(self, row: Request, block_size: int) -> dict[str, object]:
        """Return a line in the field order of the published trace."""
        return {
            "timestamp": milliseconds(row.arrival_s),
            "input_length": row.input_tokens,
            "output_length": row.output_tokens,
            "hash_ids": row.hash_ids or None,
            "block_size": None if block_size == Mooncake.default_block_size else block_size,
        }
