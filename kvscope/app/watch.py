"""Watch a growing recording: hit rates of its latest requests, actual and possible."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Struct

from kvscope.app import options as opt
from kvscope.app import values
from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.ingest.limits import MAX_TOKENS

if TYPE_CHECKING:
    from kvscope.core.runs import RunSetting
    from kvscope.ingest.follow import Follower
    from kvscope.policies.base import Policy

FACTORS = (1, 2, 4)
"""The multiples of the capacity at which LRU is computed."""
WARMUP = 0.5
"""The share of a window that fills the caches: only the later requests are counted."""
MOST_BYTES = 256 << 20  # of a window's lines
_MOST_PAST = 2_000  # windows whose figures are kept
_FORMAT = "bailian"  # what kvscope's recorders write


class WatchOptions(opt.Options, frozen=True, kw_only=True):
    """Options of `watch`: the policy and capacity to replay, how much, how often, and when to warn.

    Every `every` seconds the latest `window_requests` requests are replayed. `drift` (0 to 1) is
    the relative change of the recommendation's hit rate beyond which to tune again. Only one of
    `capacity`, in bytes, and `capacity_blocks` may be stated.
    """

    recommendation: str | None = opt.Source(
        "File of `kvscope tune` or `kvscope fit --export`: also replay what it recommends."
    )
    capacity_blocks: int | None = opt.Blocks(
        "Capacity in blocks.", default="that of the recommendation"
    )
    capacity: int | None = opt.option("Capacity in bytes; needs --model.", "SIZE", values.size)
    model: opt.Model = None
    kv_dtype: opt.KvDtype = None
    window_requests: int = opt.Count(
        "Latest requests to replay; the first half fills the caches.", value=10_000
    )
    every: float = opt.Time("Time between replays of the window.", default="30s", value=30.0)
    drift: float = opt.Share(
        "Change of the recommendation's hit rate beyond which to tune again.",
        default="20%",
        value=0.2,
    )


class Advice(Struct, frozen=True):
    """The part of a recommendation to replay: its policy under `setting` at `capacity_tokens`.

    `expected` is the hit rate on the recommendation's held-out requests, None if the file has none.
    """

    policy: Policy
    setting: RunSetting
    capacity_tokens: int | None
    expected: float | None


class WatchRequest(Struct, frozen=True):
    """Options of a watch, the advice to replay, and --capacity in tokens; None if not stated."""

    options: WatchOptions
    advice: Advice | None = None
    capacity_tokens: int | None = None

    def blocks(self, block_size: int) -> int:
        """Return --capacity-blocks, else --capacity, else the advice's, in blocks; never 0.

        Raises UsageError if the capacity holds no block.
        """
        tokens = self.capacity_tokens
        if tokens is None and self.advice is not None:
            tokens = self.advice.capacity_tokens
        blocks = self.options.capacity_blocks or (tokens or 0) // block_size
        if not blocks:
            raise UsageError(f"holds no block of {block_size} tokens", where="the capacity")
        return blocks


class WindowHits(Struct, frozen=True):
    """Token-weighted hit rates of the later half of a window.

    The whole window has `requests` requests, which arrived in `span_s` seconds. `lru` maps factors
    of `capacity_blocks` (idle cached blocks) to LRU's rate. `observed` is None if no request
    reports its cached tokens, `recommended` without advice. `drift` is the relative distance of
    `recommended` from the rate that the recommendation expected (None if it states none), and
    `tune_again` is set where its size exceeds the option `drift`. `rejected` counts the requests
    that need more blocks than the advice's engine has (None without an engine). The replay ended at
    the Unix time `computed_at_s`, after `duration_s` seconds.
    """

    requests: int
    span_s: float
    block_size: int
    capacity_blocks: int
    lru: dict[int, float]
    ideal: float
    observed: float | None
    recommended: float | None
    drift: float | None
    rejected: int | None
    tune_again: bool
    computed_at_s: float
    duration_s: float


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _RecordedLine(msgspec.Struct):
    """The fields of a recorded line that a watch reads; `timestamp` is the arrival in seconds."""

    chat_id: int | str
    timestamp: float
    input_length: _Tokens
    output_length: _Tokens
    cached_tokens: _Tokens | None = None


class Watch:
    """A window of the latest lines of a recording, counters over all lines, and hit rates.

    `hits` are those of the window replayed last, None before; `past` has those of the latest 2,000
    replayed windows. The window is bounded by its number of requests and by MOST_BYTES.
    """

    def __init__(self, request: WatchRequest) -> None:
        self.request = request
        self.requests = self.input_tokens = self.bad_lines = self.restarts = 0
        self.cached_tokens: int | None = None
        self.hits: WindowHits | None = None
        self.past: deque[WindowHits] = deque(maxlen=_MOST_PAST)  # the latest last
        self.failure: KvscopeError | None = None
        self._lines: deque[tuple[float, bytes]] = deque()  # with their times
        self._bytes = 0
        self._decode = msgspec.json.Decoder(_RecordedLine).decode
        self._computing: Future[WindowHits] | None = None
        self._next_s = 0.0
        self._replayed = 0  # requests that were known then

    @property
    def window(self) -> list[bytes]:
        """The lines of the window."""
        return [line for _, line in self._lines]

    def take(self, follower: Follower) -> bool:
        """Add the new lines of a recording to the window; return True if there are none."""
        switches, recordings = follower.switches, follower.recordings
        lines = follower.lines()
        if follower.recordings > recordings:
            self.restart()
        self.add(lines, switched=follower.switches > switches)
        return not lines

    def add(self, lines: Iterable[bytes], *, switched: bool = False) -> None:
        """Add lines in the recorder's format; count malformed lines as bad.

        `switched`: a new file begins. If its first line is earlier than the window, it is another
        recording, and the window restarts.
        """
        for line in lines:
            try:
                row = self._decode(line)
            except (msgspec.DecodeError, RecursionError):  # of UTF-8, types and nesting, too
                self.bad_lines += 1
                continue
            if switched and self._lines and row.timestamp < self._lines[0][0]:
                self.restart()
            switched = False
            self.requests += 1
            self.input_tokens += row.input_length
            if row.cached_tokens is not None:
                self.cached_tokens = (self.cached_tokens or 0) + row.cached_tokens
            self._lines.append((row.timestamp, line))
            self._bytes += len(line)
            while (
                len(self._lines) > self.request.options.window_requests or self._bytes > MOST_BYTES
            ):
                self._bytes -= len(self._lines.popleft()[1])

    def restart(self) -> None:
        """Clear the window: after a restart of the engine, the same prompts have other hashes."""
        self.restarts += 1
        self._lines.clear()
        self._bytes = 0

    def refresh(self) -> None:
        """Collect a finished replay of the window; start the next in a thread if it is due.

        If a window cannot be replayed, `failure` is set and the previous hits stay.
        """
        from kvscope.core.background import in_background

        if self._computing is not None:
            if not self._computing.done():
                return
            self._take(self._computing)
            self._computing = None
        now_s = time.monotonic()
        if self.requests > self._replayed and now_s >= self._next_s:
            self._next_s, self._replayed = now_s + self.request.options.every, self.requests
            self._computing = in_background(measure, self.window, self.request)

    def _take(self, computed: Future[WindowHits]) -> None:
        try:
            self.hits, self.failure = computed.result(), None
            self.past.append(self.hits)
        except KvscopeError as error:
            self.failure = error


def watch_request(options: WatchOptions) -> WatchRequest:
    """Return the request of a watch. Raises UsageError without a capacity."""
    if options.capacity is not None and options.capacity_blocks is not None:
        raise UsageError("contradict each other", where="--capacity, --capacity-blocks")
    from kvscope.app.requests import kv_model

    model = kv_model(options.model, options.kv_dtype, sizes_named=options.capacity is not None)
    tokens = None
    if options.capacity is not None and model is not None:
        tokens = model.blocks_in(options.capacity, 1)
    advice = None if options.recommendation is None else _advice(options.recommendation)
    stated = (options.capacity_blocks, tokens, advice and advice.capacity_tokens)
    if all(each is None for each in stated):
        raise UsageError(
            "needs a capacity",
            where="kvscope watch",
            remedy="add --capacity-blocks, --capacity with --model, or --recommendation",
        )
    return WatchRequest(options, advice, tokens)


def _advice(path: str) -> Advice:
    """Return a recommendation file's advice: for vLLM in a replica's pool, else a plain cache."""
    from kvscope.app.requests import latency_profile
    from kvscope.core.hits import standard
    from kvscope.deployment.engines import parse_engine
    from kvscope.replay.policy_options import VLLM
    from kvscope.replay.settings import run_setting, with_capacity_model
    from kvscope.tuning.file import read_policy_file

    file = read_policy_file(Path(path))
    slo_s = None if file.target is None else file.target.slo_s
    setting = run_setting(
        standard(warmup=WARMUP), file.profile or latency_profile(None), slo_s=slo_s
    )
    if file.tier is not None:
        raise UsageError(
            "it recommends a tier, which watch does not replay",
            where=path,
            remedy="replay a recording with kvscope simulate --recommendation",
        )
    expected = file.expected.get("recommended", {}).get("token_hit_rate")
    engine = file.deployment
    if engine is not None and parse_engine(engine.engine).name == VLLM:
        setting = with_capacity_model(
            engine.simulated(setting),
            "engine",
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
        )
    return Advice(file.policy, setting, file.capacity_tokens, expected)


def measure(lines: Sequence[bytes], request: WatchRequest) -> WindowHits:
    """Replay a window of a recording's lines, as `kvscope simulate --warmup 50%` does.

    Raises InputError if no line can be replayed, UsageError for a capacity without a block.
    """
    import numpy as np

    from kvscope.app.monitor import Monitor
    from kvscope.app.traces import ingest_file, replayable
    from kvscope.characterize.distributions import round_windows
    from kvscope.core.hits import standard
    from kvscope.replay.curve import first_counted, lru_curve
    from kvscope.replay.sweep import WINDOWS, make_run
    from kvscope.replay.workload import ReplayRequest, Workload
    from kvscope.store.db import MEMORY
    from kvscope.store.file import StoreFile

    began_s = time.monotonic()
    with TemporaryDirectory() as folder, StoreFile(MEMORY) as store:
        path = Path(folder) / "window.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n")
        reading = opt.Reading(trace_format=_FORMAT, max_bad=1.0)
        trace = ingest_file(store, str(path), Monitor(), reading).trace
        prompts = replayable(store, trace)
    definition = standard(warmup=WARMUP)
    curve = lru_curve(prompts, definition)
    blocks = request.blocks(prompts.block_size)
    advice, recommended, drift, rejected = request.advice, None, None, None
    if advice is not None:
        workload = Workload(prompts, advice.setting, round_windows(trace, WINDOWS))
        workload.prepare([advice.policy])
        stated = advice.capacity_tokens
        pool = blocks if stated is None else stated // prompts.block_size
        run = make_run(workload, ReplayRequest(advice.policy, pool))
        recommended, rejected = run.outcome.token_hit_rate, run.turned_away
        if advice.expected:
            drift = recommended / advice.expected - 1
    observed = None
    if prompts.measurements is not None:
        first = first_counted(prompts, definition)
        cached = prompts.measurements.cached_tokens[first:].astype(np.int64)
        known = cached >= 0
        if known.any():
            tokens = prompts.input_tokens[first:][known].sum(dtype=np.int64)
            observed = float(cached[known].sum() / tokens)
    return WindowHits(
        requests=trace.requests,
        span_s=trace.span_s,
        block_size=prompts.block_size,
        capacity_blocks=blocks,
        lru={factor: float(curve.rate(factor * blocks)) for factor in FACTORS},
        ideal=curve.ideal,
        observed=observed,
        recommended=recommended,
        drift=drift,
        rejected=rejected,
        tune_again=drift is not None and abs(drift) > request.options.drift,
        computed_at_s=time.time(),
        duration_s=time.monotonic() - began_s,
    )


def check_path(path: Path) -> None:
    """Raise InputError if `path` is no file or folder, or is missing with its parent folder."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        remedy = "name a recording, or its folder"
        raise InputError("neither a file nor a folder", where=str(path), remedy=remedy)
    if not path.exists() and not path.parent.is_dir():
        raise InputError("no such file", where=str(path), remedy="name a recording, or its folder")
