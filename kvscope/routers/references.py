"""Routers that know every queue and every cache: no program offers them."""

from __future__ import annotations

from typing import Any, ClassVar

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import Prompt, Router, View


class BestCached(Router):
    """Send each request to the replica that holds most of its prefix; of equals to the least busy.

    Knows every cache; load only breaks ties, so that everything may queue on one replica.
    """

    name = "best-cached"
    summary = "the longest prefix held, every cache known"
    source = "kvscope"
    sees = "truth"
    reference = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica with most leading blocks cached."""
        cached, own = view.truth.cached_blocks, view.own
        best = 0
        for replica in range(1, view.replicas):
            if cached[replica] != cached[best]:
                better = cached[replica] > cached[best]
            elif own.in_flight[replica] != own.in_flight[best]:
                better = own.in_flight[replica] < own.in_flight[best]
            else:
                better = own.processed[replica] < own.processed[best]
            if better:
                best = replica
        return best


class MinTtft(Router):
    """Send each request where wait and prefill end first; of equals, where fewest were sent.

    Knows every queue and every cache: a bound for routers that estimate either, greedy and so not
    the optimum.
    Source: Mooncake (FAST'25), Algorithm 1, without transfers and with true times.
    """

    name = "min-ttft"
    summary = "the soonest first token, queues and caches known"
    source = "Mooncake, FAST'25, Algorithm 1, with the truth"
    sees = "truth"
    reference = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica with the shortest wait and prefill together."""
        truth, processed = view.truth, view.own.processed
        best, soonest = 0, truth.wait_s[0] + truth.prefill_s[0]
        for replica in range(1, view.replicas):
            ttft_s = truth.wait_s[replica] + truth.prefill_s[replica]
            sooner = ttft_s < soonest - 1e-12
            even = ttft_s <= soonest + 1e-12
            if sooner or (even and processed[replica] < processed[best]):
                best, soonest = replica, min(ttft_s, soonest)
        return best


_THRESHOLD, _TRANSFER = 0, 1


class MooncakeConductor(Router):
    """Send each request where queue, copy and prefill are estimated to end first.

    best is the longest prefix on any replica. A replica whose own prefix is shorter than best /
    kvcache_balancing_threshold would first copy the rest of it from there; others compute the
    missing blocks. Estimates are exact here: queue, prefills and caches are known. A copy delays
    the prefill and leaves the prefix in both caches; it loads neither network nor the source. Equal
    estimates: the first of the replicas with the fewest requests so far. Left out: the choice of a
    decode instance, rejection of requests that would miss the SLO, and copies of hot blocks to
    hosts that no request goes to. A reference: Mooncake's released conductor only looks prefixes
    up, so no available program chooses by this rule.
    Source: Mooncake, FAST'25, Algorithm 1 and sections 4.1 and 4.2; the paper gives no value of the
    threshold, and 100 GB/s at 328 kB a token (Llama-2 70B) are 300,000 tokens a second.
    """

    name = "mooncake@fast25"
    aliases = ("mooncake",)
    summary = "least estimated TTFT; copies prefixes if that pays"
    source = "Mooncake, FAST'25, Algorithm 1"
    sees = "truth"
    reference = True
    copies = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "kvcache_balancing_threshold",
            2.0,
            "copy a prefix so many times as long as a replica's own",
            low=1.0,
            search=(1, 2, 4, 8, 16),
        ),
        Parameter(
            "transfer_tokens_per_s", 300_000.0, "tokens of KV that a copy moves per s", low=1.0
        ),
    )

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica with the least estimated TTFT; write its copy into `view.fetch`."""
        truth, processed, fetch = view.truth, view.own.processed, view.fetch
        longest = 0
        for replica in range(1, view.replicas):
            if truth.cached_blocks[replica] > truth.cached_blocks[longest]:
                longest = replica
        best_blocks = truth.cached_blocks[longest]
        chosen, soonest = 0, 0.0
        for replica in range(view.replicas):
            own_blocks, copy_s = truth.cached_blocks[replica], 0.0
            prefill_s = truth.prefill_s[replica]
            copies = best_blocks > own_blocks * p[_THRESHOLD]
            if copies:
                lacking_tokens = (best_blocks - own_blocks) * view.block_size
                copy_s = lacking_tokens / p[_TRANSFER]
                prefill_s = truth.prefill_s[longest]
            ttft_s = truth.wait_s[replica] + copy_s + prefill_s
            sooner = replica == 0 or ttft_s < soonest - 1e-12
            even = not sooner and ttft_s <= soonest + 1e-12
            if sooner or (even and processed[replica] < processed[chosen]):
                chosen, soonest = replica, ttft_s
                fetch.blocks[0] = best_blocks if copies else 0
                fetch.seconds[0] = copy_s
        return chosen
