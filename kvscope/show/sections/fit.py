"""What models say of a trace: which to use, how far to trust them, how long they stay true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kvscope import units
from kvscope.model.facts import (
    CategoryFit,
    Conversation,
    Fit,
    Interval,
    ModelFit,
    NextPromptFit,
    NextTurnFit,
    StabilityFit,
    Windows,
)
from kvscope.show import html
from kvscope.show.report import trace_in_words
from kvscope.show.section import Section
from kvscope.show.table import Table
from kvscope.show.text_plots import sparkline, thinned
from kvscope.show.words import counted

_P = "reuse_probability"
_FITS = "exponential fits"
_MEANING = (
    "A touched block is reused with probability p, after a wait with distribution F:"
    " it still waits after t with S(t) = 1 - p F(t)."
)
_UNSEEN = (
    "The probability of another turn counts those too that come after the trace's end: by"
    " maximum likelihood with deaths unseen."
)
_PLOT_WIDTH = 60
_VISIBLE = 0.02  # of the highest point: where a plot begins
_CHARTS = 6  # categories with curves of their own in the report
_SEVERAL = 8  # names in a sentence


def sections(found: Fit) -> list[Section]:
    """The first screen, then everything there is to say."""
    made = [headline(found)]
    if found.models:
        made.append(_models(found))
    if found.windows is not None:
        made.append(_windows(found, found.windows))
    if found.next_turns:
        made.append(_next_turns(found))
    if found.next_prompts:
        made.append(_next_prompts(found.next_prompts))
    return made


def html_report(found: Fit) -> str:
    """The fit as one self-contained HTML page."""
    lead = trace_in_words(found.trace)
    return html.page(f"kvscope fit: {found.trace.name}", lead, sections(found))


def headline(found: Fit) -> Section:
    """Which categories follow an exponential, what to use instead, how stable, conversations."""
    sentences = [f"Note: {note}." for note in found.trace.notes]
    fitted = [row for row in found.categories if row.model is not None]
    if not found.trace.has_hashes:
        sentences.append(
            "The trace tells lengths only: without block hashes there is no reuse to fit;"
            " take a trace with hashes."
        )
    elif not fitted:
        sentences.append(
            "Too little is reused to fit a model to any category: a longer trace would help."
        )
    else:
        sentences += [*_verdicts(fitted), *_few(found), *_stable(found.windows)]
    sentences += _conversations(found)
    return Section("Summary", tuple(sentences), tables=_chosen(found, fitted), plot=_plot(fitted))


def _verdicts(fitted: list[CategoryFit]) -> list[str]:
    plain = [row for row in fitted if row.verdict == _FITS]
    where = _names(plain) if plain else "no category"
    sentences = [f"Reuse clearly follows an exponential after {where}."]
    verdicts = dict.fromkeys(_plainly(row) for row in fitted if row not in plain)
    for verdict in verdicts:
        alike = [row for row in fitted if row not in plain and _plainly(row) == verdict]
        sentences.append(f"After {_names(alike)}: {verdict}.")
    return sentences


def _plainly(row: CategoryFit) -> str:
    """The verdict without how far it misses, which differs from category to category."""
    return row.verdict.split(", but misses")[0] + (
        "" if row.fits else ", which does not fit either"
    )


def _names(rows: Sequence[CategoryFit]) -> str:
    names = [row.category for row in sorted(rows, key=lambda row: -row.n)]
    more = len(names) - _SEVERAL
    return ", ".join(names[:_SEVERAL]) + (f" and {more} more" if more > 0 else "")


def _few(found: Fit) -> list[str]:
    few = [row for row in found.categories if row.model is None]
    return [f"Too few gaps to tell: {_names(few)}."] if few else []


def _stable(windows: Windows | None) -> list[str]:
    if windows is None or not windows.stability:
        return ["The trace is too short to tell how stable that is."]
    return [
        _steadiness(f"window to window ({units.format_duration(windows.length_s)})", rows)
        if unit == "window"
        else _steadiness("day to day", rows)
        for unit in ("window", "day")
        if (rows := [row for row in windows.stability if row.between == unit])
    ]


def _steadiness(apart: str, rows: Sequence[StabilityFit]) -> str:
    told = [
        (len([row for row in rows if row.stable is kind]), words)
        for kind, words in ((True, "stable"), (False, "changing"), (None, "too rare to tell"))
    ]
    parts = [f"{count} {words}" for count, words in told if count]
    changing = f" ({_shifting(rows)})" if told[1][0] else ""
    return (
        f"From {apart}, of {counted(len(rows), 'category', 'categories')}: {', '.join(parts)}"
        f"{changing}."
    )


def _shifting(rows: Sequence[StabilityFit]) -> str:
    names = [row.category for row in rows if row.stable is False]
    return ", ".join(names[:_SEVERAL]) + (" and others" if len(names) > _SEVERAL else "")


def _conversations(found: Fit) -> list[str]:
    one = found.conversation
    if found.trace.lineage == "none":
        return ["The trace does not tell which requests belong to one conversation."]
    if one is None:
        return ["Too few conversations go on to say how they do."]
    fit = "" if one.fits else f" The waits are not quite like that: they miss by {one.ks:.0%}."
    lives = (
        f"die after {units.format_duration(1 / one.death_rate_per_s)}"
        if one.death_rate_per_s
        else "were not seen to die"
    )
    return [
        (
            f"Conversations begin at {units.format_rate(one.birth_rate_per_s)}; alive, they take a"
            f" turn every {units.format_duration(1 / one.turn_rate_per_s)}, and {lives}:"
            f" {one.turns:.1f} turns on average, another one with"
            f" {units.format_share(one.next_turn_probability)}.{fit}"
        )
    ]


def _chosen(found: Fit, fitted: list[CategoryFit]) -> tuple[Table, ...]:
    if not fitted:
        return ()
    rows = []
    for row in fitted:
        model = found.model_of(row.category)
        if model is not None:
            rows.append(
                (
                    row.category,
                    units.format_count(row.n),
                    units.format_share(model.reuse_probability),
                    _half(found, row.category),
                    f"{_ks(found, row.category):.1%}",
                    row.verdict,
                )
            )
    return (
        Table(
            "After a touch",
            ("type, turn", "blocks", "reused ever", "mean wait", "exp. misses", "verdict"),
            tuple(rows),
            note="reused ever: with what the end of the trace hides; mean wait: of those, by the"
            " exponential; exp. misses: the share of the reuse that it has too early or too late",
        ),
    )


def _exponential(found: Fit, category: str) -> ModelFit:
    return next(m for m in found.models if m.category == category and m.model == "exponential")


def _half(found: Fit, category: str) -> str:
    return units.format_duration(1 / _exponential(found, category).params["rate_per_s"])


def _ks(found: Fit, category: str) -> float:
    return _exponential(found, category).ks


def _plot(fitted: list[CategoryFit]) -> tuple[str, ...]:
    """The largest category's curve, and the chosen model's."""
    if not fitted:
        return ()
    row = max(fitted, key=lambda row: row.n)
    if row.curve is None or row.model is None:
        return ()
    model = row.curve.by_model[row.model]
    top = max(row.curve.observed)
    begin = next(at for at, y in enumerate(row.curve.observed) if y > _VISIBLE * top)
    first, last = (units.format_duration(row.curve.at_s[at]) for at in (begin, -1))
    lines = [
        (name, sparkline(thinned(list(values[begin:]), _PLOT_WIDTH), top))
        for name, values in (("observed", row.curve.observed), (row.model, model))
    ]
    width = len(lines[0][1])
    return (
        f"{row.category}: reused within",
        *(f"{name:<16} {line}" for name, line in lines),
        f"{'':<16} {first:<{width - len(last)}}{last}",
    )


def _models(found: Fit) -> Section:
    from kvscope.show.charts import fit as charts

    least = {
        row.category: min(m.aic for m in found.models if m.category == row.category)
        for row in found.categories
        if row.model is not None
    }
    rows = tuple(
        (
            model.category,
            f"{model.model} ←" if model.chosen else model.model,
            units.format_share(model.reuse_probability),
            _interval(model.interval[_P], units.format_share),
            _params(model),
            f"{model.ks:.1%}",
            f"{model.aic - least[model.category]:+.1f}",
        )
        for model in found.models
    )
    largest = sorted((c for c in found.categories if c.curve), key=lambda c: -c.n)[:_CHARTS]
    return Section(
        title="Models",
        sentences=(_MEANING,),
        tables=(
            Table(
                "Every model, ← the one to use",
                ("type, turn", "model", "p", "at 95%", "F", "misses", "AIC"),
                rows,
                note="misses: largest distance from Kaplan-Meier, of the reuse; AIC: above the"
                " least, as of independent blocks",
            ),
        ),
        figures=tuple(partial(charts.reuse, row) for row in largest),
    )


def _params(model: ModelFit) -> str:
    return ", ".join(
        f"{_short(name)} {_value(name, value)}" for name, value in model.params.items()
    )


def _short(name: str) -> str:
    names = {
        "rate_per_s": "mean",
        "fast_share": "fast",
        "fast_rate_per_s": "of",
        "slow_rate_per_s": "else",
        "scale_s": "scale",
        "median_s": "median",
    }
    return names.get(name, name)


def _value(name: str, value: float) -> str:
    if name.endswith("rate_per_s"):
        return units.format_duration(1 / value)
    if name.endswith("_s"):
        return units.format_duration(value)
    return units.format_share(value, 0) if name.endswith("_share") else f"{value:.2f}"


def _interval(interval: Interval | None, write: Callable[[float], str]) -> str:
    """From low to high, `?` where the data do not tell."""
    if interval is None:
        return "?"
    low, high = write(interval[0]), write(interval[1])
    unit = "%" if high.endswith("%") else ""
    return f"{low.removesuffix(unit)}–{high}" if unit else f"{low} to {high}"


def _windows(found: Fit, windows: Windows) -> Section:
    from kvscope.show.charts import fit as charts

    words = (
        f"Windows of {units.format_duration(windows.length_s)}, one every"
        f" {units.format_duration(windows.step_s)}, each fitted on its own; compared are neighbours"
        " that share no time, and windows a day apart."
    )
    order = [row.category for row in sorted(found.categories, key=lambda row: -row.n)]
    seen = [name for name in order if any(row.category == name for row in windows.fits)][:_CHARTS]
    tables = tuple(
        _stability(unit, rows)
        for unit in ("window", "day")
        if (rows := [row for row in windows.stability if row.between == unit])
    )
    figures = (
        partial(charts.probability_over_time, windows, seen),
        partial(charts.gap_over_time, windows, seen),
        *(partial(charts.by_window, windows, name) for name in seen[:2]),
    )
    return Section("Stability", (words,), tables=tables, figures=figures if seen else ())


def _stability(unit: str, rows: Sequence[StabilityFit]) -> Table:
    return Table(
        f"From {unit} to {unit}",
        ("type, turn", "pairs", "differ by", "by chance", "old fit misses", "p ±", "wait ±", ""),
        tuple(
            (
                row.category,
                units.format_count(row.pairs),
                f"{row.distance:.1%}",
                f"{row.by_chance:.1%}",
                f"{row.next_ks:.1%}",
                f"{row.reuse_probability_variation:.0%}",
                f"{row.mean_gap_variation:.0%}",
                {True: "stable", False: "changes", None: "cannot tell"}[row.stable],
            )
            for row in rows
        ),
        note="differ by: largest distance of the two curves, of the reuse, mean over the pairs; by"
        " chance: were nothing to change; old fit misses: the exponential of the window before",
    )


def _next_turns(found: Fit) -> Section:
    from kvscope.show.charts import fit as charts

    tables = []
    if found.conversation is not None:
        tables.append(_rates(found.conversation))
    by_turn = [row for row in found.next_turns if row.turn is not None]
    by_category = [row for row in found.next_turns if row.category is not None]
    for title, first, rows in (
        ("After a turn", "turn", by_turn),
        ("After a category", "type, turn", by_category),
    ):
        tables.append(
            Table(
                title,
                (first, "requests", "seen to go on", "another turn", "at 95%"),
                tuple(_next_turn(row) for row in rows),
            )
        )
    return Section(
        "Conversations",
        (_UNSEEN,),
        tables=tuple(tables),
        figures=(partial(charts.next_turns, found),),
    )


def _rates(one: Conversation) -> Table:
    rows = (
        ("births", one.birth_rate_per_s, "birth_rate_per_s"),
        ("turns while alive", one.turn_rate_per_s, "turn_rate_per_s"),
        ("deaths while alive", one.death_rate_per_s, "death_rate_per_s"),
    )
    return Table(
        "Rates",
        ("", "rate", "at 95%", "one in"),
        tuple(
            (
                name,
                units.format_rate(value),
                _interval(one.interval[key], units.format_rate),
                units.format_duration(1 / value) if value else "–",
            )
            for name, value, key in rows
        ),
    )


def _next_turn(row: NextTurnFit) -> tuple[str, ...]:
    told = ("–", "–")
    if row.probability is not None:
        told = (
            units.format_share(row.probability),
            _interval(row.interval, units.format_share),
        )
    name = row.category if row.category is not None else str(row.turn)
    seen = units.format_share(row.continued / row.requests if row.requests else 0.0)
    return name, units.format_count(row.requests), seen, *told


def _next_prompts(found: Sequence[NextPromptFit]) -> Section:
    rows = tuple(
        (
            row.category or "all",
            *(
                units.format_count(value)
                for value in (
                    *(row.n, row.mean),
                    *(row.tokens.p50, row.tokens.p80, row.tokens.p90, row.tokens.p99),
                )
            ),
        )
        for row in found
    )
    return Section(
        "Next prompts",
        tables=(
            Table(
                "Tokens that the next turn adds to the history",
                ("type, turn", "prompts", "mean", "p50", "p80", "p90", "p99"),
                rows,
            ),
        ),
    )
