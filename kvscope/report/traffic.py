"""Requests and their sizes, arrivals over time, turns of conversations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvscope.characterize.distributions import Summary
from kvscope.characterize.summary import Characterization
from kvscope.characterize.turns import ConversationTurns, NextTurns
from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import PLOT_WIDTH, sparkline, thinned
from kvscope.report.words import DEFAULT_HITS, FEWEST, counted, share

if TYPE_CHECKING:
    import plotly.graph_objects as go


def sections(found: Characterization) -> list[Section]:
    """Return the sections on requests and conversations."""
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
        kind = "burstier than" if burst > 1.1 else "steadier than" if burst < 0.9 else "close to"
        sentences.append(
            f"Arrivals are {kind} a Poisson process: coefficient of variation of the time between"
            f" them {burst:.2f} (Poisson: 1)."
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
    return {"all": "all requests", "single": "turn 1", "multi": "follow-up turns"}[turns]


def _summary(summary: Summary) -> tuple[str, ...]:
    values = (summary.mean, summary.p50, summary.p80, summary.p90, summary.p99, summary.max)
    return tuple(units.format_count(value) for value in values)


def _over_time(found: Characterization) -> Section:
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
    words = [f"Windows of {units.duration_in_words(found.over_time.window_s)}."]
    if found.trace.has_hashes:
        words.append(DEFAULT_HITS)
    return Section(
        title="Over time",
        sentences=tuple(words),
        plot=tuple(plot),
        figures=(partial(over_time_chart, found),),
    )


def _spark(values: list[int] | list[float | None], top: float | None = None) -> str:
    return sparkline(thinned(values, PLOT_WIDTH), top)


def _conversations(turns: ConversationTurns, following: NextTurns | None) -> Section:
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
    figures = [partial(turns_chart, turns)]
    sentences = [
        f"{units.format_share(turns.single_turn_share)} of conversations have a single turn."
    ]
    if turns.users is not None:
        sentences.append(
            f"Mean turns per conversation, by user: p50 {turns.users.mean.p50:.1f}, p90"
            f" {turns.users.mean.p90:.1f} ({counted(turns.users.users, 'user')})."
        )
        if turns.users.deviation is not None:
            sentences.append(
                "Standard deviation of one user's turns per conversation: p50"
                f" {turns.users.deviation.p50:.1f}, p90 {turns.users.deviation.p90:.1f}."
            )
    if following is not None:
        tables.append(_next_turns(following))
        figures.append(partial(next_turns_chart, following))
    return Section("Conversations", tuple(sentences), tuple(tables), figures=tuple(figures))


def _next_turns(following: NextTurns) -> Table:
    rows = [
        ("all", following.overall),
        ("turn 1", following.after_first_turn),
        ("follow-up turns", following.after_later_turns),
        *sorted(
            (
                (row.category, row.next_turn)
                for row in following.by_category
                if row.next_turn.requests >= FEWEST
            ),
            key=lambda row: -row[1].requests,
        ),
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
        note=f"settled: arrived {units.duration_in_words(following.settle_s)} or more before the"
        f" trace's end, so a next turn would be seen; categories below {FEWEST} requests left out",
    )


def over_time_chart(found: Characterization) -> go.Figure:
    """Build requests and ideal hit rate, window by window."""
    windows = found.over_time.windows
    hours = [window.start_s / 3600 for window in windows]
    chart = style.subplots("Traffic and ideal hit rate over time", specs=[[{"secondary_y": True}]])
    chart.add_bar(
        x=hours,
        y=[window.arrival_rate_per_s for window in windows],
        name="requests/s",
        marker_color=style.SKY,
    )
    if found.trace.has_hashes:
        for number, (name, field) in enumerate(
            (("hit rate by token", "token_hit_rate"), ("hit rate by block", "block_hit_rate"))
        ):
            rates = [getattr(window, field) for window in windows]
            line = style.line(number) | ({"dash": "dot"} if number else {})  # they often coincide
            chart.add_scatter(x=hours, y=rates, name=name, line=line, secondary_y=True)
    chart.update_layout(legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.2})
    chart.update_xaxes(title_text="time since the trace's start (h)")
    chart.update_yaxes(title_text="requests/s", secondary_y=False)
    chart.update_yaxes(
        title_text="ideal hit rate by default definition",
        tickformat=".0%",
        range=[0, 1],
        dtick=0.2,
        secondary_y=True,
    )
    return chart


def turns_chart(found: ConversationTurns) -> go.Figure:
    """Build how many conversations have how many turns."""
    chart = style.figure("Turns per conversation", "turns", "conversations", height=320)
    chart.add_bar(
        x=[row.turns for row in found.histogram],
        y=[row.conversations for row in found.histogram],
        marker_color=style.BLUE,
    )
    style.logarithmic(chart, "y", counts=True)
    return chart


def next_turns_chart(found: NextTurns) -> go.Figure:
    """Build the probability of a next turn by category and time; a gap where there are no requests.

    Windows whose next turns the trace's end may hide are greyed.
    """
    categories = [row.category for row in found.by_category]
    starts = sorted({row.start_s for row in found.over_time})
    known = {(row.category, row.start_s): row for row in found.over_time}
    cells = [[known.get((category, start)) for start in starts] for category in categories]
    chart = style.figure(
        "Probability of a next turn over time",
        "time since the trace's start (h)",
        "category",
        height=160 + 24 * len(categories),
    )
    chart.add_heatmap(
        x=[start / 3600 for start in starts],
        y=[style.label(category) for category in categories],
        z=[[cell.probability if cell else None for cell in row] for row in cells],
        customdata=[[cell.requests if cell else 0 for cell in row] for row in cells],
        hovertemplate="%{y}, %{x:.2f} h: %{z:.0%} of %{customdata} requests<extra></extra>",
        colorscale=style.SHADES,
        zmin=0,
        zmax=1,
        colorbar={"tickformat": ".0%"},
    )
    chart.update_yaxes(type="category", autorange="reversed")
    unsettled = [row.start_s for row in found.over_time if not row.settled]
    if unsettled:
        chart.add_vrect(
            x0=(min(unsettled) - found.window_s / 2) / 3600,  # cells stand around their start
            x1=(max(starts) + found.window_s / 2) / 3600,
            fillcolor=style.GREY,
            opacity=0.35,
            line_width=0,
            annotation_text="not settled: the trace may end before the next turn",
            annotation_position="top right",
        )
    return chart
