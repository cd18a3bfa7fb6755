"""Find the conversation, turn and category of a request.

A request can state them: `session_id`, and `vllm_xargs` with `kvscope_type` and `kvscope_turn`.
Without these its hashes decide, as at ingest: a request continues the earlier one whose full blocks
it begins with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from kvscope.core.trace import ARRIVAL, PROBE, TURN, TYPE
from kvscope.learning.observer import Request
from kvscope.learning.prefixes import Key

UNKNOWN = "unknown"
MOST_REMEMBERED = 1 << 16  # sessions, and conversations known by their hashes
MOST_CATEGORIES = 128  # (type, turn bucket); later ones count as the last
SHARED_HEAD_CONTINUATIONS = 4  # so many continuations make a prompt a shared head, not a turn
_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,32}")

K = TypeVar("K")
V = TypeVar("V")


class RequestHints(NamedTuple):
    """What a request states: its session, type, turn, and time by the clock of a replayed trace.

    If not stated: None, type "unknown". A `probe` (sent by `kvscope calibrate`) is not recorded.
    """

    session: str | None
    type: str
    turn: int | None
    arrival_s: float | None = None  # by the clock of a trace that is replayed
    probe: bool = False  # sent by `kvscope calibrate`


def read_hints(request: Request) -> RequestHints:
    """Return the hints in `request`; a type that is not 1-32 of `A-Za-z0-9_.:-` is "unknown"."""
    params = request.sampling_params
    extra: Mapping[str, Any] = (params.extra_args if params is not None else None) or {}
    kind, turn = str(extra.get(TYPE, UNKNOWN)), extra.get(TURN)
    arrival_s = extra.get(ARRIVAL)
    return RequestHints(
        session=getattr(request, "session_id", None),  # vLLM 0.26 has none
        type=kind if _TYPE.fullmatch(kind) else UNKNOWN,
        turn=None if (whole := _within(turn, 1, 1 << 31)) is None else int(whole),
        arrival_s=_within(arrival_s, 0, 1 << 53),
        probe=bool(extra.get(PROBE)),
    )


def _within(value: Any, least: int, beyond: int) -> float | None:
    """Return the value as a number, None if it is not one or outside [least, beyond)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if least <= value < beyond else None


class Sessions:
    """The latest request of each session, and its turn."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int]] = {}

    def begin(self, session: str, number: int, turn: int | None) -> tuple[int, int]:
        """Return (the session's previous request or -1, turn): `turn`, or the next one if None."""
        before, turns = self._latest.get(session, (-1, 0))
        turn = turns + 1 if turn is None else turn
        remember(self._latest, session, (number, turn))
        return before, turn


class _PromptEnd(Struct):
    """What `Lineage` knows of the finished requests whose prompts have the same last full block.

    `continued` counts requests that continued them; the rest is of the one that finished last.
    """

    continued: int = 0
    turn: int = 0
    history_tokens: int = 0


class Lineage:
    """Turns by hashes alone, for requests without a session.

    Inferred as in `kvscope.ingest.lineage`, but without knowledge of later requests.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ends: dict[Key, _PromptEnd] = {}

    def turn(self, keys: Sequence[Key], prompt_tokens: int) -> int:
        """Return the turn of a new request with these blocks; count it if it continues another."""
        for key in reversed(keys[: max(prompt_tokens // self._block_size - 1, 0)]):
            end = self._ends.get(key)
            if end is not None and end.history_tokens <= prompt_tokens:
                end.continued += 1
                return 1 if end.continued >= SHARED_HEAD_CONTINUATIONS else end.turn + 1
        return 1

    def end(self, keys: Sequence[Key], prompt_tokens: int, history_tokens: int, turn: int) -> None:
        """Note a finished request; later ones that begin with its prompt's blocks continue it."""
        full = min(prompt_tokens // self._block_size, len(keys))
        if full:
            end = self._ends.get(keys[full - 1]) or _PromptEnd()
            end.turn, end.history_tokens = turn, history_tokens
            remember(self._ends, keys[full - 1], end)


class Categories:
    """Category numbers of (type, turn bucket), in order of first use."""

    def __init__(self) -> None:
        self._number: dict[tuple[str, int], int] = {}

    def number(self, kind: str, turn: int) -> int:
        """Return the category of a type and a turn; beyond MOST_CATEGORIES the last one."""
        bucket = min(turn, 4) if turn <= 6 else 7  # turns 1, 2, 3, 4-6, 7 and more
        known = self._number.get((kind, bucket))
        if known is None:
            known = min(len(self._number), MOST_CATEGORIES - 1)
            if len(self._number) < MOST_CATEGORIES:
                self._number[kind, bucket] = known
        return known


def remember(memory: dict[K, V], key: K, value: V, most: int = MOST_REMEMBERED) -> None:
    """Put a value into a mapping that keeps only the latest `most` keys."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]
