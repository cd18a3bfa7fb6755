"""The gain of caching, the capacity it needs, and the causes of the remaining misses."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from kvscope.core import units
from kvscope.core.runs import Outcome
from kvscope.replay.caching import Caching, CurvePoint
from kvscope.replay.findings import PoolHits
from kvscope.replay.misses import MissReasons
from kvscope.report import style
from kvscope.report.section import Section, Table, Tile, bar, tabulate
from kvscope.report.words import Sizes, count, definition_in_words, ms_in_words, multiple, share
from kvscope.usecases.analyze import Analysis

_PLOTTED = 16  # points of the curve on a terminal
_VISIBLE = 0.01  # of the ideal hit rate: where the curve begins
_BAR = 16  # characters


class _Outcome(NamedTuple):
    """A hit or a kind of miss; `figure` names its `MissReasons` field, without `_tokens`.

    `label` names it in tables and charts, `meaning` explains the label. `avoidable` misses could be
    hits with more memory, another policy or prompts that keep their history.
    """

    figure: str
    label: str
    colour: str
    meaning: str = ""
    avoidable: bool = False


_OUTCOMES = (
    _Outcome("hit", "hit", style.BLUE),
    _Outcome("evicted", "evicted", style.VERMILION, "before reuse", True),
    _Outcome("diverged", "diverged", style.ORANGE, "in a history that was edited", True),
    _Outcome("cold", "growth and cold", style.GREY, "never seen before"),
    _Outcome("tail", "below-block and last-token", style.PALE_GREY, "which no prefix cache hits"),
)


def sections(analysis: Analysis) -> list[Section]:
    """Return the sections on caching; none where the trace has no hashes."""
    caching = analysis.caching
    if caching is None:
        return []
    return [_curve(analysis, caching), _misses(sizes_of(analysis), caching), _definitions(caching)]


def sizes_of(analysis: Analysis) -> Sizes:
    """Return the formatter for the capacities of an analysis."""
    memory = "pool" if analysis.deployment else "HBM"
    return Sizes(analysis.trace.block_size, analysis.model, analysis.hbm_bytes, memory)


def capacity_table(analysis: Analysis, caching: Caching) -> Table:
    """Return a table of LRU's hit rate by capacity, the smallest capacity first.

    Rows: the least capacities that reach 25, 50, 75, 90, 99 and 100 % of the ideal hit rate, those
    of `--capacity`, and if known the memory there is: the deployment's pools, else the HBM.
    """
    sizes = sizes_of(analysis)
    rows = [
        (mark.point.capacity_blocks, f"{mark.share_of_ideal:.0%} of ideal")
        for mark in caching.landmarks
    ]
    rows += [(point.capacity_blocks, "--capacity") for point in caching.asked]
    if present := analysis.present_blocks:
        rows.append((present, sizes.memory))
    pool = analysis.pool
    note = "Idle cached blocks only: add KV memory for running requests."
    if analysis.engine_replayed:
        note = f"{sizes.memory}: as replayed, with running requests; others: idle blocks only"

    def rate(row: tuple[int, str]) -> float:
        if pool is not None and row[1] == sizes.memory:
            return pool.token_hit_rate
        return float(caching.lru.rate(row[0]))

    return tabulate(
        "Capacity of an LRU cache",
        sorted(rows, key=lambda row: row[0]),
        {
            "capacity": lambda row: row[1],
            **sizes.columns(lambda row: row[0]),
            "hit rate": lambda row: share(rate(row)),
            "": lambda row: bar(rate(row), _BAR),
        },
        note=note,
    )


def largest_misses(reasons: MissReasons) -> str:
    """Return as text the shares of input tokens that miss by cause, the largest first.

    Causes below 0.05 %, which would be written as 0 %, are left out.
    """
    missed = sorted(_OUTCOMES[1:], key=lambda outcome: -_share(outcome, reasons))
    shares = [(share(_share(outcome, reasons)), outcome) for outcome in missed]
    return ", ".join(
        f"{of} {outcome.label} ({outcome.meaning})" for of, outcome in shares if of != share(0.0)
    )


def _share(outcome: _Outcome, reasons: MissReasons) -> float:
    return float(getattr(reasons, f"{outcome.figure}_tokens") / reasons.input_tokens)


def _curve(analysis: Analysis, caching: Caching) -> Section:
    sizes = sizes_of(analysis)
    points = _rising(caching)
    points = points[:: len(points) // -_PLOTTED][::-1]  # the last one among them
    plot = tuple(
        f"{sizes.label(point.capacity_blocks):>16}  {bar(caching.rate(point))}"
        f" {share(caching.rate(point))}"
        for point in points
    )
    model = analysis.model
    table = tabulate(
        "LRU at the capacities of --capacity",
        caching.asked,
        {
            **sizes.columns(lambda point: point.capacity_blocks),
            "hit rate by token": lambda point: share(point.token_hit_rate),
            "by block": lambda point: share(point.block_hit_rate),
        },
    )
    return Section.of(
        "Capacity",
        f"LRU's exact hit rate at every capacity ({definition_in_words(caching.definition)}).",
        *(model.notes if model else ("Name a model with --model to read sizes in GiB.",)),
        table if table.rows else None,
        partial(curve_chart, caching, sizes),
        plot=plot,
    )


def _rising(caching: Caching) -> list[CurvePoint]:
    """Return the curve's points to draw, without a flat start below 1 % of the ideal hit rate."""
    return [point for point in caching.curve if caching.rate(point) >= (_VISIBLE * caching.ideal)]


def _misses(sizes: Sizes, caching: Caching) -> Section:
    def share_of(outcome: _Outcome, reasons: MissReasons) -> str:
        return share(_share(outcome, reasons))

    counted = f"Counted: LRU, {definition_in_words(caching.misses_definition)}."
    table = tabulate(
        "Input tokens under LRU",
        caching.misses,
        {
            "capacity": lambda reasons: sizes.label(reasons.capacity_blocks),
            **{each.label: partial(share_of, each) for each in _OUTCOMES},
        },
        note="; ".join(f"{each.label}: {each.meaning}" for each in _OUTCOMES[1:])
        + ", nor prompts without hashes; kvscope explain tells them apart",
    )
    return Section.of("Misses", counted, table, partial(misses_chart, caching, sizes))


def _definitions(caching: Caching) -> Section:
    words = (
        "A trace has as many hit rates as there are definitions of a hit. These are for an infinite"
        " cache. Most definitions differ from kvscope's in the one thing that their name says; the"
        " last ones count as other tools do."
    )
    table = tabulate(
        "Ideal hit rate by definition",
        caching.hit_rates,
        {
            "definition": lambda rate: rate.definition,
            "weight": lambda rate: rate.weight,
            "window": lambda rate: rate.window,
            "partial": lambda rate: "kept" if rate.partial else "dropped",
            "last-token rule": lambda rate: "on" if rate.last_token_rule else "off",
            "outputs": lambda rate: rate.outputs,
            "lookup": lambda rate: "flat" if rate.flat else "prefix",
            "ideal": lambda rate: share(rate.ideal),
        },
        note="lookup: prefix stops at the first missing block, flat looks up every block",
    )
    return Section.of("Definitions", words, table)


def readings(
    sizes: Sizes, blocks: int, outcome: Outcome, profile: str, pool: PoolHits | None
) -> list[Tile]:
    """Return tiles of LRU's figures at a capacity of `blocks`: hit rate, size, TTFT percentiles.

    `outcome` is LRU's: its TTFT is that of an idle engine, by the latency profile named `profile`.
    The hit rate is that of `pool`, a replay in KV pools of that capacity; if None, of `outcome`.
    """
    tokens = blocks * sizes.block_size
    rate, about = outcome.token_hit_rate, "LRU, token-weighted."
    if pool is not None:
        rate, about = pool.token_hit_rate, "LRU in the pool, replayed with running requests."
    size = f"{count(tokens)} tokens; running requests need more."
    tiles = [Tile("Hit rate", share(rate), about), Tile("Blocks", count(blocks), size)]
    if sizes.model is not None:
        per_token = f"{sizes.model.name}, {sizes.model.bytes_per_token:,.0f} bytes per token."
        tiles.append(Tile("Size", units.format_size(sizes.model.bytes_for(tokens)), per_token))
    if sizes.model is not None and sizes.hbm_bytes:
        times = multiple(sizes.model.bytes_for(tokens) / sizes.hbm_bytes)
        of = f"Multiple of {units.format_size(sizes.hbm_bytes)}."
        tiles.append(Tile(f"× {sizes.memory}", times, of))
    idle = f"On an idle engine, by the profile {profile}."
    ranks = ("p50", "p90", "p95", "p99")
    times_ms = [getattr(outcome.ttft_ms, rank) for rank in ranks]
    named = zip(ranks, map(ms_in_words, times_ms), strict=True)
    return [*tiles, *(Tile(f"TTFT {rank}", time, idle) for rank, time in named)]


def curve_chart(caching: Caching, sizes: Sizes) -> style.Figure:
    """Draw LRU's hit rate by capacity; mark the ideal, shares of it and any `sizes.hbm_bytes`."""
    unit, hbm_blocks = sizes.axis, sizes.hbm_blocks
    points = _rising(caching)
    blocks = [point.capacity_blocks for point in points]
    if hbm_blocks and hbm_blocks > blocks[-1]:  # flat from the last point on
        blocks, points = [*blocks, hbm_blocks], [*points, points[-1]]
    capacities = [at * unit.per_block for at in blocks]
    by_token = [point.token_hit_rate for point in points]
    by_block = [point.block_hit_rate for point in points]
    dotted = style.line(1) | {"dash": "dot"}
    series = [
        style.Series("by token", capacities, by_token),
        style.Series("by block", capacities, by_block, dotted),
    ]
    chart = style.lines("LRU's exact hit rate at every capacity", unit.axis, "hit rate", series)
    chart.add_scatter(
        x=[mark.point.capacity_blocks * unit.per_block for mark in caching.landmarks],
        y=[caching.rate(mark.point) for mark in caching.landmarks],
        text=[f"{mark.share_of_ideal:.0%}" for mark in caching.landmarks],
        mode="markers+text",
        textposition="bottom right",
        name="share of ideal",
        marker={"color": style.VERMILION, "size": 8},
    )
    style.level(chart, caching.ideal, f"infinite cache {caching.ideal:.1%}")
    if hbm_blocks and sizes.hbm_bytes:
        style.mark(
            chart,
            hbm_blocks * unit.per_block,
            f"{units.format_size(sizes.hbm_bytes)} {sizes.memory}",
        )
    return chart


def misses_chart(caching: Caching, sizes: Sizes) -> style.Figure:
    """Draw shares of input tokens that hit, or miss by cause, at each capacity."""
    chart = style.figure("Hits and causes of misses", "capacity", "input tokens")
    labels = [sizes.label(reasons.capacity_blocks) for reasons in caching.misses]
    for outcome in _OUTCOMES:
        shares = [_share(outcome, reasons) for reasons in caching.misses]
        name = f"{outcome.label} (avoidable)" if outcome.avoidable else outcome.label
        chart.add_bar(x=labels, y=shares, name=name, marker_color=outcome.colour)
    chart.update_layout(barmode="stack")
    chart.update_xaxes(type="category")
    chart.update_yaxes(tickformat=".0%")
    return chart
