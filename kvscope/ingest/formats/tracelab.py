"""TraceLab's coding-agent rounds: lengths with the engine's split into cached prefix and new input.

There are no hashes. Block ids follow from the split: a round keeps the previous round's blocks of
its session as far as the reported prefix reaches, and all after that are new. Rounds of a session
come in their order. A round is sent at its latest user message or tool result. Source:
ai-dynamo/aiperf, src/aiperf/dataset/loader/_tracelab_convert.py, commit 018a03f.
"""

from __future__ import annotations

import reprlib

import msgspec

from kvscope.ingest.formats.base import BadLine, Identifier, ReadOptions, Request
from kvscope.ingest.formats.json_lines import RowFormat
from kvscope.ingest.formats.times import moment
from kvscope.ingest.limits import MAX_HASH_IDS, MAX_TOKENS

BLOCK_SIZE = 16
_INPUT_EVENTS = frozenset({"user_message", "tool_result"})
_OUTPUT_EVENTS = frozenset({"text", "reasoning", "tool_call"})
_DERIVED = "block ids follow from cached prefixes: nothing is shared between sessions"


class DerivedBlocks:
    """Block ids of sessions without hashes: each prompt repeats the beginning of the one before."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._paths: dict[Identifier, list[int]] = {}
        self._next = 1

    def path(self, session: Identifier, total: int, repeated: int) -> list[int]:
        """Return the ids of a prompt's full blocks: `repeated` tokens are the session's before.

        Raises BadLine where a prompt cannot be so long.
        """
        if not 1 <= total <= MAX_TOKENS:
            raise BadLine(f"input tokens must be 1 to {MAX_TOKENS:,}: {reprlib.repr(total)}")
        if total // self.size > MAX_HASH_IDS:
            raise BadLine(f"request with more than {MAX_HASH_IDS:,} blocks: use larger ones")
        kept = self._paths.get(session, [])[: max(min(repeated, total), 0) // self.size]
        new = total // self.size - len(kept)
        path = [*kept, *range(self._next, self._next + new)]
        self._next += new
        self._paths[session] = path
        return path


class _TimingEvent(msgspec.Struct, gc=False):
    event_type: str | None = None
    timestamp: str | None = None


class _TraceLabRow(msgspec.Struct, gc=False):
    session_id: Identifier
    input_tokens_total: int
    prefix_tokens: int
    round_index: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None
    model: str | None = None
    user: Identifier | None = None
    timing_events: list[_TimingEvent] | None = None


class TraceLab(RowFormat):
    """TraceLab JSONL, a round a line."""

    name = "tracelab"
    summary = "TraceLab agent rounds: blocks follow from reported prefixes"
    source = "aiperf, src/aiperf/dataset/loader/_tracelab_convert.py (commit 018a03f)"
    fields = ("session_id", "round_index", "input_tokens_total", "prefix_tokens")
    marks = ("input_tokens_total prefix_tokens",)
    default_block_size = BLOCK_SIZE
    row = _TraceLabRow

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._blocks = DerivedBlocks(options.block_size or BLOCK_SIZE)

    def parse_at_once(self, text: bytes) -> None:
        """Leave each line to `parse`: ids depend on all lines before, so none is read twice."""
        return

    def request(self, row: _TraceLabRow) -> Request:
        self.note(_DERIVED)
        arrival_s, duration_s = _times(row.timing_events or [])
        path = self._blocks.path(row.session_id, row.input_tokens_total, row.prefix_tokens)
        return Request(
            input_tokens=row.input_tokens_total,
            output_tokens=(row.output_tokens or 0) + (row.reasoning_output_tokens or 0),
            arrival_s=arrival_s,
            hash_ids=[*path],
            block_size=self._blocks.size,
            session_id=row.session_id,
            user_id=row.user,
            type="agent",
            model=row.model,
            duration_s=duration_s,
            cached_tokens=row.prefix_tokens,
        )


def _times(events: list[_TimingEvent]) -> tuple[float | None, float | None]:
    """Return when a round is sent (s since 1970), and the time until its last output."""
    inputs_s, outputs_s = _moments(events, _INPUT_EVENTS), _moments(events, _OUTPUT_EVENTS)
    if not inputs_s and not outputs_s:
        return None, None
    arrival_s = max(inputs_s) if inputs_s else min(outputs_s)
    return arrival_s, max(max(outputs_s) - arrival_s, 0.0) if outputs_s else None


def _moments(events: list[_TimingEvent], kinds: frozenset[str]) -> list[float]:
    times_s = (moment(each.timestamp, "timestamp") for each in events if each.event_type in kinds)
    return [time_s for time_s in times_s if time_s is not None]
