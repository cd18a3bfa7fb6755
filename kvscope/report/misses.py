"""Why input tokens missed: the causes over a trace, what to change, and single requests."""

from __future__ import annotations

from functools import partial

from kvscope.app.documents.explain import explain_document
from kvscope.app.explain import AVOIDABLE, ExplainedRequest, Explanation, Finding
from kvscope.core import units
from kvscope.replay.attribution import Cause
from kvscope.report import style
from kvscope.report.report import Report
from kvscope.report.section import Section, Table, bar, tabulate
from kvscope.report.words import Sizes, count, counted, definition_in_words, share

SECTIONS = ("summary", "requests")
"""What `--section` of `kvscope explain` takes."""

_WORDS: dict[Cause, str] = {
    "evicted": "computed before, then evicted",
    "diverged": "the previous turn's prompt was changed",
    "output-changed": "the previous turn's output was changed or left out",
    "growth": "new, after a shared prefix",
    "cold": "new from the first block on",
    "last-token": "full block with the prompt's last token",
    "below-block": "partial last block",
    "no-hash": "no block hashes in the trace",
    "rejected": "request longer than the pool",
}


def report(explanation: Explanation) -> Report:
    """Return the explanation in every form."""
    every = [_one(explanation)] if explanation.single else [_summary(explanation)]
    if not explanation.single and explanation.requests:
        every.append(_requests(explanation))
    return Report(
        "Misses",
        explanation.trace,
        document=lambda: explain_document(explanation),
        screen=lambda: every[:1],
        sections=lambda: every,
    )


def _sizes(explanation: Explanation) -> Sizes:
    return Sizes(explanation.trace.block_size, explanation.model)


def _cache(explanation: Explanation) -> str:
    """Return the cache in words."""
    blocks = explanation.capacity_blocks
    if blocks is None:
        return "An infinite cache"
    pool = "'s pool of" if explanation.setting.capacity_model == "engine" else " with"
    return f"{explanation.policy.name}{pool} {_sizes(explanation).in_words(blocks)}"


def _summary(explanation: Explanation) -> Section:
    total = explanation.input_tokens
    lost = sum(each.tokens for each in explanation.causes if each.cause in AVOIDABLE)
    answer = (
        f"{_cache(explanation)} hits {share(explanation.hit_tokens / total)} of the input tokens;"
        f" {share(explanation.missed_tokens / total)} miss, {share(lost / total)} avoidably."
    )
    finite = explanation.capacity_blocks is not None
    hint = None if finite else "Nothing is evicted: name a capacity with --capacity-blocks."
    causes = tabulate(
        "Input tokens that miss, by cause",
        [each for each in explanation.causes if each.tokens],
        {
            "cause": lambda each: each.cause,
            "meaning": lambda each: _WORDS[each.cause],
            "tokens": lambda each: count(each.tokens),
            "of input": lambda each: share(each.share),
            "requests": lambda each: count(each.requests),
            "": lambda each: bar(each.tokens / max(explanation.missed_tokens, 1), 12),
        },
        words=("meaning",),
    )
    findings = [_finding(explanation, each) for each in explanation.findings]
    counted_as = f"Counted: {definition_in_words(explanation.setting.definition)}."
    chart = partial(causes_chart, explanation)
    return Section.of(
        "Summary", answer, hint, _observed(explanation), *findings, counted_as, causes, chart
    )


def _observed(explanation: Explanation) -> str | None:
    """Return what the engine reported against the prediction, None where it reported nothing."""
    observed = explanation.observed
    if observed is None:
        return None
    return (
        f"The engine reported {count(observed.observed_hit_tokens)} hit tokens for"
        f" {counted(observed.requests, 'request')}; {count(observed.predicted_hit_tokens)} are"
        f" predicted. {count(observed.fewer_tokens)} predicted ones missed,"
        f" {count(observed.more_tokens)} were kept longer than predicted, and"
        f" {count(observed.unseen_tokens)} were cached before the trace began."
    )


def _finding(explanation: Explanation, finding: Finding) -> str:
    """Return what costs hits and what to change, in words."""
    text = f"{finding.cause}: {share(finding.share)} of the input tokens,"
    text += f" {counted(finding.requests, 'request')}"
    if finding.at_token is not None:
        text += f", from token {count(finding.at_token)} on (median)"
    text += f": {finding.remedy}."
    if finding.needed_blocks is not None:
        needed = _sizes(explanation).in_words(finding.needed_blocks)
        text += f" LRU keeps at least half of these tokens with {needed}."
    return text


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
        "--request N explains one of them.",
        words=("largest causes",),
    )
    return Section.of("Requests", table)


def _one(explanation: Explanation) -> Section:
    (request,) = explanation.requests
    answer = f"{_cache(explanation)} hits {count(request.predicted_hit_tokens)} of the"
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
    return Section.of("Summary", *sentences, _table_of(request))


def _table_of(request: ExplainedRequest) -> Table | None:
    if not request.causes:
        return None
    return tabulate(
        "Tokens that miss, by cause",
        request.causes,
        {
            "cause": lambda each: each.cause,
            "meaning": lambda each: _WORDS[each.cause],
            "tokens": lambda each: count(each.tokens),
        },
        words=("meaning",),
    )


def causes_chart(explanation: Explanation) -> style.Figure:
    """Build the share of the input tokens that missed for each cause."""
    chart = style.figure("Input tokens that miss, by cause", "", "input tokens")
    known = [each for each in explanation.causes if each.tokens]
    chart.add_bar(
        x=[each.cause for each in known],
        y=[each.share for each in known],
        marker_color=style.VERMILION,
    )
    chart.update_yaxes(tickformat=".0%")
    return chart
