"""How many requests, how long, how spread over time, how many turns."""

from __future__ import annotations

from functools import partial

from kvscope.characterize.distributions import Summary
from kvscope.characterize.summary import Characterization
from kvscope.characterize.turns import ConversationTurns, NextTurns
from kvscope.core import units
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import sparkline, thinned
from kvscope.report.words import DEFAULT_HITS, counted

PLOT_WIDTH = 60


def sections(found: Characterization) -> list[Section]:
    """The sections on requests and conversations."""
    made = [_requests(found), _over_time(found)]
    if found.turns is not None:
        made.append(_conversations(found.turns, found.next_turns))
    return made


def _requests(found: Characterization) -> Section:
    rows = [
        ("input tokens", *_summary(found.lengths.input_tokens)),
        ("output tokens", *_summary(found.lengths.output_tokens)),
        *((f"size, {_turns(size.turns)}", *_summary(size.tokens)) for size in found.request_sizes),
    ]
    sentences = []
    rate, burst = found.lengths.arrival_rate_per_s, found.lengths.inter_arrival_cv
    if rate is not None:
        arrive = f"request{' arrives' if found.lengths.requests == 1 else 's arrive'}"
        count = units.format_count(found.lengths.requests)
        sentences.append(f"{count} {arrive} at {units.format_rate(rate)}.")
    if burst is not None:
        kind = "burstier than" if burst > 1.1 else "steadier than" if burst < 0.9 else "much like"
        sentences.append(
            f"Arrivals are {kind} a Poisson process (the time between them has a coefficient of"
            f" variation of {burst:.2f}; Poisson: 1)."
        )
    return Section(
        title="Requests",
        sentences=tuple(sentences),
        tables=(
            Table(
                "Tokens per request",
                ("", "mean", "p50", "p80", "p90", "p99", "max"),
                tuple(rows),
                note="size: input and output together",
            ),
        ),
    )


def _turns(turns: str) -> str:
    return {"all": "all requests", "single": "turn 1", "multi": "later turns"}[turns]


def _summary(summary: Summary) -> tuple[str, ...]:
    values = (summary.mean, summary.p50, summary.p80, summary.p90, summary.p99, summary.max)
    return tuple(units.format_count(value) for value in values)


def _over_time(found: Characterization) -> Section:
    from kvscope.report.charts import traffic as charts

    windows = found.over_time.windows
    plot = [
        (
            f"{'requests':<16} {_spark([window.requests for window in windows])}"
            f"  up to {units.format_count(max(window.requests for window in windows))} a window"
        )
    ]
    rates = [window.token_hit_rate for window in windows]
    known = [rate for rate in rates if rate is not None]
    if found.trace.has_hashes and known:
        plot.append(
            f"{'ideal hit rate':<16} {_spark(rates, 1.0)}"
            f"  {units.format_share(min(known))} to {units.format_share(max(known))}"
        )
    words = [f"Windows of {units.format_duration(found.over_time.window_s)}."]
    if found.trace.has_hashes:
        words.append(DEFAULT_HITS)
    return Section(
        title="Over time",
        sentences=tuple(words),
        plot=tuple(plot),
        figures=(partial(charts.over_time, found),),
    )


def _spark(values: list[int] | list[float | None], top: float | None = None) -> str:
    return sparkline(thinned(values, PLOT_WIDTH), top)


def _conversations(turns: ConversationTurns, following: NextTurns | None) -> Section:
    from kvscope.report.charts import traffic as charts

    per = turns.turns
    tables = [
        Table(
            "Turns per conversation",
            ("", "mean", "p50", "p80", "p90", "p99", "max"),
            (
                (
                    counted(turns.conversations, "conversation"),
                    f"{per.mean:.2f}",
                    *(f"{value:.0f}" for value in (per.p50, per.p80, per.p90, per.p99, per.max)),
                ),
            ),
        )
    ]
    figures = [partial(charts.turns, turns)]
    sentences = [f"{units.format_share(turns.single_turn_share)} of conversations have one turn."]
    if turns.users is not None:
        sentences.append(
            f"The mean turns per conversation of a user: {turns.users.mean.p50:.1f} at p50,"
            f" {turns.users.mean.p90:.1f} at p90,"
            f" over {counted(turns.users.users, 'user')}."
        )
        if turns.users.deviation is not None:
            sentences.append(
                "The turns of one user's conversations deviate from their mean by"
                f" {turns.users.deviation.p50:.1f} at p50, {turns.users.deviation.p90:.1f} at p90."
            )
    if following is not None:
        tables.append(_next_turns(following))
        figures.append(partial(charts.next_turns, following))
    return Section("Conversations", tuple(sentences), tuple(tables), figures=tuple(figures))


def _next_turns(following: NextTurns) -> Table:
    rows = [
        ("all", following.overall),
        ("turn 1", following.after_first_turn),
        ("later turns", following.after_later_turns),
        *((row.category, row.next_turn) for row in following.by_category),
    ]
    return Table(
        "Probability of a next turn",
        ("after", "requests", "probability", "settled requests", "probability, settled"),
        tuple(
            (
                name,
                units.format_count(row.requests),
                share(row.probability),
                units.format_count(row.settled_requests),
                share(row.settled_probability),
            )
            for name, row in rows
        ),
        note="settled: asked at least"
        f" {units.format_duration(following.settle_s)} before the trace's end, so that a next turn"
        " would have been seen",
    )


def share(value: float | None) -> str:
    """A share as a percentage, a dash where there is none."""
    return "–" if value is None else units.format_share(value)
