"""Definitions of column and section titles, which pages show on hover."""

from __future__ import annotations

_HITS = "hits of an infinite cache by the default definition"
_CATEGORY = "the trace's request type and the turn in its conversation: 1, 2, 3, 4-6, 7+"
_P = "nearest rank: this share of the values is no larger"
_MEANINGS = {
    "type, turn": _CATEGORY,
    "category": _CATEGORY,
    "next turn": "share of these requests with a later turn in their conversation",
    "of hits": f"share of all {_HITS}, in blocks",
    "of all hits": f"share of all {_HITS}, in tokens",
    "hit tokens": f"input tokens that need no computing: {_HITS}",
    "of reused blocks": "share of all repeated accesses to a block",
    "of all reuse": "share of all repeated accesses to a block",
    "reused blocks": "repeated accesses to a block",
    "never reused": "share of the blocks that no later request uses",
    "probability": "share of the requests with a later turn",
    "probability, settled": "the same, of requests early enough for the trace to show a later turn",
    "hit rate": "share of the input tokens that need no computing, by the definition above",
    "ideal": "hit rate of an infinite cache",
    "weight": "the unit that is counted: tokens, blocks or requests",
    "window": "which requests count",
    "partial": "whether a prompt's last block that is not full can be hit (vLLM: no)",
    "last-token rule": "on: at least one token is always computed, as in vLLM",
    "outputs": "carried: blocks of an output count once a later turn carries them",
    "hit": "tokens that need no computing",
    "evictions": "blocks evicted from the cache",
    "best": "the best policy that an engine can run",
    "optimum": "the most hits that any policy can reach: belady's, with knowledge of the future",
    "best known": "the best of all runs, oracles included; not proved to be the optimum",
    "vs lru": "difference from LRU",
    "p50": f"median; {_P}",
    **dict.fromkeys(("p80", "p90", "p95", "p99"), _P),
    "queued p95": "p95 TTFT with waiting, as the capacity model serves requests",
    "TEL (s)": "tail excess latency: time by which TTFT exceeds the SLO, over all requests",
    "over SLO": "requests whose TTFT exceeds the SLO",
    "xi (tokens)": "tokens that may stay uncached without breaking the SLO",
    "xi (ms)": "the TTFT of a prompt of that many tokens, none of them cached",
    "prefills/s": "requests per second that an engine could prefill if it did nothing else",
    "verdict": "whether an exponential distribution fits the waits well enough",
    "AIC": "Akaike information criterion minus the lowest one: lower is better",
    "prompts": "prompts that found the whole run computed before",
    "child runs": "reused runs that follow; many of them make a shared head",
    "tokens hit": "tokens that prompts found here",
    "mismatched": "requests whose hits differ from the prediction",
    "hits as predicted": "requests whose hits equal the prediction, to the token",
    "needs": "fewest replicas that meet the SLO behind this router",
    "within": "share of the requests within the SLO",
    "max/mean": "uncached tokens a minute: the busiest replica over the mean, in the median minute",
    "busiest": "prefill utilization of the busiest replica",
    "utilization": "share of the time in which the replica computes prompts",
    "not held": "hits of an infinite cache that no single replica holds",
    "best available": "hit rate if each request went to the replica that holds most of it",
    "not chosen": "hits that another replica held when the request arrived",
    "tokens off": "hit tokens by which the mismatched ones differ, summed",
    # titles of sections
    "Contribution": "which requests make the hits: first or later turns, by type",
    "Last touch": "for reused blocks, the request that touched them last before",
    "Skew": "how unevenly reuse is spread over blocks and users",
    "Reuse gaps": "time between two successive accesses of a block",
    "Lifetimes": "time from a block's first to its last access; 0 if it is never reused",
    "Stability": "how much windows of the trace differ from each other",
    "Working set": "at each moment, the blocks that are used again later",
    "Where in the prompt": "start offset and share of the request, and what caching it would hit",
    "Hottest prefixes": "what many prompts begin with, by the hashes of the trace",
    "Misses": "what became of the input tokens under LRU",
    "Definitions": "one trace has as many hit rates as there are definitions of a hit",
    "Time to first token": "from a request's arrival to its first output token",
    "TTFT by category": "the categories whose TTFT a policy improves, and those it makes worse",
    "Effect of xi": "xi: tokens that may stay uncached without breaking the SLO",
}


def meaning(title: str) -> str | None:
    """Return the definition of a column's or section's title; None if it needs none."""
    return _MEANINGS.get(title)
