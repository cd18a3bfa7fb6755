"""Compare two traces, two stored runs or two recommendations; the largest differences first.

Prints only what differs; --full has all figures. Differences between traces that chance explains
do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvscope.app import values
from kvscope.app.baseline import RUN, stored_run
from kvscope.app.options import Hbm, KvDtype, Model, Option
from kvscope.core.errors import UsageError
from kvscope.core.records import Beside
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
    from kvscope.core.runs import Outcome, Run
    from kvscope.core.trace import Trace
    from kvscope.store.file import Stores
    from kvscope.tuning.file import RecommendationTable

Kind = Literal["traces", "runs", "recommendations"]
Topic = Literal[
    "verdict", "hits", "ideal", "capacity", "policy", "flags", "latency", "setting", "traffic"
]
TOPICS: tuple[Topic, ...] = get_args(Topic)
"""What figures are about, what matters most first."""
Quantity = Literal[
    "words", "share", "seconds", "requests", "per_second", "tokens", "blocks", "bytes"
]
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


class DiffOptions(Struct, frozen=True, kw_only=True):
    """What `diff` takes: two things, and in what to size the capacities of traces."""

    left: Compared
    right: Compared
    model: Model = None
    kv_dtype: KvDtype = None
    hbm: Hbm = None


class DiffRequest(Struct, frozen=True):
    """Two things to compare; traces are analyzed as `analysis` says."""

    left: str
    right: str
    analysis: AnalyzeRequest


class Difference(Struct, frozen=True):
    """One figure of both sides, null where a side has none.

    `quantity` is its unit: a share, seconds, per_second, or a number of what it names; `words` for
    text. `change` is right - left for a share, right / left - 1 for another number, else null.
    `noise` is the change that two samples of one traffic have by chance, null where not known.
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
        """Whether both sides are the same, or as near as chance explains."""
        least = _SAME if self.noise is None else max(_SAME, self.noise)
        return self.left == self.right or (self.change is not None and abs(self.change) <= least)


Facts = tuple[Difference, ...]
_Groups = dict[str, list[float]]


class CategoryDifferences(Struct, frozen=True):
    """The figure `name` by category, of those that both sides have."""

    name: str
    categories: tuple[Difference, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """What `kvscope diff` finds: `differences`, what matters most first, and what is the `same`.

    Of traces, changes within their `noise` are the same. `traces` are those of traces and runs,
    empty for recommendations.
    """

    kind: Kind
    left: str
    right: str
    traces: tuple[Trace, ...] = ()
    differences: tuple[Difference, ...]
    same: tuple[Difference, ...]
    by_category: tuple[CategoryDifferences, ...]
    facts: Beside[tuple[Difference, ...]]  # all figures, in an order to be read
    analyses: Beside[tuple[Analysis, Analysis] | None] = None
    runs: Beside[tuple[Run, Run] | None] = None

    @property
    def heading(self) -> tuple[str, str]:
        """What is compared, and how many figures differ."""
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
    """Return what the options of `diff` ask for."""
    sizes = {name: value for name, value in asdict(options).items() if name not in _SIDES}
    return DiffRequest(options.left, options.right, analyze_request(AnalyzeOptions(**sizes)))


def run(opened: Opened, request: DiffRequest, monitor: Monitor) -> Comparison:
    """Compare what two names stand for.

    `run:N` is a stored run, a path that ends in .toml a recommendation, anything else a trace.
    Raises UsageError for two of different kinds, InputError for what is not there.
    """
    from kvscope.app.traces import check_source, load_trace, open_dataset
    from kvscope.store.folder import is_dataset

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

    for name in names:
        check_source(stores, name)

    def analyzed(name: str) -> Analysis:
        own = open_dataset(name).stores if is_dataset(name) else stores
        return analyze(own, load_trace(own, name, monitor), request.analysis)

    both = analyzed(left), analyzed(right)
    groups: Sequence[Sequence[_Groups]] = ()
    if both[0].trace != both[1].trace and not any(map(is_dataset, names)):
        groups = [
            [_in_groups(stores, each.trace, request, in_time=in_time) for each in both]
            for in_time in (False, True)
        ]
    return compare_traces((both[0].trace.name, both[1].trace.name), both, groups)


def _in_groups(stores: Stores, trace: Trace, request: DiffRequest, *, in_time: bool) -> _Groups:
    """Return the figures of groups of a trace's conversations, by name."""
    from kvscope.app.random_groups import random_groups

    values: _Groups = {}
    for store, part in random_groups(stores, trace, in_time=in_time):
        analysis = analyze(store, part, request.analysis)
        for fact in _facts(_trace_facts((analysis, analysis))):
            if isinstance(fact.left, int | float):
                values.setdefault(fact.name, []).append(float(fact.left))
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
    """Compare two analyses, their capacities in bytes where both have the same model.

    Pairs of `groups` have the figures of parts of both traces, which show what chance explains.
    """
    left, right = (
        {row.category: row.share for row in each.characterization.categories} for each in both
    )
    shares = (
        _known("traffic", name, "share", (left.get(name, 0.0), right.get(name, 0.0)))
        for name in {**left, **right}
    )
    facts = tuple(replace(fact, noise=_noise(fact, groups)) for fact in _facts(_trace_facts(both)))
    return _comparison(
        "traces",
        names,
        facts,
        {"Share of requests": _facts(shares)},
        traces=(both[0].trace, both[1].trace),
        analyses=both,
    )


def _noise(fact: Difference, groups: Sequence[Sequence[_Groups]]) -> float | None:
    """Return the change of a figure by chance: the larger one of the pairs of groups."""
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
    """Compare two runs, with their parts."""
    from kvscope.core.runs import hit_rate

    categories = [
        {part.category: part.outcome for part in run.parts if part.category is not None}
        for run in both
    ]
    shared = {
        name: (outcome, categories[1][name])
        for name, outcome in categories[0].items()
        if name in categories[1]
    }
    settings = [run.setting for run in both]
    rates = (
        _known("hits", name, "share", list(map(hit_rate, settings, pair)))
        for name, pair in shared.items()
    )
    times = (
        _known("latency", name, "seconds", [each.ttft_ms.p95 / 1e3 for each in pair])
        for name, pair in shared.items()
    )
    return _comparison(
        "runs",
        names,
        _facts(_run_facts(both, traces)),
        {"Hit rate": _facts(rates), "p95 TTFT": _facts(times)} if shared else {},
        traces=traces or (),
        runs=both,
    )


def compare_recommendations(
    names: tuple[str, str], both: tuple[RecommendationTable, RecommendationTable]
) -> Comparison:
    """Compare what two files of `kvscope tune` recommend, and expect on held-out requests."""
    return _comparison("recommendations", names, _facts(_advice_facts(both)), {})


def _comparison(
    kind: Kind,
    names: tuple[str, str],
    facts: Facts,
    by_category: Mapping[str, Facts],
    *,
    traces: tuple[Trace, ...] = (),
    analyses: tuple[Analysis, Analysis] | None = None,
    runs: tuple[Run, Run] | None = None,
) -> Comparison:
    """Return a comparison: what differs by topic, what matters most first, and by its size."""

    def rank(fact: Difference) -> tuple[int, float]:
        left, right, size = fact.left, fact.right, 0.0
        if isinstance(left, int | float) and isinstance(right, int | float):
            size = abs(right - left) / max(abs(left), abs(right))
        return TOPICS.index(fact.topic), -size

    return Comparison(
        kind=kind,
        left=names[0],
        right=names[1],
        traces=traces,
        differences=tuple(sorted((fact for fact in facts if not fact.is_none), key=rank)),
        same=tuple(fact for fact in facts if fact.is_none),
        by_category=tuple(starmap(CategoryDifferences, by_category.items())),
        facts=facts,
        analyses=analyses,
        runs=runs,
    )


def _facts(facts: Iterable[Difference | None]) -> Facts:
    return tuple(fact for fact in facts if fact is not None)


def _known(
    topic: Topic, name: str, quantity: Quantity, values: Sequence[float | str | None]
) -> Difference | None:
    """Return a figure of both sides, None where neither has it."""
    left, right = values
    if left is None and right is None:
        return None
    change = None
    if isinstance(left, int | float) and isinstance(right, int | float):
        if quantity == "share":
            change = right - left
        elif left:
            change = right / left - 1
    return Difference(topic, name, quantity, left, right, change)


def _trace_facts(both: tuple[Analysis, Analysis]) -> Iterator[Difference | None]:
    """Yield what the Overview of each begins with, and how its blocks are reused."""

    def of(read: Callable[[Analysis], float | None]) -> list[float | None]:
        return [read(each) for each in both]

    facts = [each.characterization for each in both]
    traffic = partial(_known, "traffic")
    yield traffic("requests", "requests", [float(each.trace.requests) for each in both])
    yield traffic("span", "seconds", [each.trace.span_s for each in both])
    yield traffic("requests/s", "per_second", [each.lengths.arrival_rate_per_s for each in facts])
    yield traffic("mean input tokens", "tokens", [each.lengths.input_tokens.mean for each in facts])
    yield traffic(
        "mean output tokens", "tokens", [each.lengths.output_tokens.mean for each in facts]
    )
    yield traffic(
        "follow-up turns",
        "share",
        [each.contribution.multi_turn_request_share if each.turns else None for each in facts],
    )
    yield traffic(
        "hits of follow-up turns",
        "share",
        [each.contribution.multi_turn_hit_share for each in facts],
    )
    ideal = of(lambda each: each.caching.ideal if each.caching else None)
    yield _known("ideal", "ideal hit rate", "share", ideal)
    if all(each.present_blocks for each in both):
        memory = "pool" if both[0].deployment else "HBM"
        yield _known(
            "hits", f"LRU's hit rate with the {memory}", "share", of(lambda each: each.present_rate)
        )
    sized = both[0].model if both[0].model == both[1].model else None
    for name, read in (("LRU for 90% of ideal", _needed), ("peak working set", _peak)):
        tokens = of(read)
        if sized is None:
            yield _known("capacity", name, "tokens", tokens)
        else:
            sizes = [each if each is None else each * sized.bytes_per_token for each in tokens]
            yield _known("capacity", name, "bytes", sizes)
    for rank in ("p50", "p90"):
        yield traffic(f"reuse gap {rank}", "seconds", of(partial(_gap, rank)))
    for rank in ("p50", "p90"):
        yield traffic(f"lifetime of a block {rank}", "seconds", of(partial(_lifetime, rank)))


def _needed(analysis: Analysis) -> float | None:
    """Return the tokens with which LRU has 90 % of the ideal hits."""
    if analysis.caching is None or not analysis.caching.ideal:
        return None
    nine = next(mark for mark in analysis.caching.landmarks if mark.share_of_ideal == 0.9)
    return float(nine.point.capacity_tokens)


def _peak(analysis: Analysis) -> float | None:
    alive = analysis.characterization.working_set
    return None if alive is None else float(alive.peak_blocks * analysis.trace.block_size)


def _gap(rank: str, analysis: Analysis) -> float | None:
    gaps = analysis.characterization.reuse_gaps
    return getattr(gaps.overall.gap_s, rank) if gaps and gaps.overall else None


def _lifetime(rank: str, analysis: Analysis) -> float | None:
    lives = analysis.characterization.lifetimes
    return getattr(lives.overall.lifetime_s, rank) if lives and lives.overall else None


def _run_facts(
    both: tuple[Run, Run], traces: tuple[Trace, Trace] | None
) -> Iterator[Difference | None]:
    """Yield policy and capacity, the settings in which runs differ, and what they gave."""
    from kvscope.core.runs import hit_rate

    if traces is not None and traces[0] != traces[1]:
        yield _known("traffic", "trace", "words", [trace.name for trace in traces])
    yield _known("policy", "policy", "words", [run.policy for run in both])
    yield _known("capacity", "capacity (blocks)", "blocks", [run.capacity_blocks for run in both])
    yield from starmap(_parameter, _side_by_side(*(dict(run.params) for run in both)))
    yield from _settings(both)
    outcomes, settings = [run.outcome for run in both], [run.setting for run in both]
    yield _known("hits", "hit rate", "share", list(map(hit_rate, settings, outcomes)))
    yield _known("setting", "requests", "requests", [float(each.requests) for each in outcomes])
    uncached = [each.uncached_tokens.p95 for each in outcomes]
    yield _known("latency", "uncached tokens p95", "tokens", uncached)
    for rank in _PERCENTILES:
        times = [getattr(each.ttft_ms, rank) / 1e3 for each in outcomes]
        yield _known("latency", f"TTFT {rank}", "seconds", times)
    for rank in ("p50", "p95"):
        queued = [getattr(each.queued_ttft_ms, rank, None) for each in outcomes]
        times = [ms if ms is None else ms / 1e3 for ms in queued]
        yield _known("latency", f"queued TTFT {rank}", "seconds", times)
    yield _known("latency", "over SLO", "share", list(map(_over, outcomes)))
    tel_s = [each.tel_ms if each.tel_ms is None else each.tel_ms / 1e3 for each in outcomes]
    yield _known("latency", "TEL", "seconds", tel_s)
    yield _known("capacity", "evictions (blocks)", "blocks", [float(run.evictions) for run in both])


def _side_by_side(
    left: Mapping[str, float], right: Mapping[str, float]
) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield the names with another value on the other side, and both values."""
    for name in {**left, **right}:
        if left.get(name) != right.get(name):
            yield name, left.get(name), right.get(name)


def _parameter(name: str, *values: float | None) -> Difference | None:
    written = [value if value is None else format_value(name, value) for value in values]
    return _known("policy", name, "words", written)


def _settings(both: tuple[Run, Run]) -> Iterator[Difference | None]:
    """Yield the settings in which two runs differ."""
    left, right = (run.setting for run in both)
    for name in ("latency", "capacity_model", "isolate", "tiers"):
        if (values := [getattr(each, name) for each in (left, right)])[0] != values[1]:
            words = [value or None for value in values]
            yield _known("setting", name.replace("_", " "), "words", words)
    if left.slo_s != right.slo_s:
        yield _known("setting", "SLO", "seconds", [left.slo_s, right.slo_s])
    if left.rate_scale != right.rate_scale:
        scales = [f"× {each.rate_scale:g}" for each in (left, right)]
        yield _known("setting", "arrival rate", "words", scales)
    if left.definition != right.definition:
        definitions = [each.definition.name or "own" for each in (left, right)]
        yield _known("setting", "hit definition", "words", definitions)


def _over(outcome: Outcome) -> float | None:
    return None if outcome.violations is None else outcome.violations / max(outcome.requests, 1)


def _advice_facts(
    both: tuple[RecommendationTable, RecommendationTable],
) -> Iterator[Difference | None]:
    """Yield verdict, policy, capacity, flags and expected figures of two recommendations."""
    left, right = both
    yield _known("verdict", "verdict", "words", [each.verdict for each in both])
    for advice, name in (("recommended", ""), ("lru", " with LRU")):
        figures = [each.expected.get(advice, {}) for each in both]
        rates = [each.get("token_hit_rate") for each in figures]
        yield _known("hits", f"hit rate{name}", "share", rates)
        for rank in _PERCENTILES:
            ms = [each.get(f"{rank}_ms") for each in figures]
            times = [each if each is None else each / 1e3 for each in ms]
            yield _known("latency", f"TTFT {rank}{name}", "seconds", times)
        over = [each.get("violation_share") for each in figures]
        yield _known("latency", f"over SLO{name}", "share", over)
    capacities = [each.capacity for each in both]
    if all(each.bytes for each in capacities):
        yield _known("capacity", "capacity", "bytes", [each.bytes for each in capacities])
    yield _known("capacity", "capacity (tokens)", "tokens", [each.tokens for each in capacities])
    tiers = [each.tier.in_words if each.tier else None for each in both]
    yield _known("capacity", "tier", "words", tiers)
    yield _known("policy", "policy", "words", [each.policy.name for each in both])
    yield from starmap(_parameter, _side_by_side(left.policy.params, right.policy.params))
    for engine in {**left.flags, **right.flags}:
        flags = [each.flags.get(engine) for each in both]
        yield _known("flags", f"{engine} flags", "words", flags)
    yield _known("setting", "SLO", "seconds", [float(each.target.slo_s) for each in both])
    targets = [f"p{100 * each.target.percentile:g}" for each in both]
    yield _known("setting", "percentile", "words", targets)
    yield _known("setting", "latency", "words", [each.latency.name for each in both])
    deployments = [each.deployment.summary if each.deployment else None for each in both]
    yield _known("setting", "deployment", "words", deployments)
    yield _known("traffic", "trace", "words", [each.trace or None for each in both])


USE_CASE: UseCase[DiffOptions, DiffRequest, Comparison] = UseCase(
    name="diff",
    title="kvscope diff",
    help=__doc__,
    options=DiffOptions,
    check=diff_request,
    run=run,
    table="differences",
    reporting="comparison",
    takes_trace=False,
)
