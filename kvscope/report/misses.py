"""Why input tokens missed: the causes over a trace, what to change, and single requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log2
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.trace import Prompts
from kvscope.replay.causes import AVOIDABLE, COMPUTED, Cause
from kvscope.replay.contention import GroupLosses
from kvscope.replay.findings import (
    CauseTotal,
    ExplainedRequest,
    Finding,
    Place,
    avoidable_tokens,
    explained_request,
)
from kvscope.replay.observed_hits import Gap
from kvscope.replay.prompt_parts import NEW_HEADS
from kvscope.report import style
from kvscope.report.section import Columns, Section, Table, bar, tabulate
from kvscope.report.words import Sizes, count, counted, hit_rate_in_words, share
from kvscope.usecases.explain import Explanation

_MOST_NAMED = 3  # groups that push out another one's blocks
_WORST = 10  # requests of a category
_OWN_WIDTH = 4.0  # of the request in its prefix tree; 1 is one other request

_WORDS: dict[Cause, str] = {
    "drafter": "last block of a hit, computed again for a drafter",
    "evicted": "computed before, then evicted",
    "not-kept": "computed before, no window or state kept there",
    "in-flight": "of an earlier request, not computed yet",
    "routed": "computed before by another worker",
    "salt": "computed before under another cache salt",
    "lora": "computed before under another LoRA adapter",
    "model": "computed before by another model",
    "periodic": "behind a shared block that changes with the time",
    "template": "the chat template changed what the messages repeat",
    "diverged": "the previous turn's prompt was changed",
    "output-changed": "the previous turn's output was changed or left out",
    "growth": "new, after a shared prefix",
    "cold": "new from the first block on",
    "last-token": "full block with the prompt's last token",
    "below-block": "partial last block",
    "no-hash": "no block hashes in the trace",
    "rejected": "request longer than the pool",
}


_CAUSES = "Input tokens that miss, by cause"
_CAUSE_COLUMNS: Columns = {
    "cause": lambda each: each.cause,
    "meaning": lambda each: _WORDS[each.cause],
    "tokens": lambda each: count(each.tokens),
}
_GAPS: dict[Gap, str] = {
    "routed": "predicted ones were on another worker",
    "in-flight": "predicted ones were still being computed",
    "evicted": "predicted ones were evicted earlier",
    "kept": "were kept longer than predicted",
    "cached-before": "were cached before the trace began",
}
_PLACES: dict[Place, str] = {
    "first-prompt": "in what the conversation began with",
    "shortened": "by a shorter prompt",
    "history": "in the history",
}
_PARTS = {
    "template": "text of the chat template",
    "system": "system prompt",
    "user": "user's message",
    "assistant": "model's answer",
    "tool result": "result of a tool",
}
_PERIODS = {1: "every second", 60: "every minute", 3600: "hourly", 86400: "daily", 604800: "weekly"}


def screen(explanation: Explanation) -> list[Section]:
    """Return the summary (causes and remedies), and with `--by` also "Who evicts whom".

    If a single request was named, return only the section on it.
    """
    return sections(explanation)[: 2 if explanation.groups else 1]


def sections(explanation: Explanation) -> list[Section]:
    """Return the causes over the trace with remedies, and the requests with most avoidable misses.

    If a single request was named, return only why its tokens missed.
    """
    if explanation.single:
        return [request_section(explanation, request) for request in explanation.requests]
    every = [_summary(explanation)]
    if explanation.groups:
        every.append(_who_evicts_whom(explanation))
    if explanation.requests:
        every.append(_requests(explanation))
    return every


def largest_causes(causes: Sequence[CauseTotal]) -> str:
    """Return the shares of input tokens that miss by cause, the largest first."""
    return ", ".join(
        f"{share(each.share)} {each.cause} ({_WORDS[each.cause]})"
        for each in sorted(causes, key=lambda each: -each.share)
        if share(each.share) != share(0.0)
    )


def _sizes(explanation: Explanation) -> Sizes:
    return Sizes(explanation.trace.block_size, explanation.model)


def _cache(explanation: Explanation) -> str:
    blocks = explanation.capacity_blocks
    if blocks is None:
        return "An infinite cache"
    pool = " in a pool of" if explanation.capacity_model == "engine" else " with"
    policy = "LRU" if explanation.policy == "lru" else explanation.policy
    return f"{policy}{pool} {_sizes(explanation).in_words(blocks)}"


def _caches(explanation: Explanation) -> str:
    """Return in words which caches serve hits: one, or one for each worker."""
    if explanation.workers == 1:
        return f"{_cache(explanation)} hits"
    cache = "an infinite cache" if explanation.capacity_blocks is None else _cache(explanation)
    workers = f"{count(explanation.workers)} workers"
    if explanation.router is not None:
        workers = f"{count(explanation.workers)} replicas behind {explanation.router}"
    return f"{workers}, each {cache}, hit"


def _summary(explanation: Explanation) -> Section:
    total = explanation.input_tokens
    lost = sum(each.tokens for each in explanation.causes if each.cause in AVOIDABLE)
    answer = (
        f"{_caches(explanation)} {share(explanation.hit_tokens / total)} of the input tokens;"
        f" {share(explanation.missed_tokens / total)} miss, {share(lost / total)} avoidably."
    )
    finite = explanation.capacity_blocks is not None
    hint = None if finite else "Nothing is evicted: name a capacity with --capacity-blocks."
    causes = tabulate(
        _CAUSES,
        [each for each in explanation.causes if each.tokens],
        {
            **_CAUSE_COLUMNS,
            "of input": lambda each: share(each.share),
            "requests": lambda each: count(each.requests),
            "": lambda each: bar(each.tokens / max(explanation.missed_tokens, 1), 12),
        },
        words=("meaning",),
    )
    ranked = enumerate(explanation.findings, start=1)
    findings = [_finding(explanation, rank, each) for rank, each in ranked]
    counted_as = hit_rate_in_words(explanation.definition)
    chart = partial(causes_chart, explanation)
    said = (answer, hint, _observed(explanation), *findings, counted_as)
    return Section.of("Summary", *said, causes, _parts(explanation), chart)


def _parts(explanation: Explanation) -> Table | None:
    """Return a table of the prompt parts in which prefixes break; None without known parts."""
    columns: Columns = {
        "part": lambda each: part_in_words(each.part),
        "causes": lambda each: ", ".join(each.causes[:2]),
        "tokens": lambda each: count(each.tokens),
        "of input": lambda each: share(each.share),
        "requests": lambda each: count(each.requests),
        "from token": lambda each: count(each.at_token),
    }
    title = "Parts of prompts in which prefixes break"
    rows, note = explanation.parts, "from token: median"
    if any({*each.causes} & {*NEW_HEADS} for each in rows):
        note += "; of growth and cold only new tokens of system prompt and tools count"
    return tabulate(title, rows, columns, note, words=("causes",)) if rows else None


def part_in_words(part: str) -> str:
    """Return the name of a prompt part as it follows "the": `definition of tool 3`."""
    tool, _, name = part.removeprefix("tool ").partition(" ")
    return _PARTS.get(part, f"definition of tool {tool}{f' ({name})' if name else ''}")


def by_category(explanation: Explanation, prompts: Prompts) -> tuple[Table, list[int]]:
    """Return a table of categories by avoidable misses, and for each row the category's number.

    That is its index in `prompts.categories`. Categories without requests are left out.
    """
    causes, groups = explanation.attribution, prompts.category
    count_of = partial(np.bincount, groups, minlength=len(prompts.categories))
    requests, inputs = count_of(), count_of(causes.input_tokens)
    missed, lost = count_of(causes.missed_tokens), count_of(avoidable_tokens(causes))
    ranked = [int(at) for at in np.argsort(-lost, kind="stable") if requests[at]]
    columns: dict[str, Callable[[int], str]] = {
        "category": lambda at: prompts.categories[at],
        "requests": lambda at: count(requests[at]),
        "input tokens": lambda at: count(inputs[at]),
        "missed": lambda at: share(missed[at] / max(inputs[at], 1)),
        "avoidably": lambda at: share(lost[at] / max(inputs[at], 1)),
        "avoidable tokens": lambda at: count(lost[at]),
    }
    return tabulate("Categories", ranked, columns), ranked


def of_category(explanation: Explanation, prompts: Prompts, category: int) -> Explanation:
    """Return the explanation with other `requests`: the worst ones of one category, at most ten.

    Worst: the most avoidable tokens missed. `category` is an index in `prompts.categories`.
    """
    lost = np.where(prompts.category == category, avoidable_tokens(explanation.attribution), -1)
    worst = [int(at) for at in np.argsort(-lost, kind="stable")[:_WORST] if lost[at] >= 0]
    explain = partial(explained_request, prompts, explanation.definition, explanation.attribution)
    requests = tuple(explain(at, explanation.gaps, explanation.broken) for at in worst)
    return replace(explanation, requests=requests)


def _observed(explanation: Explanation) -> str | None:
    """Return a sentence on hits that an engine reported, against predicted ones; None without."""
    observed = explanation.observed
    if observed is None:
        return None
    engine = "The engine reported"
    if observed.source == "validation":
        engine = f"`kvscope validate` measured, with {count(observed.engine_blocks or 0)} blocks,"
    off = ", ".join(
        f"{count(each.tokens)} {_GAPS[each.cause]}" for each in observed.gaps if each.tokens
    )
    return (
        f"{engine} {count(observed.observed_hit_tokens)} hit tokens for"
        f" {counted(observed.requests, 'request')}; {count(observed.predicted_hit_tokens)} are"
        f" predicted{f': {off}' if off else ''}."
    )


def _finding(explanation: Explanation, rank: int, finding: Finding) -> str:
    """Return a finding in words, after its `rank` (from 1): cause, cost in hits, and remedy."""
    at_most = "at most " if finding.cause in NEW_HEADS else ""
    text = f"{rank}. {finding.cause}, {at_most}-{100 * finding.share:.1f} pp"
    part = f" in the {part_in_words(finding.part)}" if finding.part else ""
    if finding.period_s is not None:
        every = units.duration_in_words(finding.period_s)
        often = _PERIODS.get(finding.period_s, f"every {every}")
        first = finding.at_token or 0
        text += f": tokens {count(first)}-{count(first + explanation.trace.block_size - 1)} of"
        text += f" shared prompts{part} change {often} ({count(finding.values or 0)} values)"
    elif finding.at_token is not None:
        if finding.place is not None:
            text += f" ({_PLACES[finding.place]})"
        text += f"{part} from token {count(finding.at_token)} on (median)"
    text += f", {counted(finding.requests, 'request')}: {finding.remedy}."
    if finding.needed_blocks is not None:
        needed = _sizes(explanation).in_words(finding.needed_blocks)
        text += f" LRU keeps at least half of these tokens with {needed}."
    return text


def _who_evicts_whom(explanation: Explanation) -> Section:
    """Return which groups (of `--by`) evict each group's blocks, and the group's hits in a quota.

    A quota is a cache of its own, with the group's share of the capacity by input tokens; hits in
    it are replayed. With several workers there are no quotas.
    """

    def others(group: GroupLosses) -> str:
        return ", ".join(
            f"{'itself' if each.name == group.name else each.name}"
            f" {share(each.tokens / group.evicted_tokens)}"
            for each in sorted(group.evicted_by, key=lambda each: -each.tokens)[:_MOST_NAMED]
            if each.tokens
        )

    groups, total = explanation.groups, explanation.input_tokens
    columns: dict[str, Callable[[GroupLosses], str]] = {
        "requests of": lambda each: each.name,
        "input": lambda each: share(each.input_tokens / total),
        "hits": lambda each: share(each.hit_tokens / each.input_tokens),
        "evicted": lambda each: share(each.evicted_tokens / each.input_tokens),
        "pushed out by": others,
    }
    alone = None
    if groups[0].quota_blocks is not None:
        columns["quota"] = lambda each: count(each.quota_blocks or 0)
        columns["hits in it"] = lambda each: share((each.quota_hit_tokens or 0) / each.input_tokens)
        apart = sum(each.quota_hit_tokens or 0 for each in groups)
        alone = (
            f"Each alone in blocks by its share of the input tokens (quota): {share(apart / total)}"
            f" of all input tokens hit instead of {share(explanation.hit_tokens / total)}."
        )
    return Section.of(
        "Who evicts whom",
        "A block is pushed out by what is written between its last use and the request that misses"
        " it, in proportion.",
        alone,
        tabulate("What is evicted of whose requests", groups, columns, words=("pushed out by",)),
        partial(who_evicts_whom_chart, groups),
    )


def who_evicts_whom_chart(groups: Sequence[GroupLosses]) -> style.Figure:
    """Draw a heat map: a row per group, with the share of its evictions caused by each group."""
    names = [each.name for each in groups]
    cells = []
    for group in groups:
        tokens = {each.name: each.tokens for each in group.evicted_by}
        total = group.evicted_tokens
        cells.append([tokens[name] / total if total else None for name in names])
    chart = style.heat_map(
        "Who evicts whom",
        ("pushed out by", style.labels(names)),
        ("evicted of", names),
        cells,
        "%{y}: %{z:.1%} pushed out by %{x}",
        zmin=0,
        zmax=1,
        colorbar={"tickformat": ".0%"},
        texttemplate="%{z:.0%}",
    )
    return chart.update_xaxes(type="category")


def _requests(explanation: Explanation) -> Section:
    def causes(request: ExplainedRequest) -> str:
        ranked = sorted(request.causes, key=lambda each: -each.tokens)
        return ", ".join(f"{each.cause} {count(each.tokens)}" for each in ranked[:2])

    table = tabulate(
        "Requests that lost the most tokens avoidably",
        explanation.requests,
        {
            "request": lambda each: str(each.request),
            "arrival": lambda each: units.duration_in_words(each.arrival_s),
            "input": lambda each: count(each.input_tokens),
            "hit": lambda each: count(each.predicted_hit_tokens),
            "missed": lambda each: count(each.missed_tokens),
            "largest causes": causes,
        },
        words=("largest causes",),
    )
    return Section.of("Requests", table)


def request_section(explanation: Explanation, request: ExplainedRequest) -> Section:
    """Return why tokens of one request missed, and the prefix tree around its prompt."""
    answer = f"{_caches(explanation)} {count(request.predicted_hit_tokens)} of the"
    answer += f" {count(request.input_tokens)} input tokens of request {request.request};"
    answer += f" {count(request.missed_tokens)} miss."
    sentences = [answer]
    if request.shared_with is not None:
        sentences.append(
            f"Its first {count(request.shared_tokens)} tokens were computed before; request"
            f" {request.shared_with} used the last of them before."
        )
    else:
        sentences.append("No earlier prompt begins as this one does.")
    if request.previous_turn is not None:
        sentences.append(
            f"It shares {count(request.common_tokens)} tokens with its previous turn, request"
            f" {request.previous_turn}."
        )
    if request.part is not None:
        sentences.append(f"Its prefix breaks in the {part_in_words(request.part)}.")
    if request.last_use is not None and request.idle_s is not None:
        since = units.duration_in_words(request.idle_s)
        text = (
            f"Evicted blocks were last used {since} earlier by request {request.last_use};"
            f" {counted(request.written_blocks or 0, 'block')} were written since."
        )
        if request.needed_blocks is not None and explanation.capacity_blocks is not None:
            more = request.needed_blocks - explanation.capacity_blocks
            text += f" LRU would have kept them with {_sizes(explanation).in_words(more)} more."
        sentences.append(text)
    tokens = {each.cause: count(each.tokens) for each in request.causes}
    sentences += [
        f"Request {each.request} was still computing {tokens[each.cause]} tokens."
        if each.cause == "in-flight"
        else f"{tokens[each.cause]} tokens were {_WORDS[each.cause]}, last by request"
        f" {each.request}."
        for each in request.computed_by
    ]
    if request.observed_hit_tokens is not None:
        off = ", ".join(f"{count(each.tokens)} {_GAPS[each.cause]}" for each in request.gaps)
        text = f"Observed: {count(request.observed_hit_tokens)} hit tokens"
        sentences.append(f"{text}; {off}." if off else f"{text}, as predicted.")
    tree = partial(prefix_tree, request, explanation.trace.block_size)
    title = f"Request: {request.request}"
    missed = "Tokens that miss, by cause"
    causes = tabulate(missed, request.causes, _CAUSE_COLUMNS, words=("meaning",))
    return Section.of(title, *sentences, causes if request.causes else None, tree)


def causes_chart(explanation: Explanation) -> style.Figure:
    """Draw the share of the input tokens that missed for each cause, avoidable ones first."""
    missed = [each for each in explanation.causes if each.tokens]
    known = sorted(missed, key=lambda each: each.cause not in AVOIDABLE)
    groups = {
        kind: [each.share if (each.cause in AVOIDABLE) == avoidable else None for each in known]
        for kind, avoidable in (("avoidable", True), ("unavoidable", False))
    }
    title, names = _CAUSES, [each.cause for each in known]
    height, colours = 140 + 28 * len(known), (style.VERMILION, style.GREY)
    chart = style.bars(title, "input tokens", "", names, groups, height=height, colours=colours)
    return chart.update_xaxes(tickformat=".1~%").update_layout(barmode="stack")


class _Node(NamedTuple):
    """A rectangle of the prefix tree, by its unique `name`; `above` is its parent's name, or "".

    `label` is its text, in the colour `ink`. The rectangle is as wide as its children and `width`
    together: 4 at the prompt's end, 1 + log2(n) for n other requests that branch off, else 0.
    """

    name: str
    above: str
    label: str
    width: float
    colour: str
    ink: str


_LOOKS = {  # colours of a rectangle and its text
    "hit": (style.BLUE, "white"),
    "computed before, missed": (style.ORANGE, "black"),
    "new": (style.VERMILION, "black"),
    "others": (style.GREY, "white"),
}


def prefix_tree(request: ExplainedRequest, block_size: int) -> style.Figure:
    """Draw the prefix tree along one prompt, and where earlier requests branch off."""
    hit, inputs = request.predicted_hit_tokens, request.input_tokens
    known = hit + sum(each.tokens for each in request.causes if each.cause in COMPUTED)
    leaving = {min(each.blocks * block_size, inputs): each for each in request.branches}
    ends = sorted({*leaving, hit, known, inputs} - {0})
    nodes: list[_Node] = []
    begin, above = 0, ""
    for end in ends:
        state = "hit" if end <= hit else "computed before, missed" if end <= known else "new"
        label = f"tokens {count(begin)}-{count(end)}: {state}"
        width = _OWN_WIDTH if end == inputs else 0.0
        nodes.append(_Node(str(end), above, label, width, *_LOOKS[state]))
        if end in leaving and end < inputs:
            branch = leaving[end]
            label = f"{counted(branch.requests, 'request')} leave here, last {branch.latest}"
            if branch.requests == 1:
                label = f"request {branch.latest} leaves here"
            width = 1 + log2(branch.requests)
            nodes.append(_Node(f"{end} others", str(end), label, width, *_LOOKS["others"]))
        begin, above = end, str(end)
    title = f"Prefix tree around request {request.request} (grey: other requests leave it)"
    chart = style.figure(title, "", "", height=120 + 60 * len(ends))
    chart.add_icicle(
        ids=[each.name for each in nodes],
        labels=[each.label for each in nodes],
        parents=[each.above for each in nodes],
        values=[each.width for each in nodes],
        branchvalues="remainder",
        marker={"colors": [each.colour for each in nodes]},
        textfont={"color": [each.ink for each in nodes]},
        leaf={"opacity": 1},
        tiling={"orientation": "v"},
        hovertemplate="%{label}<extra></extra>",
    )
    return style.nested(chart)
