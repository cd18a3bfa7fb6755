"""Fitted reuse models: which to use, how far to trust them, how long they stay valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table, curve_plot, tabulate
from kvscope.report.words import (
    NONE,
    count,
    counted,
    difference,
    interval_in_words,
    large,
    left_out,
    listed,
    percentiles,
    rate_unit,
    share,
    time_unit,
)
from kvscope.reuse_models.results import (
    CategoryFit,
    Conversation,
    Fit,
    ModelFit,
    NextPromptFit,
    NextTurnFit,
    StabilityFit,
    WindowFit,
    WindowFits,
)

SHOWN_WINDOWS = 12  # more lines cannot be told apart

_FITS = "exponential fits"
_SEVERAL = 8  # names in a sentence
_EACH_TURN = 20
_CHARTS = 6  # categories with curves of their own in the report
_P = "reuse_probability"
_AXES = "time since the touch (s)", "share of the touched blocks"
_OVER_TIME: Mapping[str, tuple[str, str, Callable[[WindowFit], float]]] = {
    "Reuse probability over time": ("probability", "y", lambda row: row.reuse_probability),
    "Mean reuse gap over time": ("mean reuse gap (s)", "", lambda row: 1 / row.rate_per_s),
}
"""Figures of windows by the title of their chart.

Each is the title of the y axis, "y" if it shows shares (else ""), and a function of the fit.
"""
_UNSEEN = (
    "The probability of another turn includes turns after the trace's end: maximum likelihood, with"
    " the ends of conversations unobserved."
)
_MEANING = (
    "A touched block is reused with probability p, after a wait with distribution F: the share"
    " not yet reused after t is S(t) = 1 - p F(t)."
)


def screen(fit: Fit) -> list[Section]:
    """Return the summary alone."""
    return [headline(fit)]


def sections(fit: Fit) -> list[Section]:
    """Return the summary, then every model and its data."""
    known = [
        headline(fit),
        _models(fit) if fit.models else None,
        _stability(fit, fit.windows) if fit.windows is not None else None,
        _conversations(fit) if fit.next_turns else None,
        _next_prompts(fit.next_prompt_tokens) if fit.next_prompt_tokens else None,
    ]
    return [section for section in known if section is not None]


def headline(fit: Fit) -> Section:
    """Return the summary: each category's model of waits for reuse, and whether it is stable."""
    sentences = [f"Note: {note}." for note in fit.trace.notes]
    fitted = [row for row in fit.categories if row.model is not None]
    if not fit.trace.has_hashes:
        sentences.append(
            "The trace has lengths but no block hashes: there is no reuse to fit. Use a trace with"
            " hashes."
        )
    elif not fitted:
        sentences.append("Too little is reused to fit a model to any category. Use a longer trace.")
    else:
        few = [row for row in fit.categories if row.model is None]
        sentences += _verdicts(fitted)
        sentences += [f"Too few gaps to fit: {_names(few)}."] if few else []
        sentences += _stable(fit)
    table = _models_to_use(fit, fitted) if fitted else None
    return Section.of("Summary", *sentences, _births(fit), table, plot=_plot(fitted))


def _verdicts(fitted: list[CategoryFit]) -> list[str]:
    where = _names([row for row in fitted if row.verdict == _FITS]) or "no category"
    sentences = [f"Reuse clearly follows an exponential after {where}."]
    others: dict[str, list[CategoryFit]] = {}
    for row in fitted:
        if row.verdict != _FITS:  # how far it misses differs from category to category
            misfit = "" if row.fits else ", which does not fit either"
            others.setdefault(row.verdict.split(", but misses")[0] + misfit, []).append(row)
    return sentences + [f"After {_names(alike)}: {verdict}." for verdict, alike in others.items()]


def _names(rows: Sequence[CategoryFit]) -> str:
    return listed([row.category for row in sorted(rows, key=lambda row: -row.n)], _SEVERAL)


def _stable(fit: Fit) -> list[str]:
    if fit.windows is None or not fit.stability:
        return ["The trace is too short to tell how stable that is."]
    length = units.duration_in_words(fit.windows.length_s)
    return [
        f"Between {name}, {counted(len(rows), 'category', 'categories')}: {_verdict_counts(rows)}."
        for unit, name in {"window": f"windows of {length}", "day": "days"}.items()
        if (rows := [row for row in fit.stability if row.between == unit])
    ]


def _verdict_counts(rows: Sequence[StabilityFit]) -> str:
    changing = [row.category for row in rows if row.stable is False]
    numbers = {
        "stable": sum(row.stable is True for row in rows),
        "changing": len(changing),
        "too rare to tell": sum(row.stable is None for row in rows),
    }
    parts = ", ".join(f"{number} {words}" for words, number in numbers.items() if number)
    return f"{parts} ({listed(changing, _SEVERAL)})" if changing else parts


def _births(fit: Fit) -> str:
    model = fit.conversation
    if fit.trace.lineage == "none":
        return "The trace does not say which requests belong to one conversation."
    if model is None:
        return "Too few follow-up turns to fit a model of conversations."
    misfit = "" if model.fits else f" The waits fit only to {model.ks:.0%}."
    end = "have no observed end"
    if model.death_rate_per_s:
        end = f"end after a mean of {units.duration_in_words(1 / model.death_rate_per_s)}"
    return (
        f"Conversations begin at {units.format_rate(model.birth_rate_per_s)}, take a turn every"
        f" {units.duration_in_words(1 / model.turn_rate_per_s)} while alive, and {end}:"
        f" {model.turns:.1f} turns on average; another turn follows with probability"
        f" {share(model.next_turn_probability)}.{misfit}"
    )


def _models_to_use(fit: Fit, fitted: list[CategoryFit]) -> Table:
    exponentials = {model.category: model for model in fit.models if model.model == "exponential"}
    waits = {row.category: 1 / exponentials[row.category].params["rate_per_s"] for row in fitted}
    unit = time_unit(waits.values())

    def reused(row: CategoryFit) -> str:
        model = fit.model_of(row.category)
        return share(model.reuse_probability if model else None)

    return tabulate(
        "After a touch",
        sorted(fitted, key=lambda row: -row.n),
        {
            "type, turn": lambda row: row.category,
            "touches": lambda row: count(row.n),
            "ever reused": reused,
            f"wait ({unit.name})": lambda row: unit.cell(waits[row.category]),
            "exp. misses": lambda row: f"{exponentials[row.category].ks:.1%}",
            "verdict": lambda row: row.verdict,
        },
        note="touches: of blocks; ever reused: including reuse after the trace's end; wait: mean of"
        " reused blocks, by the exponential; exp. misses: share of the reuse that it places too"
        " early or too late",
        words=("verdict",),
    )


def _plot(fitted: list[CategoryFit]) -> tuple[str, ...]:
    """Return the largest category's reuse curve, observed and by its chosen model, as text."""
    row = max(fitted, key=lambda row: row.n, default=None)
    if row is None or row.curve is None or row.model is None:
        return ()
    curves = {"observed": row.curve.observed, row.model: row.curve.by_model[row.model]}
    plot = curve_plot(row.curve.at_s, curves, units.duration_in_words)
    return (f"{row.category}: reused within", *plot)


def _models(fit: Fit) -> Section:
    least = {
        row.category: min(m.aic for m in fit.models if m.category == row.category)
        for row in fit.categories
        if row.model is not None
    }
    table = tabulate(
        "",
        fit.models,
        {
            "type, turn": lambda model: model.category,
            "model": lambda model: f"{model.model} ←" if model.chosen else model.model,
            "p": lambda model: share(model.reuse_probability),
            "95% CI": lambda model: interval_in_words(model.interval[_P], share),
            "F": _distribution,
            "misses": lambda model: f"{model.ks:.1%}",
            "AIC": lambda model: difference(model.aic - least[model.category]),
        },
        note="← the model to use; misses: largest distance from the Kaplan-Meier curve, as a share"
        " of the reuse; AIC: above the lowest, blocks taken as independent",
        words=("model", "F"),
    )
    largest = sorted((row for row in fit.categories if row.curve), key=lambda row: -row.n)
    charts = (partial(reuse_chart, row) for row in largest[:_CHARTS])
    return Section.of("Models", _MEANING, table, *charts)


def _distribution(model: ModelFit) -> str:
    """Return the parameters of a wait distribution; a rate is written as its mean time."""
    params = dict(model.params)
    if "fast_share" in params:
        fast = params["fast_share"]
        waits = (1 / params[f"{part}_rate_per_s"] for part in ("fast", "slow"))
        short, long = map(units.duration_in_words, waits)
        return f"{fast:.0%} mean {short}, {1 - fast:.0%} {long}"
    parts = []
    for name, value in params.items():
        if name.endswith("rate_per_s"):
            parts.append(f"mean {units.duration_in_words(1 / value)}")
        elif name.endswith("_s"):
            parts.append(f"{name.removesuffix('_s')} {units.duration_in_words(value)}")
        else:
            parts.append(f"{name} {value:.2f}")
    return ", ".join(parts)


def _stability(fit: Fit, windows: WindowFits) -> Section:
    """Return how much fits of windows differ, and by how much they would differ by chance."""
    words = (
        f"Windows of {units.duration_in_words(windows.length_s)}, one every"
        f" {units.duration_in_words(windows.step_s)}, each fitted on its own. Compared: neighbours"
        " that do not overlap, and windows a day apart."
    )
    order = [row.category for row in sorted(fit.categories, key=lambda row: -row.n)]
    fitted = {row.category for row in windows.fits}
    largest = [name for name in order if name in fitted][:_CHARTS]
    tables = tuple(
        _differences(unit, rows)
        for unit in ("window", "day")
        if (rows := [row for row in fit.stability if row.between == unit])
    )
    charts = [
        *(partial(over_time_chart, windows, largest, title) for title in _OVER_TIME),
        *(partial(by_window_chart, windows, name) for name in largest[:2]),
    ]
    few = None if tables else "No category has enough gaps in two windows to compare."
    return Section.of("Stability", words, few, *tables, *(charts if largest else ()))


def _differences(unit: str, rows: Sequence[StabilityFit]) -> Table:
    verdicts = {True: "stable", False: "changes", None: "cannot tell"}
    return tabulate(
        f"From {unit} to {unit}",
        rows,
        {
            "type, turn": lambda row: row.category,
            "pairs": lambda row: count(row.pairs),
            "differ by": lambda row: f"{row.distance:.1%}",
            "by chance": lambda row: f"{row.by_chance:.1%}",
            "old fit misses": lambda row: f"{row.next_ks:.1%}",
            "p varies by": lambda row: f"{row.reuse_probability_variation:.0%}",
            "wait varies by": lambda row: f"{row.mean_gap_variation:.0%}",
            "verdict": lambda row: verdicts[row.stable],
        },
        note="differ by: largest distance of the two curves, as a share of the reuse, mean over the"
        " pairs; by chance: the same if nothing changed; old fit misses: the exponential of the"
        " window before; p, wait vary by: standard deviation relative to the mean",
        words=("verdict",),
    )


def _conversations(fit: Fit) -> Section:
    """Return the rates of the conversation model, and how likely another turn is."""
    by_turn = [row for row in fit.next_turns if row.turn is not None]
    by_category = [row for row in fit.next_turns if row.category is not None]
    return Section.of(
        "Conversations",
        _UNSEEN,
        None if fit.conversation is None else _rates(fit.conversation),
        _next_turns("After a turn", "turn", by_turn),
        _next_turns("After a category", "type, turn", by_category),
        partial(next_turns_chart, fit),
    )


def _rates(model: Conversation) -> Table:
    rates = {
        "births": "birth_rate_per_s",
        "turns while alive": "turn_rate_per_s",
        "deaths while alive": "death_rate_per_s",
    }
    unit = rate_unit(getattr(model, name) for name in rates.values())

    def per(row: tuple[str, str]) -> str:
        value = getattr(model, row[1])
        return units.duration_in_words(1 / value) if value else NONE

    return tabulate(
        "Rates",
        rates.items(),
        {
            "rate of": lambda row: row[0],
            f"rate (/{unit.name})": lambda row: unit.cell(getattr(model, row[1])),
            "95% CI": lambda row: interval_in_words(model.interval[row[1]], unit.cell),
            "one per": per,
        },
    )


def _next_turns(title: str, first: str, rows: Sequence[NextTurnFit]) -> Table:
    shown = large(rows, lambda row: row.requests)
    notes = [left_out(rows, shown)]
    if any(row.probability is None for row in shown):
        notes.append(f"{NONE} too few of them were followed to estimate it")
    return tabulate(
        title,
        sorted(shown, key=lambda row: row.turn or 0),
        {
            first: lambda row: row.category or str(row.turn),
            "requests": lambda row: count(row.requests),
            "followed in the trace": lambda row: share(row.continued / row.requests),
            "another turn": lambda row: share(row.probability),
            "95% CI": lambda row: (
                NONE if row.probability is None else interval_in_words(row.interval, share)
            ),
        },
        note="; ".join(filter(None, notes)),
    )


def _next_prompts(prompts: Sequence[NextPromptFit]) -> Section:
    shown = large(prompts, lambda row: row.n)
    table = tabulate(
        "Tokens that the next turn adds to the history",
        shown,
        {
            "type, turn": lambda row: row.category or "all",
            "prompts": lambda row: count(row.n),
            "mean": lambda row: count(row.mean),
            **percentiles("p50 p80 p90 p99", lambda row: row.tokens, count),
        },
        note=left_out(prompts, shown, "prompts"),
    )
    return Section.of("Next prompts", table)


def reuse_chart(row: CategoryFit) -> style.Figure:
    """Draw the share of a category's blocks reused within a time: observed, and by each model."""
    series = []
    if row.curve is not None:
        at_s, observed = row.curve.at_s, {"color": style.GREY, "width": 5, "shape": "hv"}
        series = [style.Series("observed (Kaplan-Meier)", at_s, row.curve.observed, observed)]
        for number, (name, values) in enumerate(row.curve.by_model.items()):
            chosen = name == row.model
            line = style.line(number) | {"width": 3 if chosen else 1.5}
            label = f"{name}: use this" if chosen else name
            series.append(style.Series(label, at_s, values, line))
    return style.lines(f"Reuse after {style.label(row.category)}", *_AXES, series)


def by_window_chart(windows: WindowFits, category: str) -> style.Figure:
    """Draw the observed share of a category's blocks reused within a time, for up to 12 windows."""
    rows = [row for row in windows.fits if row.category == category]
    shown = rows[:: max(-(-len(rows) // SHOWN_WINDOWS), 1)]
    observed = {f"{row.start_s / 3600:.1f} h": row.observed for row in shown}
    title = f"Reuse after {style.label(category)}, by window"
    return style.lines(title, *_AXES, style.curves(windows.at_s, observed))


def over_time_chart(windows: WindowFits, categories: Sequence[str], title: str) -> style.Figure:
    """Draw a figure of windows over time, a line for each of `categories`.

    `title` chooses it: "Reuse probability over time" or "Mean reuse gap over time".
    """
    y, shares, value = _OVER_TIME[title]
    series = []
    for name in categories:
        if rows := [row for row in windows.fits if row.category == name]:
            hours = [row.start_s / 3600 for row in rows]
            series.append(style.Series(name, hours, list(map(value, rows)), options=style.MARKED))
    return style.lines(title, "start of the window (h)", y, series, log="", shares=shares)


def next_turns_chart(fit: Fit) -> style.Figure:
    """Draw the probability of another turn after the first, second, ... turn, with 95 % CIs."""
    rows = [row for row in fit.next_turns if row.turn and row.probability is not None]
    turns, chances = [row.turn for row in rows], [row.probability or 0.0 for row in rows]
    ends = [row.interval or (chance, chance) for row, chance in zip(rows, chances, strict=True)]
    reach = {
        "type": "data",
        "symmetric": False,
        "array": [high - chance for (_, high), chance in zip(ends, chances, strict=True)],
        "arrayminus": [chance - low for (low, _), chance in zip(ends, chances, strict=True)],
    }
    chart = style.figure("Next turn", "after turn", "probability of another one")
    look = {"name": "with 95% CI", "mode": "markers", "marker": {"color": style.BLUE, "size": 9}}
    chart.add_scatter(x=turns, y=chances, error_y=reach, **look)
    chart.update_xaxes(tickformat="d", dtick=1 if len(turns) <= _EACH_TURN else None)
    return chart.update_yaxes(tickformat=".0%", range=[0, 1])
