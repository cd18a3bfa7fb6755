"""Findings from the causes of missed tokens: totals, remedies, single requests, observed hits.

`findings` ranks avoidable causes by the tokens lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path
from kvscope.core.records import Beside
from kvscope.core.trace import Prompts
from kvscope.replay.attribution import NO_REQUEST, Attribution
from kvscope.replay.causes import AVOIDABLE, Cause
from kvscope.replay.observed_hits import Gap, HitGaps, hit_gaps
from kvscope.replay.prompt_parts import NEW_HEADS, Break
from kvscope.replay.traffic import Walk, walk

_MOST_BRANCHES = 8
Place = Literal["first-prompt", "shortened", "history"]


class Branch(Struct, frozen=True):
    """Earlier requests that share the first `blocks` blocks with a request and no more.

    `requests` is their number, `latest` the number of the most recent one.
    """

    blocks: int
    requests: int
    latest: int


class CauseTotal(Struct, frozen=True):
    """The tokens that missed for one cause, as number and as `share` (0-1) of all input tokens.

    `requests` is the number of requests with such tokens.
    """

    cause: Cause
    tokens: int
    share: float
    requests: int


class PoolHits(Struct, frozen=True):
    """LRU's hits in the KV pools of a deployment, and the causes of misses, as in `explain`.

    The engine is simulated if kvscope supports it. `router` assigns requests to several `workers`;
    None with one worker, or if the trace names the worker of each request.
    """

    token_hit_rate: float
    causes: tuple[CauseTotal, ...]
    workers: int
    router: str | None
    hit_tokens: Beside[Int64s]  # of each request

    @property
    def rejected_requests(self) -> int:
        """The requests that are longer than a pool."""
        return next(each.requests for each in self.causes if each.cause == "rejected")


class RequestCause(Struct, frozen=True):
    """A cause of one request's misses, and the tokens that missed for it."""

    cause: Cause
    tokens: int


class ComputedBy(Struct, frozen=True):
    """The last earlier `request` that used the missed tokens, and the `cause` of the miss."""

    cause: Cause
    request: int


class GapTotal(Struct, frozen=True):
    """Tokens (0 or more) by which observed hits are fewer, or more, for one cause: see `Gap`."""

    cause: Gap
    tokens: int


class ExplainedRequest(Struct, frozen=True):
    """Why tokens of one request missed; `causes` add up to `missed_tokens`.

    The first `shared_tokens` had been computed before; `shared_with` is the last request to use the
    deepest of their blocks. The first `common_tokens` are also in `previous_turn`. `last_use` is
    the last request to use the first evicted block, `idle_s` earlier; `written_blocks` were written
    since, and LRU with `needed_blocks` keeps all evicted blocks. None: no such request, or unknown.
    `branches` are points where most earlier prompts diverge from it, `computed_by` requests whose
    tokens it could not use. `part` is the kind of the prompt part in which its prefix breaks.
    """

    request: int
    arrival_s: float
    input_tokens: int
    predicted_hit_tokens: int
    observed_hit_tokens: int | None
    missed_tokens: int
    shared_tokens: int
    shared_with: int | None
    previous_turn: int | None
    common_tokens: int | None
    last_use: int | None
    idle_s: float | None
    written_blocks: int | None
    needed_blocks: int | None
    causes: tuple[RequestCause, ...]
    branches: tuple[Branch, ...] = ()
    computed_by: tuple[ComputedBy, ...] = ()
    gaps: tuple[GapTotal, ...] = ()
    part: str | None = None


class Finding(Struct, frozen=True):
    """An avoidable cause of misses: the tokens and requests that it costs, and its remedy.

    `needed_blocks` is the capacity with which LRU keeps at least half of the tokens; only for
    evictions of an LRU cache. `at_token` is the median token at which prefixes break; for
    `periodic`, the start of the block that changes every `period_s` seconds and had `values`
    contents. `place` is the edit of a diverged turn: a shortened history, or a change in the first
    prompt of the conversation or in the history after it. `part` is the kind of prompt part in
    which most of the tokens are lost (see `Part`); None where the trace names no parts.
    """

    cause: Cause
    tokens: int
    share: float
    requests: int
    remedy: str
    at_token: int | None = None
    needed_blocks: int | None = None
    period_s: int | None = None
    values: int | None = None
    place: Place | None = None
    part: str | None = None


class Observed(Struct, frozen=True):
    """Hits that an engine reported, against those predicted, over the `requests` that have both.

    Hits were reported in the `trace`, or in a `validation` on an engine with `engine_blocks`.

    `observed_hit_tokens` = `predicted_hit_tokens` - `fewer_tokens` + `more_tokens` +
    `unseen_tokens`. `fewer`: predicted, but missed. `more`: computed before and predicted to miss,
    but hit. `unseen`: hit, though no earlier request of the trace computed them: cached before it
    began. `gaps` has the same tokens by cause.
    """

    requests: int
    predicted_hit_tokens: int
    observed_hit_tokens: int
    fewer_tokens: int
    more_tokens: int
    unseen_tokens: int
    source: Literal["trace", "validation"] = "trace"
    engine_blocks: int | None = None
    gaps: tuple[GapTotal, ...] = ()


def hit_gaps_of(
    prompts: Prompts, definition: HitDefinition, causes: Attribution, measured: Int64s | None
) -> HitGaps | None:
    """Return why observed hits differ from predicted ones; None where no hits were observed.

    Hits `measured` in a validation (tokens; R entries, -1: none) count only if the trace has none.
    """
    if prompts.measurements is not None and _are_reported(prompts):
        measured = prompts.measurements.cached_tokens.astype(np.int64)
    if measured is None or not (measured >= 0).any():
        return None
    return hit_gaps(prompts, definition, causes, measured)


def _are_reported(prompts: Prompts) -> bool:
    """Return whether the trace has observed hits."""
    reported = prompts.measurements
    return reported is not None and bool((reported.cached_tokens >= 0).any())


def observed_hits(
    prompts: Prompts, causes: Attribution, gaps: HitGaps, measured_blocks: int | None
) -> Observed:
    """Return observed against predicted hits.

    The trace reports the observed hits, or else a validation with a pool of `measured_blocks`.
    """
    known, by_cause = gaps.known, {name: int(of.sum()) for name, of in gaps.tokens.items()}
    reported = _are_reported(prompts)
    return Observed(
        requests=int(known.sum()),
        predicted_hit_tokens=int(causes.hit_tokens[known].sum()),
        observed_hit_tokens=int(gaps.observed_tokens[known].sum()),
        fewer_tokens=by_cause["routed"] + by_cause["in-flight"] + by_cause["evicted"],
        more_tokens=by_cause["kept"],
        unseen_tokens=by_cause["cached-before"],
        source="trace" if reported else "validation",
        engine_blocks=None if reported else measured_blocks,
        gaps=tuple(GapTotal(name, tokens) for name, tokens in by_cause.items()),
    )


def avoidable_tokens(causes: Attribution) -> Int64s:
    """Return the tokens of each request that missed for avoidable causes."""
    lost = np.zeros_like(causes.input_tokens)
    for cause in AVOIDABLE:
        lost += causes.tokens[cause]
    return lost


def cause_totals(causes: Attribution) -> tuple[CauseTotal, ...]:
    """Return all causes, those with the most tokens first."""
    total = int(causes.input_tokens.sum())
    known = [
        CauseTotal(
            cause, int(tokens.sum()), float(tokens.sum() / total), int(np.count_nonzero(tokens))
        )
        for cause, tokens in causes.tokens.items()
    ]
    return tuple(sorted(known, key=lambda each: -each.tokens))


_NEW_HEAD = "if only a name, an id or a time differs there, move it behind what all prompts share"
REMEDIES: dict[Cause, str] = {
    "drafter": "take vLLM 0.33, which shortens no hits for it, or compare `kvscope tune` with it"
    " and with --speculative none: hits against faster decoding",
    "evicted": "enlarge the cache, or let `kvscope tune` look for a policy that keeps them",
    "not-kept": "let `kvscope tune` compare values of --prefix-cache-retention-interval",
    "in-flight": "let follow-ups and requests with the same prompt wait for the earlier one; a"
    " faster engine computes it in time",
    "routed": "route by prefix: `kvscope fleet` compares routers",
    "salt": "give requests one cache salt if they may share a cache",
    "lora": "send requests with the same prompt to one adapter, or to the base model",
    "model": "keep conversations and shared prompts on one model",
    "periodic": "move what changes behind the shared part, or change it less often",
    "diverged": "append to the history",
    "template": "if answers stay as good, let the chat template only append to earlier messages;"
    " `kvscope hash --chat-template FILE` shows what that saves",
    "output-changed": "send outputs back as they were generated, reasoning included",
    "below-block": "take smaller blocks in the engine, if it has the trace's",
    "rejected": "enlarge the pool, or limit the length of prompts",
    **dict.fromkeys(NEW_HEADS, _NEW_HEAD),
}


_CHANGED: dict[Place, str] = {
    "first-prompt": "keep system prompt and tools the same, and in one order, through a"
    " conversation; times and ids belong behind them",
    "shortened": "compact or truncate histories rarely: all that follows is computed again",
    "history": "append to the history: do not edit or reorder earlier messages, and send reasoning"
    " back as generated",
}


_WORTH_CHANGING = 0.01  # of the input tokens


def findings(
    prompts: Prompts,
    causes: Attribution,
    broken: Mapping[Cause, Break],
    engine_block: int | None = None,
) -> tuple[Finding, ...]:
    """Return the causes with a remedy that cost at least 1 % of the input tokens, costliest first.

    `broken` has, by cause, where each prompt stops repeating tokens computed before (a break of its
    prefix). `engine_block` is the block size (tokens) of an engine, if known: where the trace's
    differs, the remedy of `below-block` says that nothing helps.
    """
    lost = {**causes.tokens, **{cause: each.tokens for cause, each in broken.items()}}
    remedies = {**REMEDIES}
    if engine_block not in {None, prompts.block_size}:
        remedies["below-block"] = (
            f"nothing, as the trace's blocks have {prompts.block_size} tokens, the engine's"
            f" {engine_block}"
        )
    every = [
        *(
            _finding(causes, cause, lost[cause], remedies[cause], broken.get(cause))
            for cause in remedies
            if cause not in {"evicted", "periodic", "diverged"}
        ),
        replace(
            _finding(causes, "evicted", lost["evicted"], REMEDIES["evicted"]),
            needed_blocks=_needed(causes),
        ),
        *_periodic(causes, prompts.block_size, broken["periodic"]),
        *_diverged(prompts, causes, broken["diverged"]),
    ]
    known = [each for each in every if each.share >= _WORTH_CHANGING]
    return tuple(sorted(known, key=lambda each: -each.tokens))


def _finding(
    causes: Attribution,
    cause: Cause,
    lost: Int64s,
    remedy: str,
    broken: Break | None = None,
) -> Finding:
    """Return the finding on the tokens `lost` (R) to a cause; `broken` are its breaks."""
    tokens, requests = int(lost.sum()), int(np.count_nonzero(lost))
    finding = Finding(cause, tokens, tokens / int(causes.input_tokens.sum()), requests, remedy)
    if not tokens or broken is None:
        return finding
    return replace(finding, at_token=int(np.median(broken.at[lost > 0])), part=broken.part(lost))


def _periodic(causes: Attribution, block_size: int, broken: Break) -> list[Finding]:
    """Return a finding for each place of a shared head that changes with time."""
    tokens = causes.tokens["periodic"]
    return [
        replace(
            _finding(
                causes,
                "periodic",
                np.where(causes.heads.change == number, tokens, 0),
                REMEDIES["periodic"],
                broken,
            ),
            at_token=change.blocks * block_size,
            period_s=change.period_s,
            values=change.values,
        )
        for number, change in enumerate(causes.heads.changes)
    ]


def _diverged(prompts: Prompts, causes: Attribution, broken: Break) -> list[Finding]:
    """Return a finding for each kind of edit: history shortened, first prompt changed, others."""
    shortened = prompts.input_tokens < prompts.input_tokens[prompts.parent]
    begun_with = prompts.full_blocks[prompts.conversation].astype(np.int64) * prompts.block_size
    first_prompt = causes.common_tokens < begun_with
    places: dict[Place, Bools] = {
        "shortened": shortened,
        "first-prompt": first_prompt & ~shortened,
        "history": ~first_prompt & ~shortened,
    }
    tokens = causes.tokens["diverged"]
    return [
        replace(
            _finding(causes, "diverged", np.where(which, tokens, 0), _CHANGED[place], broken),
            place=place,
        )
        for place, which in places.items()
    ]


def _needed(causes: Attribution) -> int | None:
    """Return the blocks with which LRU keeps half of the evicted tokens; None if unknown."""
    needed = causes.lookups.needed_blocks
    if not needed.any():
        return None
    order = np.argsort(needed, kind="stable")
    lost = np.cumsum(causes.tokens["evicted"][order])
    return int(needed[order][np.searchsorted(lost, lost[-1] / 2)])


def explained_request(
    prompts: Prompts,
    definition: HitDefinition,
    causes: Attribution,
    request: int,
    gaps: HitGaps | None,
    broken: Mapping[Cause, Break],
) -> ExplainedRequest:
    """Return why tokens of one request missed.

    `broken` has, by cause, where each prompt stops repeating tokens computed before.
    """
    costliest = max(broken.values(), key=lambda each: int(each.tokens[request]))
    is_request = np.arange(len(prompts.leaf)) == request
    lookups, arrival_s = causes.lookups, prompts.arrival_s

    def number(value: int) -> int | None:
        return None if value == NO_REQUEST else int(value)

    evicted, needed = int(lookups.last_use[request]), int(lookups.needed_blocks[request])
    known = evicted != NO_REQUEST
    observed = NO_REQUEST if gaps is None else int(gaps.observed_tokens[request])
    return ExplainedRequest(
        request=request,
        arrival_s=float(arrival_s[request]),
        input_tokens=int(causes.input_tokens[request]),
        predicted_hit_tokens=int(causes.hit_tokens[request]),
        observed_hit_tokens=number(observed),
        missed_tokens=int(causes.missed_tokens[request]),
        shared_tokens=int(causes.shared_tokens[request]),
        shared_with=number(lookups.shared_with[request]),
        previous_turn=number(prompts.parent[request]),
        common_tokens=number(causes.common_tokens[request]),
        last_use=number(evicted),
        idle_s=float(arrival_s[request] - arrival_s[evicted]) if known else None,
        written_blocks=int(lookups.written_blocks[request]) if known else None,
        needed_blocks=needed or None,
        causes=tuple(
            RequestCause(cause, int(tokens[request]))
            for cause, tokens in causes.tokens.items()
            if tokens[request]
        ),
        branches=branches(walk(prompts, definition), request, _MOST_BRANCHES),
        computed_by=tuple(
            ComputedBy(each.cause, int(each.request[request]))
            for each in causes.elsewhere
            if causes.tokens[each.cause][request]
        ),
        gaps=tuple(
            GapTotal(cause, int(tokens[request]))
            for cause, tokens in (gaps.tokens if gaps else {}).items()
            if tokens[request]
        ),
        part=costliest.part(np.where(is_request, costliest.tokens, 0)),
    )


def branches(steps: Walk, request: int, most: int) -> tuple[Branch, ...]:
    """Return up to `most` branches off the path of `request`, those most used, by depth."""
    length = int(steps.length[request])
    path = np.empty(length, dtype=np.int32)
    write_path(steps.block_parent, int(steps.leaf[request]), path, 0, length)
    common = np.zeros(len(steps.block_parent), dtype=np.int32)
    common[path] = np.arange(1, length + 1)
    _inherit(steps.block_parent, common)
    shared = common[steps.leaf[:request]]
    requests = np.bincount(shared, minlength=length + 1)
    latest = np.zeros(length + 1, dtype=np.int64)
    latest[shared] = np.arange(request)  # the last one stays
    used = np.flatnonzero(requests[1:]) + 1
    chosen = np.sort(used[np.argsort(-requests[used], kind="stable")[:most]])
    return tuple(Branch(int(at), int(requests[at]), int(latest[at])) for at in chosen)


@kernel
def _inherit(block_parent: Int32s, common: Int32s) -> None:
    """Fill `common` (N + 1): the leading blocks that the path to each block shares with one path.

    The entries of blocks on that path are given; all others are 0 and become their parent's, so
    that 0 stays where nothing is shared.
    """
    for block in range(1, len(block_parent)):  # parents have lower numbers
        if common[block] == 0:
            common[block] = common[block_parent[block]]
