"""An analysis as a report: its summary on one screen, every section in order, and the HTML page."""

from __future__ import annotations

from msgspec.structs import replace

from kvscope.characterize.summary import Characterization
from kvscope.core import units
from kvscope.core.trace import Trace
from kvscope.replay.caching import Caching
from kvscope.replay.findings import REMEDIES
from kvscope.report import caching, reuse, space, time, traffic
from kvscope.report.caching import capacity_table, largest_misses, sizes_of
from kvscope.report.misses import largest_causes
from kvscope.report.section import Section, Tile
from kvscope.report.words import count, counted, hit_rate_in_words, share, significant
from kvscope.usecases.analyze import Analysis

_NEGLIGIBLE = 0.02  # of the hits of an infinite cache
_WORTH_SAYING = 0.01  # of the input tokens
_ROWS = 10  # of the categories' table on the one screen


def sections(analysis: Analysis) -> list[Section]:
    """Return every section, the summary first."""
    facts = analysis.characterization
    summary = headline(analysis)
    return [
        replace(summary, tables=summary.tables[:-1]),  # the categories have a section
        *caching.sections(analysis),
        *reuse.sections(facts),
        *time.sections(facts),
        *space.sections(analysis),
        *traffic.sections(facts),
    ]


def screen(analysis: Analysis) -> list[Section]:
    """Return the summary alone."""
    return [headline(analysis)]


def headline(analysis: Analysis) -> Section:
    """Return the summary: hits now and possible, causes of misses, reuse by category."""
    facts, caching = analysis.characterization, analysis.caching
    notes = tuple(f"Note: {note}." for note in analysis.trace.notes)
    categories = reuse.category_table(facts, limit=_ROWS)
    if caching is None:
        unknown = (
            "The trace has only lengths and arrivals: without block hashes nothing"
            " can be said about reuse, hit rates or capacity."
        )
        traffic = (_traffic(facts), *_service(analysis.trace))
        return Section.of("Summary", *notes, *traffic, unknown, categories)
    traffic = (_traffic(facts), *_service(analysis.trace), *_reuse(facts))
    answer = (*_answer(analysis, caching), *traffic)
    capacities = capacity_table(analysis, caching) if caching.ideal else None
    tiles = _tiles(analysis, caching)
    return Section.of("Summary", *tiles, *notes, *answer, capacities, categories)


def _tiles(analysis: Analysis, caching: Caching) -> list[Tile]:
    """Return tiles: hit rate now and ideal, cost of evictions, capacity for 90 % of the ideal."""
    now, blocks, pool = analysis.present_rate, analysis.present_blocks, analysis.pool
    nine = next(mark for mark in caching.landmarks if mark.share_of_ideal == 0.9).point
    size = sizes_of(analysis).label(nine.capacity_blocks)
    needs = [Tile("LRU needs for 90% of that", size, "Idle cached blocks, at 90% of the best.")]
    needs = [] if analysis.exceeds(0.9) else needs
    ideal = share(caching.ideal)
    if now is None or not blocks:
        unknown = "An infinite cache; how large the cache is now is not stated."
        return [Tile("Hit rate, possible", ideal, unknown), *needs]
    reasons = caching.misses_at(blocks)
    evicted, tokens = reasons.evicted_tokens / reasons.input_tokens, reasons.evicted_tokens
    for cause in pool.causes if pool is not None else ():
        if cause.cause == "evicted":
            evicted, tokens = cause.share, cause.tokens
    about = "LRU with the memory there is, then an infinite cache."
    lost = f"{count(tokens)} tokens that were computed before and evicted since."
    return [
        Tile("Hit rate, now → possible", f"{share(now)} → {ideal}", about),
        Tile("Lost to eviction", share(evicted), lost, evicted <= _NEGLIGIBLE * caching.ideal),
        *needs,
    ]


def next_step(analysis: Analysis) -> str | None:
    """Return what to do next, by the hits lost to evictions; None without reuse or hashes."""
    caching = analysis.caching
    if caching is None or not caching.ideal:
        return None
    present, rates = analysis.present_blocks, [each.token_hit_rate for each in analysis.retention]
    if rates and max(rates) - rates[0] > _NEGLIGIBLE * caching.ideal:
        gain = f"Other retention intervals let hit up to {share(max(rates))} of the input tokens"
        return f"{gain}: let `kvscope tune` compare them for your SLO."
    if present is None:
        return "State the deployment, or a model and its memory, then tune for your SLO."
    lost = caching.ideal - (analysis.present_rate or 0.0)
    why = "LRU's evictions cost" if analysis.pool is None else "LRU loses"  # or routed, in flight
    cost = f"{why} {share(lost)} of the input {caching.lru.definition.weight}s"
    if lost <= _NEGLIGIBLE * caching.ideal:
        return f"{cost}: neither a policy nor memory can gain more. Check whether the SLO is met."
    return f"{cost}: tune the policy for your SLO, and see what more memory would give."


def _now(analysis: Analysis, caching: Caching) -> str | None:
    """Return in words LRU's hit rate in the memory there is; None if that memory is unknown."""
    blocks, now, pool = analysis.present_blocks, analysis.present_rate, analysis.pool
    if not blocks or now is None:
        return None
    memory, where = _memory(analysis, blocks)
    words = (
        f"LRU hits {share(now)} of the input {caching.lru.definition.weight}s with {memory}:"
        f" {share(now / caching.ideal)} of what an infinite cache hits."
    )
    if pool is not None and pool.rejected_requests:
        longer = counted(pool.rejected_requests, "request")
        words += f" Rejected, as longer than the pool: {longer}."
    return words + where


def _could(analysis: Analysis, caching: Caching) -> str:
    """Return an infinite cache's hit rate, and the capacity at which LRU reaches 90 % of it."""
    sizes = sizes_of(analysis)
    ideal = f"An infinite cache would hit {share(caching.ideal)} of the input"
    ideal += f" {caching.lru.definition.weight}s"
    nine = next(mark for mark in caching.landmarks if mark.share_of_ideal == 0.9)
    need = f"LRU needs {sizes.in_words(nine.point.capacity_blocks)} for 90% of that."
    if analysis.layouts:
        blocks_there = sorted(each.capacity_blocks for each in analysis.layouts)
        counts = sorted(each.open_sessions for each in analysis.layouts)
        need += (
            f" With {counts[0]:.3g} to {counts[-1]:.3g} sessions open (Poisson arrivals,"
            f" {len(counts)} layouts), {sizes.in_words(blocks_there[0])} to"
            f" {sizes.in_words(blocks_there[-1])}."
        )
    if caching.definition.weight == "token" and caching.ideal < 1:
        ideal += f" ({significant(1 / (1 - caching.ideal))}× less prefill)"
    return f"{ideal}." if analysis.exceeds(0.9) else f"{ideal}. {need}"


def _hybrid(analysis: Analysis) -> list[str]:
    """Return a hybrid model's highest hit rates by retention interval, or why it has none; else [].

    vLLM's default comes first; the last sentence says which layers the other figures count.
    """
    where, size = analysis.deployment, analysis.trace.block_size
    groups = where.kv_groups_for(size) if where else None
    if groups is not None and (undivided := groups.undivided(size)) is not None:
        return [f"Not simulated as a hybrid model: {undivided.what}; {undivided.remedy}."]
    if not analysis.retention or analysis.model is None or groups is None:
        return []
    default, *others = analysis.retention
    name, option = analysis.model.name, "--prefix-cache-retention-interval"
    what = "states" if groups.state_tokens else "windows" if groups.sparse else "chunks"
    most = f"{name} hits at most {share(default.token_hit_rate)} of the input tokens"
    if not others:
        most = f"With its {what} in vLLM, {most}."
    else:
        most = f"With vLLM's default, {option} {default.interval_tokens}, {most}."
    by = ", ".join(
        f"{share(each.token_hit_rate)} by {each.interval_tokens:,}"
        if each.interval_tokens is not None
        else f"{share(each.token_hit_rate)} by None (all {what})"
        for each in others
    )
    counted = "all layers as full attention"
    if groups.state_tokens:
        counted = "the full-attention layers alone"
    return [
        most,
        *([f"At most with other intervals: {by}."] if others else []),
        f"What follows counts {counted}: a bound for {name}.",
    ]


def _answer(analysis: Analysis, caching: Caching) -> list[str]:
    """Return LRU's hit rate in the memory there is, an infinite cache's, and causes of misses."""
    if not caching.ideal:
        what = f"{share(caching.ideal)} of the input {caching.lru.definition.weight}s"
        return [f"An infinite cache would hit {what}: no prompt begins as an earlier one did."]
    now, pool = _now(analysis, caching), analysis.pool
    nine = next(mark for mark in caching.landmarks if mark.share_of_ideal == 0.9)
    blocks = analysis.present_blocks or nine.point.capacity_blocks
    first, further = [now] if now else [], _hybrid(analysis)
    if pool is not None:
        misses = largest_causes(pool.causes)
    else:
        first, further = further, first  # a bound counts as the curve does
        reasons = caching.misses_at(blocks)
        misses = largest_misses(reasons)
        if analysis.causes:  # which no capacity changes, but for evictions
            evicted = reasons.evicted_tokens / reasons.input_tokens
            causes = [
                replace(each, share=evicted) if each.cause == "evicted" else each
                for each in analysis.causes
            ]
            misses = largest_causes(causes)
    return [
        *first,
        *further,
        _could(analysis, caching),
        f"Input tokens that miss at {sizes_of(analysis).label(blocks)}: {misses}.",
        *_template(analysis),
        hit_rate_in_words(caching.definition),
    ]


def _template(analysis: Analysis) -> list[str]:
    """Return the chat template's cost in hits and the remedy; [] below 1 % of the input tokens."""
    cost = next((each for each in analysis.causes if each.cause == "template"), None)
    if cost is None or cost.share < _WORTH_SAYING:
        return []
    turns, remedy = counted(cost.requests, "follow-up turn"), REMEDIES["template"]
    text = (
        f"The chat template costs {share(cost.share)} of the input tokens in hits: {turns} repeat"
    )
    return [f"{text} earlier messages, but not their prompt. {remedy[:1].upper()}{remedy[1:]}."]


def _memory(analysis: Analysis, blocks: int) -> tuple[str, str]:
    """Return what the memory of `blocks` blocks is called, and a sentence on the pools or "".

    It is the KV pools of the deployment; without one, the HBM, which is called by its size.
    """
    words, where = sizes_of(analysis).in_words(blocks), analysis.deployment
    if where is None:
        return words, ""
    each = where.pool.in_blocks_of(analysis.trace.block_size)
    low, high = each.low_blocks * where.engines, each.high_blocks * where.engines
    band = f": {count(low)} to {counted(high, 'block')}" if low != high else ""
    size = f"{words}, {each.origin}{band}."
    replayed = analysis.pool
    if where.engines == 1:
        memory = "the KV pool" if analysis.engine_replayed else "an idle KV pool"
        return memory, f" The pool of {where.summary} is {size}"
    memory = "all KV pools idle and shared"
    if replayed is not None:
        split = f"{count(replayed.workers)} workers of the trace"
        memory = f"the KV pools behind {replayed.router or split}"
    return memory, f" The pools of {where.summary} are together {size}"


def _traffic(facts: Characterization) -> str:
    lengths, contribution = facts.lengths, facts.contribution
    text = (
        f"Mean {count(lengths.input_tokens.mean)} input and"
        f" {count(lengths.output_tokens.mean)} output tokens"
    )
    if facts.turns is None:
        return f"{text}."
    hits = contribution.multi_turn_hit_share
    get = "" if hits is None else f" and get {share(hits)} of the hits"
    turns = share(contribution.multi_turn_request_share)
    return f"{text}; {turns} of requests are follow-up turns{get}."


def _service(trace: Trace) -> list[str]:
    """Return how many models, adapters, salts and workers a trace has, if any number exceeds 1."""
    separate = {"model": trace.models, "LoRA adapter": trace.adapters, "cache salt": trace.salts}
    several = (trace.tenants or 1) > 1
    if not several and (trace.workers or 1) == 1:
        return []
    counts = {**separate, "worker": trace.workers}
    text = ", ".join(counted(number, thing) for thing, number in counts.items() if number)
    if several and trace.has_hashes:
        kinds = " or ".join(f"{thing.split()[-1]}s" for thing, number in separate.items() if number)
        text += f"; requests of different {kinds} share no blocks"
    return [f"{text}."]


def _reuse(facts: Characterization) -> list[str]:
    sentences = []
    if facts.reuse_gaps is not None and facts.reuse_gaps.overall is not None:
        gap = facts.reuse_gaps.overall.gap_s
        p50, p80, p99 = map(units.duration_in_words, (gap.p50, gap.p80, gap.p99))
        sentences.append(f"Reuse comes within {p50} (p50), {p80} (p80), {p99} (p99).")
    if facts.lifetimes is not None and facts.lifetimes.overall is not None:
        never = facts.lifetimes.overall.never_reused_share
        sentences.append(f"{share(never)} of the blocks are never used again.")
    return [" ".join(sentences)] if sentences else []
