"""Fitted reuse models: which to use, how far to trust them, how long they stay true."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.core import units
from kvscope.report import fit_details, html, returns
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import PLOT_WIDTH, sparkline, thinned
from kvscope.report.words import counted, listed, share, time_unit, trace_in_words
from kvscope.reuse_models.results import CategoryFit, Fit, ModelFit, StabilityFit, Windows
from kvscope.tuning.end_gain import EndsFit

SECTIONS = ("summary", "models", "stability", "conversations", "next-prompts", "returns")
"""What `--section` of `kvscope fit` takes; a trace need not have them all."""

_FITS = "exponential fits"
_VISIBLE = 0.02  # of the highest point: where a plot begins
_SEVERAL = 8  # names in a sentence


def sections(fit: Fit, ends: EndsFit | None = None) -> list[Section]:
    """Return the summary, then every model and what it rests on."""
    made = [headline(fit)]
    if fit.models:
        made.append(fit_details.models(fit))
    if fit.windows is not None:
        made.append(fit_details.stability(fit, fit.windows))
    if fit.next_turns:
        made.append(fit_details.conversations(fit))
    if fit.next_prompts:
        made.append(fit_details.next_prompts(fit.next_prompts))
    if ends is not None:
        made.append(returns.section(ends))
    return made


def html_report(fit: Fit, ends: EndsFit | None = None) -> str:
    """Return the fit as one self-contained HTML page."""
    lead = trace_in_words(fit.trace)
    return html.page(f"kvscope fit: {fit.trace.name}", lead, sections(fit, ends))


def headline(fit: Fit) -> Section:
    """Return which categories follow an exponential, what to use instead, and how stable it is."""
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
        sentences += [*_verdicts(fitted), *_few(fit), *_stable(fit.windows)]
    sentences += _conversations(fit)
    tables = (_models_to_use(fit, fitted),) if fitted else ()
    return Section("Summary", tuple(sentences), tables=tables, plot=_plot(fitted))


def _verdicts(fitted: list[CategoryFit]) -> list[str]:
    exponential = [row for row in fitted if row.verdict == _FITS]
    where = _names(exponential) if exponential else "no category"
    sentences = [f"Reuse clearly follows an exponential after {where}."]
    others = [row for row in fitted if row not in exponential]
    for verdict in dict.fromkeys(_without_miss(row) for row in others):
        alike = [row for row in others if _without_miss(row) == verdict]
        sentences.append(f"After {_names(alike)}: {verdict}.")
    return sentences


def _without_miss(row: CategoryFit) -> str:
    """Return the verdict without how far it misses, which differs from category to category."""
    misfit = "" if row.fits else ", which does not fit either"
    return row.verdict.split(", but misses")[0] + misfit


def _names(rows: Sequence[CategoryFit]) -> str:
    return listed([row.category for row in sorted(rows, key=lambda row: -row.n)], _SEVERAL)


def _few(fit: Fit) -> list[str]:
    few = [row for row in fit.categories if row.model is None]
    return [f"Too few gaps to fit: {_names(few)}."] if few else []


def _stable(windows: Windows | None) -> list[str]:
    if windows is None or not windows.stability:
        return ["The trace is too short to tell how stable that is."]
    length = units.duration_in_words(windows.length_s)
    return [
        _steadiness(f"window to window ({length})" if unit == "window" else "day to day", rows)
        for unit in ("window", "day")
        if (rows := [row for row in windows.stability if row.between == unit])
    ]


def _steadiness(between: str, rows: Sequence[StabilityFit]) -> str:
    changing = [row.category for row in rows if row.stable is False]
    counts = (
        (sum(row.stable is True for row in rows), "stable"),
        (len(changing), "changing"),
        (sum(row.stable is None for row in rows), "too rare to tell"),
    )
    parts = ", ".join(f"{count} {words}" for count, words in counts if count)
    which = f" ({listed(changing, _SEVERAL)})" if changing else ""
    return f"From {between}, of {counted(len(rows), 'category', 'categories')}: {parts}{which}."


def _conversations(fit: Fit) -> list[str]:
    model = fit.conversation
    if fit.trace.lineage == "none":
        return ["The trace does not say which requests belong to one conversation."]
    if model is None:
        return ["Too few follow-up turns to fit a model of conversations."]
    misfit = "" if model.fits else f" The waits fit only to {model.ks:.0%}."
    death = (
        f"end after a mean of {units.duration_in_words(1 / model.death_rate_per_s)}"
        if model.death_rate_per_s
        else "have no observed end"
    )
    return [
        (
            f"Conversations begin at {units.format_rate(model.birth_rate_per_s)}, take a turn every"
            f" {units.duration_in_words(1 / model.turn_rate_per_s)} while alive, and {death}:"
            f" {model.turns:.1f} turns on average; another turn follows with probability"
            f" {units.format_share(model.next_turn_probability)}.{misfit}"
        )
    ]


def _models_to_use(fit: Fit, fitted: list[CategoryFit]) -> Table:
    exponentials = {model.category: model for model in fit.models if model.model == "exponential"}
    unit = time_unit(_mean_wait_s(exponentials[row.category]) for row in fitted)
    rows = []
    for row in sorted(fitted, key=lambda row: -row.n):
        model, exponential = fit.model_of(row.category), exponentials[row.category]
        rows.append(
            (
                row.category,
                units.format_count(row.n),
                share(model.reuse_probability if model else None),
                unit.cell(_mean_wait_s(exponential)),
                f"{exponential.ks:.1%}",
                row.verdict,
            )
        )
    return Table(
        "After a touch",
        (
            "type, turn",
            "blocks",
            "reused ever",
            f"mean wait ({unit.name})",
            "exp. misses",
            "verdict",
        ),
        tuple(rows),
        note="reused ever: including reuse after the trace's end; mean wait: of reused blocks, by"
        " the exponential; exp. misses: share of the reuse that it places too early or too late",
    )


def _mean_wait_s(exponential: ModelFit) -> float:
    return 1 / exponential.params["rate_per_s"]


def _plot(fitted: list[CategoryFit]) -> tuple[str, ...]:
    """Return the largest category's curve, and the chosen model's."""
    if not fitted:
        return ()
    row = max(fitted, key=lambda row: row.n)
    if row.curve is None or row.model is None:
        return ()
    model = row.curve.by_model[row.model]
    top = max(row.curve.observed)
    begin = next(at for at, y in enumerate(row.curve.observed) if y > _VISIBLE * top)
    first, last = (units.duration_in_words(row.curve.at_s[at]) for at in (begin, -1))
    lines = [
        (name, sparkline(thinned(list(values[begin:]), PLOT_WIDTH), top))
        for name, values in (("observed", row.curve.observed), (row.model, model))
    ]
    width = len(lines[0][1])
    return (
        f"{row.category}: reused within",
        *(f"{name:<16} {line}" for name, line in lines),
        f"{'':<16} {first:<{width - len(last)}}{last}",
    )
