"""`kvscope record`, `hash` and `synth`: traces from engines, from logs, from profiles."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from msgspec import Struct, field

from kvscope.app import options as opt
from kvscope.app import values
from kvscope.app.hash_logs import HashOptions, hash_logs
from kvscope.app.monitor import Advance
from kvscope.app.options import Option, Options, Time, TraceFile, option
from kvscope.cli.diagnostics import note
from kvscope.cli.options import files_argument
from kvscope.cli.terminal import Terminal
from kvscope.core.errors import EngineError, UsageError, placed
from kvscope.core.files import LineFile
from kvscope.deployment.engines import parse_engine

if TYPE_CHECKING:
    from kvscope.synth.base import Record
    from kvscope.vllm_plugin.kv_events import BlockChains, EventBatch
    from kvscope.vllm_plugin.recording import TraceLine


SILENCE_S = 30.0
_SILENT = (
    "is --kv-events-config on, with ipc:// or tcp://*:PORT (vLLM listens at no other address),"
    " is this its endpoint (one for each rank), and is there traffic?"
)
_FROM_INSIDE = (
    "name vLLM's endpoint; or start vLLM with KVSCOPE_RECORD=FOLDER and --scheduler-cls"
    " kvscope.vllm_plugin.KvscopeScheduler, which records whole requests"
)

Output = Annotated[
    str,
    Option("File to write; lines are appended.", "PATH", values.appended, flags=opt.OUTPUT),
]
Logs = Annotated[list[str], files_argument("LOGS")]


class RecordOptions(Options, frozen=True, kw_only=True):
    """Options of `record`; times are in seconds.

    `endpoint`: ZeroMQ address of the events, required. `length`: of the recording, None: to Ctrl-C.
    A chain of blocks that has not grown for `quiet` counts as a whole request; None: 5 s.
    """

    group: ClassVar[str | None] = None
    endpoint: str | None = option(
        "Where the engine publishes its KV-cache events, for example ipc:///tmp/kv-events.",
        "ENDPOINT",
        flags=("--kv-events",),
    )
    engine: str = option("Engine and version that publishes them.", "ENGINE", value="vllm")
    length: float | None = Time(
        "How long to listen, for example 1h.", default="until Ctrl-C", flags=("--for",)
    )
    quiet: float | None = Time(
        "Time without growth after which a chain of blocks counts as a whole request.", default="5s"
    )


def record(*, path: Output, options: RecordOptions) -> None:
    """Record the requests of a running engine: salted hashes and lengths, never content.

    KV-cache events show requests in whole blocks only. The plugin for vLLM records them exactly:
    docs/record.md.
    """
    endpoint, length = options.endpoint, options.length
    with placed("--engine"):
        engine = parse_engine(options.engine)
    if endpoint is None:
        raise UsageError(
            "there is nothing to record from", where="--kv-events", remedy=_FROM_INSIDE
        )
    from kvscope.vllm_plugin.kv_events import QUIET_S, BlockChains, batches

    chains = BlockChains(options.quiet or QUIET_S, outputs_at_end=engine.name == "sglang")
    until_s = time.monotonic() + length if length is not None else float("inf")
    stream = batches(endpoint)
    first = next(stream)  # raises where nothing can be listened to
    listening = _Listening(endpoint)
    with closing(LineFile(Path(path))) as file, closing(stream):
        note(f"listening to {endpoint}; Ctrl-C ends the recording")
        try:
            for numbered in chain([first], stream):
                listening.hear(numbered)
                batch = numbered[1] if numbered is not None else None
                _write(file, chains.ended(time.time()) if batch is None else chains.take(batch))
                if time.monotonic() > until_s:
                    break
        except KeyboardInterrupt:  # the usual end
            pass
        finally:
            with suppress(OSError):  # told already
                _write(file, chains.ended(float("inf")))
            note(f"{path}: {file.lines:,} requests, {listening.in_words}; {_missed(chains)}")
    if not listening.heard:
        raise EngineError("heard nothing", where=endpoint, remedy=_SILENT)


def hash_(*, logs: Logs, options: HashOptions) -> None:
    """Turn logs with prompts into a trace: salted hashes, lengths and times, never content.

    Reads OpenAI chats, conversations and completions, LiteLLM's payloads and OpenTelemetry spans.
    """
    counts = hash_logs(logs, options, Terminal())
    if options.output != values.STANDARD_STREAM:
        note(f"{options.output}: {counts.requests:,} requests, {counts.tokens:,} input tokens")


class _Listening(Struct):
    """Counters of batches received (`heard`) and `missed` in a numbered stream.

    `_expected` is the number of the next batch, None before the first. `_since_s` is the time of
    the last batch, or of the start. Each silence is noted once: `_told` says whether it has been.
    """

    endpoint: str
    heard: int = 0
    missed: int = 0
    _expected: int | None = None
    _since_s: float = field(default_factory=time.monotonic)
    _told: bool = False

    def hear(self, numbered: tuple[int, EventBatch] | None) -> None:
        """Count a batch with its number; None stands for a second without a batch."""
        now_s = time.monotonic()
        if numbered is None:
            if not self._told and now_s - self._since_s >= SILENCE_S:
                self._told = True
                note(f"{self.endpoint}: silent for {SILENCE_S:.0f} s; {_SILENT}")
            return
        number = numbered[0]
        self.heard, self._since_s, self._told = self.heard + 1, now_s, False
        self.missed += max(number - (number if self._expected is None else self._expected), 0)
        self._expected = number + 1

    @property
    def in_words(self) -> str:
        share = self.missed / max(self.heard + self.missed, 1)
        return f"{self.heard:,} batches of events, {self.missed:,} ({share:.1%}) missed"


def _write(file: LineFile, lines: Iterable[TraceLine]) -> None:
    import json

    for line in lines:
        file.write(json.dumps(line, separators=(",", ":")))


def _missed(chains: BlockChains) -> str:
    """Return the text on requests that a recording of KV events may have missed or misread."""
    share = chains.unknown / max(chains.stored, 1)
    reports = (
        f"{chains.reported:,} requests reported what they found"
        if chains.reported
        else "no request reported what it found, so those found whole in the cache are absent"
    )
    return (
        f"{chains.unknown:,} of {chains.stored:,} blocks ({share:.1%}) behind unknown ones;"
        f" at most {chains.unsure:,} turns of one block taken for output; {reports}"
    )


ProfileName = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE",
        help="to-c (people who chat), to-b (programs) or agent (coding agents).",
        show_default=False,
    ),
]
Requests = Annotated[
    int,
    Option("Number of requests.", "N", values.amount("requests"), flags=("--requests", "-n")),
]
Seed = Annotated[int, opt.Seed("Seed; equal seeds give equal traces.")]
Parameters = Annotated[
    list[str] | None,
    Option(
        "Set a parameter of the profile, for example new_user_share=0.5. Repeatable.",
        "NAME=VALUE",
    ),
]


def synth(
    profile: ProfileName,
    requests: Requests = 2000,
    seed: Seed = 0,
    output: TraceFile = values.STANDARD_STREAM,
    param: Parameters = None,
) -> None:
    """Generate a trace of hashed requests from a profile; no real user data is involved."""
    from kvscope.synth.profiles import by_name, write_jsonl

    chosen = _changed(by_name(profile), param or [])
    with Terminal().steps(f"making {profile}", requests) as advance:
        records = _counted(chosen.generate(requests=requests, seed=seed), advance)
        count = write_jsonl(records, output)
    if output != values.STANDARD_STREAM:
        note(f"{output}: {count:,} requests of the profile {profile}, seed {seed}")


def _counted(records: Iterable[Record], advance: Advance) -> Iterator[Record]:
    for record in records:
        advance(1)
        yield record


def _changed(profile: Any, assignments: list[str]) -> Any:
    """Return `profile` with `--param NAME=VALUE` applied. Raises UsageError for wrong ones."""
    known = {field.name: getattr(profile, field.name) for field in fields(profile)}
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float)}
    changes: dict[str, int | float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name not in numbers:
            raise UsageError(
                f"no such parameter: {name!r}",
                where="--param",
                remedy="this profile has " + ", ".join(numbers),
            )
        try:
            changes[name] = type(numbers[name])(text)
        except ValueError as error:
            raise UsageError(f"not a number: {assignment!r}", where="--param") from error
    try:
        return replace(profile, **changes)
    except ValueError as error:
        raise UsageError(str(error), where="--param") from error
