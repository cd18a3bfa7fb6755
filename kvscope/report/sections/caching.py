"""How much caching can give, how large the cache must be, and why the rest misses."""

from __future__ import annotations

from functools import partial

from kvscope.app.analyze import Analysis, Caching
from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.report.section import Section, Table
from kvscope.report.sections.sizes import size_cells, size_columns
from kvscope.report.text_plots import bar
from kvscope.report.words import definition_in_words

PLOTTED = 16  # points of the curve's upper end, where it rises


def sections(analysis: Analysis) -> list[Section]:
    """The sections on caching; none where the trace has no hashes."""
    found = analysis.caching
    if found is None:
        return []
    return [_curve(analysis, found), _misses(found), _definitions(found)]


def _curve(analysis: Analysis, found: Caching) -> Section:
    from kvscope.report.charts import caching as charts

    plot = tuple(
        f"{units.format_count(point.capacity_blocks):>14} blocks  {bar(found.rate(point))}"
        f" {units.format_share(found.rate(point))}"
        for point in found.curve[-PLOTTED:]
    )
    return Section(
        title="Capacity",
        sentences=(
            (
                "LRU at every capacity, exact, from one pass over the trace"
                f" ({definition_in_words(found.definition)})."
            ),
            *_model_notes(analysis.model),
        ),
        tables=(_asked(analysis, found),) if found.asked else (),
        plot=plot,
        figures=(partial(charts.curve, found),),
    )


def _asked(analysis: Analysis, found: Caching) -> Table:
    return Table(
        "LRU at the capacities asked for",
        ("", *size_columns(analysis), "hit rate by token", "by block"),
        tuple(
            (
                "asked for",
                *size_cells(analysis, point.capacity_blocks),
                units.format_share(point.token_hit_rate, 2),
                units.format_share(point.block_hit_rate, 2),
            )
            for point in found.asked
        ),
    )


def _model_notes(model: ModelKv | None) -> tuple[str, ...]:
    return model.notes if model else ("Name a model with --model to read sizes in GiB.",)


def _misses(found: Caching) -> Section:
    from kvscope.report.charts import caching as charts

    rows = tuple(
        (
            units.format_count(reasons.capacity_blocks),
            *(
                units.format_share(part / reasons.input_tokens)
                for part in (
                    reasons.hit_tokens,
                    reasons.evicted_tokens,
                    reasons.diverged_tokens,
                    reasons.cold_tokens,
                    reasons.tail_tokens,
                )
            ),
        )
        for reasons in found.misses
    )
    return Section(
        title="Misses",
        sentences=(f"Under LRU, {definition_in_words(found.misses_definition)}.",),
        tables=(
            Table(
                "What became of the input tokens under LRU",
                ("capacity (blocks)", "hit", "evicted", "diverged", "cold", "tail"),
                rows,
                note="evicted: cached once, dropped before its reuse; diverged: the conversation"
                " went on from another history; cold: never seen before; tail: the partial last"
                " block, the last token and prompts without hashes, which no prefix cache hits",
            ),
        ),
        figures=(partial(charts.misses, found),),
    )


def _definitions(found: Caching) -> Section:
    rows = tuple(
        (
            rate.definition,
            rate.weight,
            rate.window,
            "kept" if rate.partial else "dropped",
            "on" if rate.last_token_rule else "off",
            rate.outputs,
            "flat" if rate.flat else "prefix",
            units.format_share(rate.ideal, 2),
        )
        for rate in found.hit_rates
    )
    words = (
        "One trace has as many hit rates as definitions; these are its rates with an infinite"
        " cache. Most definitions differ from kvscope's own in one thing, which their name says;"
        " the last ones count as other tools do."
    )
    return Section(
        title="Definitions",
        sentences=(words,),
        tables=(
            Table(
                "Ideal hit rate by definition",
                (
                    "definition",
                    "weight",
                    "window",
                    "partial",
                    "last-token rule",
                    "outputs",
                    "lookup",
                    "ideal",
                ),
                rows,
                note="lookup: of a prompt's leading blocks, or flat, each block for itself",
            ),
        ),
    )
