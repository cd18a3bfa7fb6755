"""What models say of a trace: which to use, how far to trust them, how long they stay true."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.core import units
from kvscope.report import html
from kvscope.report.report import trace_in_words
from kvscope.report.section import Section, Table
from kvscope.report.sections.fit_conversations import conversations, next_prompts
from kvscope.report.sections.fit_ends import returns
from kvscope.report.sections.fit_models import models, stability
from kvscope.report.text_plots import sparkline, thinned
from kvscope.report.words import counted
from kvscope.reuse_models.results import CategoryFit, Fit, ModelFit, StabilityFit, Windows
from kvscope.tune.end_gain import EndsFit

_FITS = "exponential fits"
_PLOT_WIDTH = 60
_VISIBLE = 0.02  # of the highest point: where a plot begins
_SEVERAL = 8  # names in a sentence


def sections(found: Fit, ends: EndsFit | None = None) -> list[Section]:
    """The first screen, then everything there is to say."""
    made = [headline(found)]
    if found.models:
        made.append(models(found))
    if found.windows is not None:
        made.append(stability(found, found.windows))
    if found.next_turns:
        made.append(conversations(found))
    if found.next_prompts:
        made.append(next_prompts(found.next_prompts))
    if ends is not None:
        made.append(returns(ends))
    return made


def html_report(found: Fit, ends: EndsFit | None = None) -> str:
    """The fit as one self-contained HTML page."""
    lead = trace_in_words(found.trace)
    return html.page(f"kvscope fit: {found.trace.name}", lead, sections(found, ends))


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
