"""Explain why input tokens missed: one cause for each, over a whole trace and for single requests.

What to change follows from the causes: `findings` ranks them by the tokens lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.app.latency import timed
from kvscope.app.monitor import Monitor
from kvscope.app.requests import BASELINE, ExplainRequest
from kvscope.characterize.windows import round_windows
from kvscope.core.arrays import Int64s
from kvscope.core.errors import UsageError
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.models import Model
from kvscope.policies.base import Policy
from kvscope.replay.attribution import (
    NO_REQUEST,
    Attribution,
    Cause,
    attribute,
    look_up,
    lru_look_up,
)
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.stack_distances import lru_distances
from kvscope.replay.sweep import WINDOWS, serve_replay
from kvscope.replay.workload import ReplayRequest, Workload

MOST_REQUESTS = 10
_NEGLIGIBLE = 0.001  # of the input tokens: no finding
AVOIDABLE: tuple[Cause, ...] = ("evicted", "diverged", "output-changed", "rejected")
"""Causes that a larger cache or another client could remove."""


@dataclass(frozen=True, slots=True)
class CauseTotal:
    """The tokens that missed for one cause, in how many requests; `share` of all input tokens."""

    cause: Cause
    tokens: int
    share: float
    requests: int


@dataclass(frozen=True, slots=True)
class RequestCause:
    """A cause of misses of one request, and how many of its tokens it took."""

    cause: Cause
    tokens: int


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """Why tokens of one request missed; `causes` add up to `missed_tokens`.

    The first `shared_tokens` had been computed before; `shared_with` used the last of their blocks
    before. The first `common_tokens` are also those of `previous_turn`. `last_use` last used the
    first evicted block, `idle_s` earlier; `written_blocks` were written to the cache since, and
    LRU keeps all evicted blocks of the request with `needed_blocks`. None: there is none.
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


@dataclass(frozen=True, slots=True)
class Finding:
    """What costs hits, by how many tokens of how many requests, and what to change.

    `needed_blocks` is the capacity with which LRU keeps at least half of the tokens; only for
    evictions of an LRU cache. `at_token` is the median position where requests leave their history.
    """

    cause: Cause
    tokens: int
    share: float
    requests: int
    remedy: str
    at_token: int | None = None
    needed_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Hits that the engine reported, against those predicted, over the `requests` that have both.

    `observed_hit_tokens` = `predicted_hit_tokens` - `fewer_tokens` + `more_tokens` +
    `unseen_tokens`. `fewer`: predicted, but missed. `more`: predicted as evicted, but hit.
    `unseen`: hit, though no earlier request of the trace computed them: cached before it began.
    """

    requests: int
    predicted_hit_tokens: int
    observed_hit_tokens: int
    fewer_tokens: int
    more_tokens: int
    unseen_tokens: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The causes of all missed tokens of a trace under one policy at one capacity.

    `capacity_blocks` is None for an infinite cache. `requests` are the one that was asked for, or
    those that lost the most tokens to avoidable causes.
    """

    trace: Trace
    model: Model | None
    deployment: ResolvedDeployment | None
    setting: RunSetting
    policy: Policy
    capacity_blocks: int | None
    attribution: Attribution
    causes: tuple[CauseTotal, ...]
    findings: tuple[Finding, ...]
    requests: tuple[ExplainedRequest, ...]
    single: bool
    observed: Observed | None = None

    @property
    def input_tokens(self) -> int:
        """The input tokens of all requests."""
        return int(self.attribution.input_tokens.sum())

    @property
    def hit_tokens(self) -> int:
        """The input tokens that hit."""
        return int(self.attribution.hit_tokens.sum())

    @property
    def missed_tokens(self) -> int:
        """The input tokens that missed."""
        return self.input_tokens - self.hit_tokens


def explain(
    trace: Trace, prompts: Prompts, request: ExplainRequest, monitor: Monitor | None = None
) -> Explanation:
    """Return the cause of every missed token. Raises UsageError for an unknown request."""
    number = request.request
    if number is not None and number >= trace.requests:
        raise UsageError(
            f"the trace has {trace.requests:,} requests",
            where=f"--request {number}",
            remedy=f"name one from 0 to {trace.requests - 1}",
        )
    replayed, _ = timed(request.replayed, trace, prompts, monitor or Monitor())
    named = replayed.capacities.in_blocks(replayed.model, trace.block_size)
    capacity = named[0] if named else None
    setting, variant = replayed.setting, replayed.variants[0]
    workload = Workload(prompts, setting, round_windows(trace, WINDOWS))
    estimates = estimate_parameters(workload.request_traffic, workload.profile, setting.slo_s)
    policy = bind(variant, estimates)
    rejected = None
    if policy.name == BASELINE and setting.capacity_model == "cache":
        distances = lru_distances(prompts, setting.definition)
        lookups = lru_look_up(prompts, setting.definition, distances, capacity)
    else:
        done = serve_replay(workload, ReplayRequest(policy, capacity or 0)).served
        lookups = look_up(prompts, setting.definition, done.hit_blocks)
        if setting.capacity_model == "engine" and done.queued_ttft_s is not None:
            rejected = np.isnan(done.queued_ttft_s)
    causes = attribute(prompts, setting.definition, lookups, rejected=rejected)
    lost = _lost(causes)
    if number is not None:
        chosen = [number]
    else:
        worst = np.argsort(-lost, kind="stable")[:MOST_REQUESTS]
        chosen = [int(each) for each in worst if lost[each]]
    return Explanation(
        trace=trace,
        model=replayed.model,
        deployment=replayed.deployment,
        setting=setting,
        policy=policy,
        capacity_blocks=capacity,
        attribution=causes,
        causes=_totals(causes),
        findings=_findings(causes),
        requests=tuple(_one(prompts, causes, each) for each in chosen),
        single=number is not None,
        observed=observed_hits(prompts, causes),
    )


def observed_hits(prompts: Prompts, causes: Attribution) -> Observed | None:
    """Return the reported hits against the predicted ones; None where the trace reports none."""
    if prompts.measurements is None or not (prompts.measurements.cached_tokens >= 0).any():
        return None
    known = prompts.measurements.cached_tokens >= 0
    hits = prompts.measurements.cached_tokens[known].astype(np.int64)
    predicted = causes.hit_tokens[known]
    seen = np.maximum(causes.shared_tokens[known], predicted)
    return Observed(
        requests=int(known.sum()),
        predicted_hit_tokens=int(predicted.sum()),
        observed_hit_tokens=int(hits.sum()),
        fewer_tokens=int(np.maximum(predicted - hits, 0).sum()),
        more_tokens=int(np.maximum(np.minimum(hits, seen) - predicted, 0).sum()),
        unseen_tokens=int(np.maximum(hits - seen, 0).sum()),
    )


def _lost(causes: Attribution) -> Int64s:
    """Return the tokens of each request that missed for avoidable causes."""
    lost = np.zeros_like(causes.input_tokens)
    for cause in AVOIDABLE:
        lost += causes.tokens[cause]
    return lost


def _totals(causes: Attribution) -> tuple[CauseTotal, ...]:
    """Return all causes, those with the most tokens first."""
    total = int(causes.input_tokens.sum())
    known = [
        CauseTotal(
            cause, int(tokens.sum()), float(tokens.sum() / total), int(np.count_nonzero(tokens))
        )
        for cause, tokens in causes.tokens.items()
    ]
    return tuple(sorted(known, key=lambda each: -each.tokens))


_REMEDIES: dict[Cause, str] = {
    "evicted": "enlarge the cache, or let `kvscope tune` look for a policy that keeps them",
    "diverged": "append to the history: do not edit, reorder or compact earlier messages, and keep"
    " times and ids that change out of the prompt's head",
    "output-changed": "send outputs back as they were generated, reasoning included",
    "below-block": "take smaller blocks in the engine",
    "rejected": "enlarge the pool, or limit the length of prompts",
}


def _findings(causes: Attribution) -> tuple[Finding, ...]:
    """Return what can be changed, what costs the most tokens first."""
    return tuple(
        Finding(
            each.cause,
            each.tokens,
            each.share,
            each.requests,
            _REMEDIES[each.cause],
            at_token=_position(causes, each.cause),
            needed_blocks=_needed(causes) if each.cause == "evicted" else None,
        )
        for each in _totals(causes)
        if each.share >= _NEGLIGIBLE and each.cause in _REMEDIES
    )


def _position(causes: Attribution, cause: Cause) -> int | None:
    if cause not in {"diverged", "output-changed"}:
        return None
    return int(np.median(causes.common_tokens[causes.tokens[cause] > 0]))


def _needed(causes: Attribution) -> int | None:
    """Return the capacity with which LRU serves requests that lost half of the evicted tokens."""
    needed = causes.lookups.needed_blocks
    if not needed.any():
        return None
    order = np.argsort(needed, kind="stable")
    lost = np.cumsum(causes.tokens["evicted"][order])
    return int(needed[order][np.searchsorted(lost, lost[-1] / 2)])


def _one(prompts: Prompts, causes: Attribution, request: int) -> ExplainedRequest:
    """Return why tokens of one request missed."""
    lookups, arrival_s = causes.lookups, prompts.arrival_s

    def number(value: int) -> int | None:
        return None if value == NO_REQUEST else int(value)

    evicted, needed = int(lookups.last_use[request]), int(lookups.needed_blocks[request])
    known = evicted != NO_REQUEST
    measured = None if prompts.measurements is None else prompts.measurements.cached_tokens
    return ExplainedRequest(
        request=request,
        arrival_s=float(arrival_s[request]),
        input_tokens=int(causes.input_tokens[request]),
        predicted_hit_tokens=int(causes.hit_tokens[request]),
        observed_hit_tokens=None if measured is None else number(measured[request]),
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
    )
