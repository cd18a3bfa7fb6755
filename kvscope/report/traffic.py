"""Requests and their sizes, arrivals over time, turns of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from kvscope.characterize.summary import Characterization
from kvscope.characterize.turns import ConversationTurns, NextTurns
from kvscope.core import units
from kvscope.core.runs import PartOutcome
from kvscope.report import style
from kvscope.report.section import Columns, Section, Table, sparkline, tabulate
from kvscope.report.words import (
    DEFAULT_HITS,
    FEWEST,
    count,
    counted,
    large,
    left_out,
    percentiles,
    share,
    significant,
)

TURNS = {"all": "all requests", "single": "turn 1", "multi": "follow-up turns"}
"""Names of the groups of requests that summaries tell apart by turn."""

_MOST_TICKS = 12  # of an axis, one at each whole number
_SUMMARY = "mean p50 p80 p90 p99 max"


def sections(facts: Characterization) -> list[Section]:
    """Return the sections on requests and conversations."""
    requests = [_requests(facts), over_time(facts)]
    if facts.turns is None:
        return requests
    return [*requests, _conversations(facts.turns, facts.next_turns)]


def _requests(facts: Characterization) -> Section:
    lengths = facts.lengths
    rows = [
        ("input tokens", lengths.input_tokens),
        ("output tokens", lengths.output_tokens),
        *((f"size, {TURNS[size.turns]}", size.tokens) for size in facts.request_sizes),
    ]
    sentences = []
    rate, burst = lengths.arrival_rate_per_s, lengths.inter_arrival_cv
    if rate is not None:
        arrive = counted(lengths.requests, "request arrives", "requests arrive")
        sentences.append(f"{arrive} at {units.format_rate(rate)}.")
    if burst is not None:
        kind = "burstier than" if burst > 1.1 else "steadier than" if burst < 0.9 else "close to"
        sentences.append(
            f"Arrivals are {kind} a Poisson process: coefficient of variation of the time between"
            f" them {significant(burst)} (Poisson: 1)."
        )
    table = tabulate(
        "Tokens per request",
        rows,
        {"tokens": lambda row: row[0], **percentiles(_SUMMARY, lambda row: row[1], count)},
        note="size: input and output together",
    )
    return Section.of("Requests", *sentences, table)


def over_time(facts: Characterization, served: Sequence[PartOutcome] = ()) -> Section:
    """Return requests and ideal hits by window; with `served` (LRU's, by window), TTFT too."""
    windows = facts.over_time.windows
    requests = [window.requests for window in windows]
    rates = [window.token_hit_rate for window in windows]
    known = [rate for rate in rates if rate is not None]
    plot = [f"{'requests':<16} {sparkline(requests)}  up to {count(max(requests))} a window"]
    words = [f"Windows of {units.duration_in_words(facts.over_time.window_s)}."]
    if facts.trace.has_hashes:
        words.append(DEFAULT_HITS)
        if known:
            ends = f"{share(min(known))} to {share(max(known))}"
            plot.append(f"{'ideal hit rate':<16} {sparkline(rates, 1.0)}  {ends}")
    charts = [partial(over_time_chart, facts, served)]
    if served:
        charts.append(partial(ttft_over_time_chart, served))
    return Section.of("Over time", *words, *charts, plot=plot)


def _conversations(turns: ConversationTurns, following: NextTurns | None) -> Section:
    sentences = [f"{share(turns.single_turn_share)} of conversations have a single turn."]
    if turns.users is not None:
        sentences.append(
            f"Mean turns per conversation, by user: p50 {turns.users.mean.p50:.1f}, p90"
            f" {turns.users.mean.p90:.1f} ({counted(turns.users.users, 'user')})."
        )
        if turns.users.deviation is not None and turns.users.users >= FEWEST:
            sentences.append(
                "Standard deviation of one user's turns per conversation: p50"
                f" {turns.users.deviation.p50:.1f}, p90 {turns.users.deviation.p90:.1f}."
            )
    columns: Columns = {
        "turns of": lambda turns: counted(turns.conversations, "conversation"),
        "mean": lambda turns: significant(turns.turns.mean),
        **percentiles("p50 p80 p90 p99 max", lambda turns: turns.turns, count),
    }
    table, chart = tabulate("Turns per conversation", [turns], columns), partial(turns_chart, turns)
    if following is None:
        return Section.of("Conversations", *sentences, table, chart)
    after, over_time = _next_turns(following), partial(next_turns_chart, following)
    return Section.of("Conversations", *sentences, table, after, chart, over_time)


def _next_turns(following: NextTurns) -> Table:
    shown = large(following.by_category, lambda row: row.next_turn.requests)
    few = left_out(following.by_category, shown)
    return tabulate(
        "Probability of a next turn",
        [
            ("all", following.overall),
            ("turn 1", following.after_first_turn),
            ("follow-up turns", following.after_later_turns),
            *((row.category, row.next_turn) for row in shown),
        ],
        {
            "after": lambda row: row[0],
            "requests": lambda row: count(row[1].requests),
            "probability": lambda row: share(row[1].probability),
            "settled requests": lambda row: count(row[1].settled_requests),
            "probability, settled": lambda row: share(row[1].settled_probability),
        },
        note=f"settled: arrived {units.duration_in_words(following.settle_s)} or more before the"
        f" trace's end, so a next turn would be seen{'; ' if few else ''}{few}",
    )


def over_time_chart(facts: Characterization, served: Sequence[PartOutcome] = ()) -> style.Figure:
    """Draw the arrival rate by window and, above it, ideal and LRU's (`served`) hit rates."""
    windows, title = facts.over_time.windows, "Traffic and hit rate over time"
    hours = [window.start_s / 3600 for window in windows]
    rows = 2 if facts.trace.has_hashes else 1
    heights = [0.7, 0.3][-rows:]
    chart = style.subplots(title, rows=rows, shared_xaxes=True, row_heights=heights, height=440)
    arrivals = [window.arrival_rate_per_s for window in windows]
    chart.add_bar(x=hours, y=arrivals, name="requests/s", marker_color=style.GREY, row=rows, col=1)
    chart.update_xaxes(title_text=style.HOURS, row=rows, col=1)
    chart.update_yaxes(title_text="requests/s", row=rows, col=1)
    if rows == 1:
        return chart
    series = [style.Series("infinite cache", hours, [window.token_hit_rate for window in windows])]
    if served:
        series.append(style.Series("LRU now", *_by_window(served, "token_hit_rate")))
    for curve, colour in zip(series, (style.BLUE, style.VERMILION), strict=False):
        look = {"color": colour, "width": 2}
        chart.add_scatter(x=curve.x, y=curve.y, name=curve.name, line=look, row=1, col=1)
    shares = {"tickformat": ".0%", "range": [0, 1], "dtick": 0.2}
    return chart.update_yaxes(title_text="hit rate by token", **shares, row=1, col=1)


def ttft_over_time_chart(served: Sequence[PartOutcome]) -> style.Figure:
    """Draw percentiles of LRU's TTFT on an idle engine by window."""
    series = [
        style.Series(rank, *_by_window(served, f"ttft_ms.{rank}")) for rank in ("p50", "p95", "p99")
    ]
    title = "LRU's TTFT over time, on an idle engine"
    return style.lines(title, style.HOURS, "TTFT (ms)", series, log="y", shares="")


def _by_window(served: Sequence[PartOutcome], figure: str) -> tuple[list[float], list[float]]:
    """Return each window's start (h), and the value of `figure`, such as `ttft_ms.p95`."""
    hours = [(part.start_s or 0.0) / 3600 for part in served]
    return hours, [attrgetter(figure)(part.outcome) for part in served]


def turns_chart(turns: ConversationTurns) -> style.Figure:
    """Draw a histogram of conversations by number of turns."""
    chart = style.figure("Turns per conversation", "turns", "conversations", height=320)
    lengths = [row.turns for row in turns.histogram]
    numbers = [row.conversations for row in turns.histogram]
    chart.add_bar(x=lengths, y=numbers, width=0.8, marker_color=style.BLUE)
    if max(lengths) <= _MOST_TICKS:
        chart.update_xaxes(dtick=1)  # there are no half turns
    style.logarithmic(chart, "y")
    return chart


def next_turns_chart(following: NextTurns) -> style.Figure:
    """Draw the probability of a next turn by category and time; gaps have no requests.

    Small categories are left out; windows whose next turns may lie after the trace's end are grey.
    """
    shown = large(following.by_category, lambda row: row.next_turn.requests)
    categories = [row.category for row in shown]
    starts = sorted({row.start_s for row in following.over_time})
    known = {(row.category, row.start_s): row for row in following.over_time}
    cells = [[known.get((category, start)) for start in starts] for category in categories]
    chart = style.heat_map(
        "Probability of a next turn over time",
        (style.HOURS, [start / 3600 for start in starts]),
        ("category", categories),
        [[cell.probability if cell else None for cell in row] for row in cells],
        "%{y}, %{x:.2f} h: %{z:.0%} of %{customdata} requests",
        customdata=[[cell.requests if cell else 0 for cell in row] for row in cells],
        zmin=0,
        zmax=1,
        colorbar={"tickformat": ".0%"},
    )
    unsettled = [row.start_s for row in following.over_time if not row.settled]
    if unsettled:
        chart.add_vrect(
            x0=(min(unsettled) - following.window_s / 2) / 3600,  # cells stand around their start
            x1=(max(starts) + following.window_s / 2) / 3600,
            fillcolor=style.GREY,
            opacity=0.35,
            line_width=0,
            annotation_text="not settled",
            annotation_position="top right",
        )
    return chart
