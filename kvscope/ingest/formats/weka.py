"""The Weka format: agent sessions, one JSON object per line, with sub-agents nested in it.

Times of a sub-agent's requests count from the sub-agent's start (as kv-cache-tester writes them) or
from the session's start (in the corpora that SemiAnalysis publishes). They count from the session's
start if no nested time is before its sub-agent's: a sub-agent's first request follows at once, so
times from the sub-agent's start would begin near 0. Each session is judged by itself.

Source: callanjfox/kv-cache-tester; the rule is that of ai-dynamo/aisimulate, pull request 115,
which applies it to a whole corpus.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from kvscope.ingest.formats.base import (
    TOO_DEEP,
    BadLine,
    Identifier,
    LineFormat,
    ReadOptions,
    Request,
)
from kvscope.ingest.limits import MAX_NESTING

_MAIN = "main"
_SCOPES = ("local", "global", None)
_LONGEST_SESSION_S = 1e9  # some 30 years: a broken time must not push all later sessions away
_ROUNDING_S = 1e-6
_ABSOLUTE = "times of sub-agents count from the start of their session where none is earlier"


class _Entry(msgspec.Struct, gc=False):
    """A request, or a sub-agent with its requests; times are in s."""

    t: float
    type: str | None = None
    model: str | None = None
    inputs: int | None = msgspec.field(name="in", default=None)
    outputs: int | None = msgspec.field(name="out", default=None)
    hash_ids: list[int | str] | None = None
    ttft: float | None = None
    api_time: float | None = None
    agent_id: Identifier | None = None
    requests: list[_Entry] | None = None


class _WekaSession(msgspec.Struct, gc=False):
    id: Identifier
    requests: list[_Entry]
    block_size: int | None = None
    hash_id_scope: str | None = None
    models: list[str] | None = None


class Weka(LineFormat):
    """Weka's agent sessions: JSON lines with `requests`, hash ids local to the session."""

    name = "weka"
    summary = "Weka agent sessions: one JSON object per session, sub-agents nested"
    source = "Weka agent-session traces"
    fields = ("id", "requests")
    marks = ("requests",)
    default_block_size = 64
    places_sessions = True

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._decode = msgspec.json.Decoder(_WekaSession).decode
        self._names: set[str] = set()
        self._start_s = 0.0

    def parse(self, line: bytes) -> Sequence[Request]:
        session = self._decode(line)
        name = str(session.id)
        if name in self._names:
            raise BadLine(f"duplicate session id: {reprlib.repr(name)}")
        if session.hash_id_scope not in _SCOPES:
            scope = reprlib.repr(session.hash_id_scope)
            raise BadLine(f"hash_id_scope is neither local nor global: {scope}")
        unfolded = _Unfolded(session, self._start_s)
        requests = list(unfolded.requests())
        self._names.add(name)
        if unfolded.is_absolute:
            self.note(_ABSOLUTE)
        last = (request.arrival_s or 0.0 for request in requests)
        self._start_s = max(last, default=self._start_s)
        return requests


def _nested_times(entries: Sequence[_Entry], depth: int = 2) -> Iterator[tuple[float, float]]:
    """Yield, for each entry in a sub-agent, the sub-agent's time and the entry's time (s).

    `entries` are at a `depth` of the line's JSON. Raises BadLine beyond MAX_NESTING.
    """
    if entries and depth >= MAX_NESTING:  # each entry is one level more
        raise BadLine(TOO_DEEP)
    for entry in entries:
        for nested in entry.requests or ():
            yield entry.t, nested.t
        yield from _nested_times(entry.requests or (), depth + 2)


class _Unfolded:
    """The requests of one session, in file order, with the sub-agents unfolded."""

    def __init__(self, session: _WekaSession, start_s: float) -> None:
        self._session = session
        self._start_s = start_s
        self._agents: set[str] = {_MAIN}
        self._namesakes: Counter[str] = Counter()  # agents that wanted each name
        models = session.models or []
        self._only_model = models[0] if len(models) == 1 else None
        times = [*_nested_times(session.requests)]
        self.is_absolute = any(agent_s > 0 for agent_s, _ in times) and all(
            nested_s >= agent_s - _ROUNDING_S for agent_s, nested_s in times
        )

    def requests(self) -> Iterator[Request]:
        """Yield each request; raise BadLine at a request that cannot be used."""
        yield from self._of(self._session.requests, _MAIN, self._start_s, "$.requests")

    def _of(
        self, entries: list[_Entry], agent: str, start_s: float, place: str
    ) -> Iterator[Request]:
        for index, entry in enumerate(entries):
            here = f"{place}[{index}]"
            if not 0 <= entry.t <= _LONGEST_SESSION_S:
                raise BadLine(
                    f"time outside 0 to {_LONGEST_SESSION_S:g} s: {entry.t:g} - at `{here}.t`"
                )
            if entry.requests is not None or entry.type == "subagent":
                name = self._name(agent, entry)
                nested_s = start_s if self.is_absolute else start_s + entry.t
                yield from self._of(entry.requests or [], name, nested_s, f"{here}.requests")
            else:
                yield self._request(entry, agent, start_s + entry.t, here)

    def _request(self, entry: _Entry, agent: str, arrival_s: float, here: str) -> Request:
        if entry.inputs is None or entry.outputs is None:
            missing = "in" if entry.inputs is None else "out"
            raise BadLine(f"Object missing required field `{missing}` - at `{here}`")
        session = self._session
        model = entry.model or self._only_model
        return Request(
            input_tokens=entry.inputs,
            output_tokens=entry.outputs,
            arrival_s=arrival_s,
            hash_ids=entry.hash_ids,
            scope=str(session.id) if session.hash_id_scope == "local" else None,
            session_id=f"{session.id}/{agent}/{model or 'unknown'}",
            type="agent" if agent == _MAIN else "subagent",
            block_size=session.block_size,
            clock=session.id,
            model=model,
            ttft_s=entry.ttft,
            duration_s=entry.api_time,
        )

    def _name(self, parent: str, entry: _Entry) -> str:
        """Return a name for a sub-agent that no other agent of the session has."""
        wanted = f"{parent}/{'agent' if entry.agent_id is None else entry.agent_id}"
        name = wanted
        while name in self._agents:
            self._namesakes[wanted] += 1
            name = f"{wanted}#{self._namesakes[wanted] + 1}"
        self._agents.add(name)
        return name
