"""Compare two traces, two stored runs or two recommendations; the largest differences first.

Prints only what differs; --full has all figures. Differences between traces that chance explains
do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvscope.app import values
from kvscope.app.gates import RUN, stored_run
from kvscope.app.options import Hbm, KvDtype, Model, Option, Options
from kvscope.core.errors import UsageError
from kvscope.core.runs import Run, hit_rate
from kvscope.replay.policy_options import format_value
from kvscope.usecases.analyze import (
    Analysis,
    AnalyzeOptions,
    AnalyzeRequest,
    analyze,
    analyze_request,
)
from kvscope.usecases.base import Opened, UseCase

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.trace import Trace
    from kvscope.store.file import Stores
    from kvscope.tuning.file import RecommendationTable

Kind = Literal["traces", "runs", "recommendations"]
Topic = Literal[
    "verdict", "hits", "ideal", "capacity", "policy", "flags", "latency", "setting", "traffic"
]
TOPICS: tuple[Topic, ...] = get_args(Topic)
"""The topics of figures, the most important first."""
Quantity = Literal[
    "words", "share", "seconds", "requests", "per_second", "tokens", "blocks", "bytes"
]
Value: TypeAlias = float | str | None
SUFFIX = ".toml"

_PERCENTILES = ("p50", "p90", "p95", "p99")
_SIDES = {"left", "right"}
_SAME = 1e-12  # relative: what two orders of summation leave


Compared = Annotated[
    str,
    Option(
        "A trace (file or stored name), run:N of `kvscope runs`, or a recommendation (.toml).",
        parse=values.called,
        argument=True,
    ),
]


class DiffOptions(Options, frozen=True, kw_only=True):
    """Options of `diff`: the two sides, and the model and HBM for sizes."""

    left: Compared
    right: Compared
    model: Model = None
    kv_dtype: KvDtype = None
    hbm: Hbm = None


class DiffRequest(Struct, frozen=True):
    """The two sides to compare, as typed, and the request `analysis` to analyze traces.

    A side is `run:N`, the path of a recommendation (.toml), or the file or stored name of a trace.
    """

    left: str
    right: str
    analysis: AnalyzeRequest


class Difference(Struct, frozen=True):
    """One figure of both sides, null on a side that lacks it.

    `quantity` is its unit: share, seconds, per_second, a thing counted, or words (text).
    `change` is right - left for a share, right / left - 1 for another number, else null. `noise` is
    the change by chance between two samples of the same traffic, null if unknown.
    """

    topic: Topic
    name: str
    quantity: Quantity
    left: float | str | None
    right: float | str | None
    change: float | None
    noise: float | None = None

    @property
    def is_none(self) -> bool:
        """Whether both sides are the same, or differ by no more than chance explains."""
        least = _SAME if self.noise is None else max(_SAME, self.noise)
        return self.left == self.right or (self.change is not None and abs(self.change) <= least)


class SideFigure(NamedTuple):
    """A figure of one side; one with a `key` (a trace, a parameter) is shown if the keys differ."""

    topic: Topic
    name: str
    quantity: Quantity
    value: Value
    key: object = None


Facts = tuple[Difference, ...]
_Groups = dict[str, list[float]]


class CategoryDifferences(Struct, frozen=True):
    """The figure `name` by category; for runs, only categories of both."""

    name: str
    categories: tuple[Difference, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """The result of `kvscope diff`: `differences`, most important first, and equal figures, `same`.

    For traces, changes within their `noise` count as equal. `traces` are the two that are compared,
    or that two runs replayed; empty for recommendations.
    """

    DOCUMENT: ClassVar[str] = "kind left right traces differences same by_category"
    kind: Kind
    left: str
    right: str
    traces: tuple[Trace, ...] = ()
    facts: tuple[Difference, ...]  # all figures, in an order to be read
    by_category: tuple[CategoryDifferences, ...] = ()
    analyses: tuple[Analysis, Analysis] | None = None
    runs: tuple[Run, Run] | None = None

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The figures that differ: important topics first, then by size."""

        def rank(fact: Difference) -> tuple[int, float]:
            left, right, size = fact.left, fact.right, 0.0
            if isinstance(left, int | float) and isinstance(right, int | float):
                size = abs(right - left) / max(abs(left), abs(right))
            return TOPICS.index(fact.topic), -size

        return tuple(sorted((fact for fact in self.facts if not fact.is_none), key=rank))

    @property
    def same(self) -> tuple[Difference, ...]:
        """The figures that do not differ."""
        return tuple(fact for fact in self.facts if fact.is_none)

    @property
    def heading(self) -> tuple[str, str]:
        """The two sides, and the number of figures that differ."""
        total, differing = len(self.facts), len(self.differences)
        lead = f"all {total} figures are the same."
        if any(fact.noise is not None for fact in self.facts):
            verb = "differs" if differing == 1 else "differ"
            lead = f"{differing or 'none'} of {total} figures {verb} by more than chance (99 %)."
        elif differing:
            lead = f"{differing} of {total} figures differ."
        return f"{self.left} and {self.right}", lead

    @property
    def names(self) -> tuple[str, str]:
        """The names of both sides."""
        return self.left, self.right


def diff_request(options: DiffOptions) -> DiffRequest:
    """Return the request in the options of `diff`."""
    sizes = {name: value for name, value in asdict(options).items() if name not in _SIDES}
    return DiffRequest(options.left, options.right, analyze_request(AnalyzeOptions(**sizes)))


def run(opened: Opened, request: DiffRequest, monitor: Monitor) -> Comparison:
    """Compare two traces, runs or recommendations.

    Raises UsageError for sides of different kinds, InputError for a side that does not exist.
    """
    from kvscope.app.traces import TraceSource, open_dataset

    left, right, stores = request.left, request.right, opened.stores
    names = (left, right)
    kind, other = (_kind(name) for name in names)
    if kind != other:
        raise UsageError(
            f"{left} is one of {kind}, {right} one of {other}",
            remedy="compare two traces, two runs (run:N) or two recommendations (FILE.toml)",
        )
    if kind == "recommendations":
        from kvscope.tuning.file import read_recommendation_table

        first, second = (read_recommendation_table(Path(name)) for name in names)
        short = (Path(left).name, Path(right).name)
        return compare_recommendations(short if short[0] != short[1] else names, (first, second))
    if kind == "runs":
        with stores.reading() as store:
            (trace, run), (other_trace, other_run) = (stored_run(store, name) for name in names)
        return compare_runs(names, (run, other_run), (trace, other_trace))

    sources = [TraceSource.of(name) for name in names]
    for source in sources:
        source.path(stores)

    def analyzed(source: TraceSource) -> Analysis:
        own = open_dataset(source.text).stores if source.kind == "dataset" else stores
        return analyze(own, source.load(own, monitor), request.analysis)

    both = analyzed(sources[0]), analyzed(sources[1])
    groups: Sequence[Sequence[_Groups]] = ()
    if both[0].trace != both[1].trace and not any(source.kind == "dataset" for source in sources):
        groups = [
            [_in_groups(stores, each.trace, request, in_time=in_time) for each in both]
            for in_time in (False, True)
        ]
    return compare_traces((both[0].trace.name, both[1].trace.name), both, groups)


def _in_groups(stores: Stores, trace: Trace, request: DiffRequest, *, in_time: bool) -> _Groups:
    """Return {figure: values in groups of a trace's conversations}, to estimate changes by chance.

    `in_time`: in groups consecutive in time, else in random ones; a figure has one value a group.
    """
    from kvscope.app.random_groups import random_groups

    values: _Groups = {}
    for store, part in random_groups(stores, trace, in_time=in_time):
        analysis = analyze(store, part, request.analysis)
        for figure in _trace_figures(analysis, analysis):
            if isinstance(figure.value, int | float):
                values.setdefault(figure.name, []).append(float(figure.value))
    return values


def _kind(name: str) -> Kind:
    if name.startswith(RUN):
        return "runs"
    return "recommendations" if name.endswith(SUFFIX) else "traces"


def compare_traces(
    names: tuple[str, str],
    both: tuple[Analysis, Analysis],
    groups: Sequence[Sequence[_Groups]] = (),
) -> Comparison:
    """Compare two analyses; capacities are in bytes if both have the same model.

    `groups` has a pair for random groups of conversations, and one for groups consecutive in time,
    to estimate changes by chance; empty: these are unknown. A pair is, for the left and the right
    trace, a dictionary of the values in each group by the name of the figure.
    """
    left, right = (
        {row.category: row.share for row in each.characterization.categories} for each in both
    )
    shares = tuple(
        _difference("traffic", name, "share", left.get(name, 0.0), right.get(name, 0.0))
        for name in {**left, **right}
    )
    known = _side_by_side(_trace_figures(*both), _trace_figures(*reversed(both)))
    return Comparison(
        kind="traces",
        left=names[0],
        right=names[1],
        facts=tuple(replace(fact, noise=_noise(fact, groups)) for fact in known),
        by_category=(CategoryDifferences("Share of requests", shares),),
        traces=(both[0].trace, both[1].trace),
        analyses=both,
    )


def _noise(fact: Difference, groups: Sequence[Sequence[_Groups]]) -> float | None:
    """Return a figure's change by chance, the largest over `groups`; None if unknown."""
    from kvscope.app.random_groups import noise

    # How long so many requests take varies as their rate does.
    name = "requests/s" if fact.name == "span" else fact.name
    relative = fact.quantity != "share"
    pairs = ([each.get(name, []) for each in pair] for pair in groups)
    known = [noise(left, right, relative=relative) for left, right in pairs]
    return max((each for each in known if each is not None), default=None)


def compare_runs(
    names: tuple[str, str], both: tuple[Run, Run], traces: tuple[Trace, Trace] | None = None
) -> Comparison:
    """Compare two runs, overall and in the categories that both have."""
    categories = [
        {part.category: part.outcome for part in run.parts if part.category is not None}
        for run in both
    ]
    shared = {
        name: (outcome, categories[1][name])
        for name, outcome in categories[0].items()
        if name in categories[1]
    }
    rates = tuple(
        _difference("hits", name, "share", *map(hit_rate, [run.setting for run in both], pair))
        for name, pair in shared.items()
    )
    times = tuple(
        _difference("latency", name, "seconds", *(each.ttft_ms.p95 / 1e3 for each in pair))
        for name, pair in shared.items()
    )
    by_name = {"Hit rate": rates, "p95 TTFT": times} if shared else {}
    return Comparison(
        kind="runs",
        left=names[0],
        right=names[1],
        facts=_side_by_side(*map(_run_figures, both, traces or (None, None))),
        by_category=tuple(starmap(CategoryDifferences, by_name.items())),
        traces=traces or (),
        runs=both,
    )


def compare_recommendations(
    names: tuple[str, str], both: tuple[RecommendationTable, RecommendationTable]
) -> Comparison:
    """Compare two recommendation files: the advice, and expected held-out figures."""
    facts = _side_by_side(_advice_figures(*both), _advice_figures(*reversed(both)))
    return Comparison(kind="recommendations", left=names[0], right=names[1], facts=facts)


def _difference(
    topic: Topic, name: str, quantity: Quantity, left: Value, right: Value
) -> Difference:
    """Return a figure's values on both sides, with the change between them."""
    change = None
    if isinstance(left, int | float) and isinstance(right, int | float):
        if quantity == "share":
            change = right - left
        elif left:
            change = right / left - 1
    return Difference(topic, name, quantity, left, right, change)


def _side_by_side(left: Iterable[SideFigure], right: Iterable[SideFigure]) -> Facts:
    """Return the figures that at least one side has a value of, left and right.

    A figure with a `key` is left out if both sides have it, with equal keys. A figure without one
    is kept even if both values are equal.
    """
    sides = [{figure.name: figure for figure in side} for side in (left, right)]
    known = []
    for name, figure in (sides[0] | sides[1]).items():
        pair = [side.get(name) for side in sides]
        values = [each.value if each else None for each in pair]
        alike = figure.key is not None and all(each and each.key == figure.key for each in pair)
        if values != [None, None] and not alike:
            known.append(_difference(figure.topic, name, figure.quantity, *values))
    return tuple(known)


def _trace_figures(each: Analysis, other: Analysis) -> Iterator[SideFigure]:
    """Yield the figures of an analysis: traffic, hits, capacities and times of reuse.

    Capacities are in bytes if the `other` side has the same model; hits in the present memory are
    left out if a side states no memory.
    """
    facts, caching, block_size = each.characterization, each.caching, each.trace.block_size
    traffic = partial(SideFigure, "traffic")
    yield traffic("requests", "requests", float(each.trace.requests))
    yield traffic("span", "seconds", each.trace.span_s)
    yield traffic("requests/s", "per_second", facts.lengths.arrival_rate_per_s)
    yield traffic("mean input tokens", "tokens", facts.lengths.input_tokens.mean)
    yield traffic("mean output tokens", "tokens", facts.lengths.output_tokens.mean)
    turns = facts.contribution
    following = turns.multi_turn_request_share if facts.turns else None
    yield traffic("follow-up turns", "share", following)
    yield traffic("hits of follow-up turns", "share", turns.multi_turn_hit_share)
    yield SideFigure("ideal", "ideal hit rate", "share", caching.ideal if caching else None)
    if each.present_blocks and other.present_blocks:
        memory = "pool" if each.deployment else "HBM"
        yield SideFigure("hits", f"LRU's hit rate with the {memory}", "share", each.present_rate)
    needed, alive = None, facts.working_set
    if caching is not None and caching.ideal:
        nine = next(mark for mark in caching.landmarks if mark.share_of_ideal == 0.9)
        needed = float(nine.point.capacity_tokens)
    peak = None if alive is None else float(alive.peak_blocks * block_size)
    sized = each.model if each.model == other.model else None
    for name, tokens in (("LRU for 90% of ideal", needed), ("peak working set", peak)):
        if sized is None or tokens is None:
            yield SideFigure("capacity", name, "tokens", tokens)
        else:
            yield SideFigure("capacity", name, "bytes", tokens * sized.bytes_per_token)
    gaps, lives = facts.reuse_gaps, facts.lifetimes
    times = {
        "reuse gap": gaps.overall.gap_s if gaps and gaps.overall else None,
        "lifetime of a block": lives.overall.lifetime_s if lives and lives.overall else None,
    }
    for name, summary in times.items():
        for rank in ("p50", "p90"):
            yield traffic(f"{name} {rank}", "seconds", getattr(summary, rank, None))


def _run_figures(run: Run, trace: Trace | None) -> Iterator[SideFigure]:
    """Yield a run's policy and capacity, its settings, and its results."""
    outcome, setting = run.outcome, run.setting
    if trace is not None:
        yield SideFigure("traffic", "trace", "words", trace.name, key=trace)
    yield SideFigure("policy", "policy", "words", run.policy)
    yield SideFigure("capacity", "capacity (blocks)", "blocks", run.capacity_blocks)
    yield from _parameters(run.params)
    settings = partial(SideFigure, "setting")
    for name in ("latency", "capacity_model", "isolate", "tiers"):
        value = getattr(setting, name)
        yield settings(name.replace("_", " "), "words", value or None, key=(value,))
    yield settings("SLO", "seconds", setting.slo_s, key=(setting.slo_s,))
    yield settings("arrival rate", "words", f"× {setting.rate_scale:g}", key=setting.rate_scale)
    definition = setting.definition
    yield settings("hit definition", "words", definition.name or "own", key=definition)
    yield SideFigure("hits", "hit rate", "share", hit_rate(setting, outcome))
    yield settings("requests", "requests", float(outcome.requests))
    latency = partial(SideFigure, "latency")
    yield latency("uncached tokens p95", "tokens", outcome.uncached_tokens.p95)
    for rank in _PERCENTILES:
        yield latency(f"TTFT {rank}", "seconds", getattr(outcome.ttft_ms, rank) / 1e3)
    for rank in ("p50", "p95"):
        queued = getattr(outcome.queued_ttft_ms, rank, None)
        yield latency(f"queued TTFT {rank}", "seconds", _in_seconds(queued))
    over = outcome.violations
    yield latency("over SLO", "share", None if over is None else over / max(outcome.requests, 1))
    yield latency("TEL", "seconds", _in_seconds(outcome.tel_ms))
    yield SideFigure("capacity", "evictions (blocks)", "blocks", float(run.evictions))


def _in_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _parameters(params: Mapping[str, float]) -> Iterator[SideFigure]:
    """Yield the parameters of a policy, each shown only if the other side's value differs."""
    for name, value in params.items():
        yield SideFigure("policy", name, "words", format_value(name, value), key=(value,))


def _advice_figures(
    advice: RecommendationTable, other: RecommendationTable
) -> Iterator[SideFigure]:
    """Yield verdict, policy, capacity, flags and expected figures of a recommendation.

    The capacity in bytes is left out if the `other` recommendation does not state it.
    """
    yield SideFigure("verdict", "verdict", "words", advice.verdict)
    for side, name in (("recommended", ""), ("lru", " with LRU")):
        expected = advice.expected.get(side, {})
        yield SideFigure("hits", f"hit rate{name}", "share", expected.get("token_hit_rate"))
        for rank in _PERCENTILES:
            time_s = _in_seconds(expected.get(f"{rank}_ms"))
            yield SideFigure("latency", f"TTFT {rank}{name}", "seconds", time_s)
        yield SideFigure("latency", f"over SLO{name}", "share", expected.get("violation_share"))
    if advice.capacity.bytes and other.capacity.bytes:
        yield SideFigure("capacity", "capacity", "bytes", advice.capacity.bytes)
    yield SideFigure("capacity", "capacity (tokens)", "tokens", advice.capacity.tokens)
    yield SideFigure("capacity", "tier", "words", advice.tier.in_words if advice.tier else None)
    yield SideFigure("policy", "policy", "words", advice.policy.name)
    yield from _parameters(advice.policy.params)
    for engine, text in advice.flags.items():
        yield SideFigure("flags", f"{engine} flags", "words", text)
    settings = partial(SideFigure, "setting")
    yield settings("SLO", "seconds", float(advice.target.slo_s))
    yield settings("percentile", "words", f"p{100 * advice.target.percentile:g}")
    yield settings("latency", "words", advice.latency.name)
    summary = advice.deployment.summary if advice.deployment else None
    yield settings("deployment", "words", summary)
    yield SideFigure("traffic", "trace", "words", advice.trace or None)


USE_CASE: UseCase[DiffOptions, DiffRequest, Comparison] = UseCase(
    name="diff",
    title="kvscope diff",
    options=DiffOptions,
    check=diff_request,
    run=run,
    table="differences",
    reporting="comparison",
    sections=("differences", "facts", "categories", "capacity", "reuse-gaps", "over-time"),
    takes_trace=False,
)
