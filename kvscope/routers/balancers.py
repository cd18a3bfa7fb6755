"""Load balancers: by order, by session or by load; of a prompt they read at most its length."""

from __future__ import annotations

from typing import Any, ClassVar

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import (
    Dice,
    Prompt,
    Router,
    View,
    draw,
    least_loaded,
    less_busy_of_two,
    mix32,
)


class RoundRobin(Router):
    """Send request k to replica k modulo N.

    Source: NGINX, ngx_http_upstream_module, the default of equal weights.
    """

    name = "round-robin"
    aliases = ("rr",)
    summary = "one replica after the other"
    source = "every load balancer"
    sees = "order"

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the next replica in turn."""
        return prompt.request % view.replicas


class Random(Router):
    """Send each request to a replica drawn evenly.

    Source: sglang-router 0.3.2, `--policy random`.
    """

    name = "random"
    summary = "any replica, drawn evenly"
    source = "every load balancer"
    sees = "order"
    draws = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Dice, p: Float64s) -> int:
        """Return any of the N replicas, each with the same probability."""
        return draw(memory.dice, view.replicas)


class Session(Router):
    """Send all turns of a conversation to one replica, by a hash of its key.

    The key is the number of the conversation's first request, so it stays the same when the trace
    grows. Real routers hash a header: they choose other replicas, but spread sessions as evenly.
    Source: vLLM production-stack a6c01db0, src/vllm_router/routers/routing_logic.py
    (SessionRouter).
    """

    name = "session"
    aliases = ("session-affinity",)
    summary = "all turns of a conversation to one replica"
    source = "session affinity by header or cookie"
    sees = "order"
    needs = "keys"

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the replica that the conversation's key hashes to."""
        return (mix32(prompt.key) * view.replicas) >> 32


class LeastRequests(Router):
    """Send each request to the replica with fewest in flight; of equals, with fewest sent so far.

    Source: Envoy, load balancing policies, weighted least request (all hosts compared).
    """

    name = "least-requests"
    summary = "the replica with the fewest requests in flight"
    source = "Envoy, NGINX least_conn"
    sees = "load"

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the least loaded replica."""
        return least_loaded(view.own.in_flight, view.own.processed)


class PowerOfTwo(Router):
    """Draw two replicas and send the request to the one with fewer in flight; of equals the first.

    Source: smg 1.13 (lightseekorg/smg), model_gateway/src/policies/power_of_two.rs, with
    `--power-of-two-load-metric requests` of its launcher, wheel 1.13.0. Under this policy the older
    sglang-router 0.3.2 counts no requests: it draws, unless workers report tokens.
    """

    name = "power-of-two@1.13"
    aliases = ("power-of-two", "p2c")
    summary = "the less busy of two replicas drawn"
    source = "smg 1.13, power_of_two"
    sees = "load"
    draws = True

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Dice, p: Float64s) -> int:
        """Return the less busy of two different replicas."""
        return less_busy_of_two(view.own.in_flight, memory.dice)

    def flags(self) -> tuple[str, ...]:
        """Return the options of `python -m smg.launch_router`."""
        return ("--policy power_of_two", "--power-of-two-load-metric requests")


_FULL_PENALTY = 6.0
_RELAXED_USAGE = 0.5


class VllmDp(Router):
    """Send each request to the engine with the fewest requests; queues weigh more at high KV usage.

    score = max(in flight, waiting + running) + 6 * waiting * max(0, KV usage - 0.5), the lowest
    wins; of equals the first from engine k mod N on, for request k. In flight is the front-end's
    own count; waiting, running and KV usage are the coordinator's, published every `scrape_s`
    seconds (a parameter of this router), and waiting grows by one with each request sent since.
    Caches play no part. One front-end process is assumed. Earlier releases used 4 * waiting +
    running.
    Source: vLLM 0.32.0, vllm/v1/engine/core_client.py (DPLBAsyncMPClient), coordinator.py.
    """

    name = "vllm-dp@0.32"
    aliases = ("vllm-dp",)
    summary = "fewest requests; waiting ones more if full"
    source = "vLLM 0.32.0"
    sees = "load"
    counts_blocks = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("scrape_s", 0.1, "how often engines tell their load"),
    )

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the engine of the lowest score."""
        own, scraped = view.own, view.scraped
        best, lowest = 0, 0.0
        for turn in range(view.replicas):
            engine = (prompt.request + turn) % view.replicas
            sent = own.processed[engine] - scraped.processed[engine]
            waiting = scraped.waiting[engine] + sent
            usage = min(scraped.used_blocks[engine] / max(view.capacity_blocks, 1), 1.0)
            score = float(max(own.in_flight[engine], waiting + scraped.running[engine]))
            score += waiting * _FULL_PENALTY * max(0.0, usage - _RELAXED_USAGE)
            if turn == 0 or score < lowest:
                best, lowest = engine, score
        return best

    def flags(self) -> tuple[str, ...]:
        """Return the option of `vllm serve`, with N as a placeholder for the number of engines."""
        return ("--data-parallel-size N",)


def _requests_of(view: View, rank: int) -> int:
    """Return a rank's last reported requests plus those sent to it since."""
    own, scraped = view.own, view.scraped
    known = scraped.waiting[rank] + scraped.running[rank]
    return int(known + own.processed[rank] - scraped.processed[rank])


class SglangDp(Router):
    """Send each request to the rank with the fewest requests; of equals to the first.

    A rank's requests are those running and waiting at its last report, and those sent since. Here
    all ranks report at the same times, every `scrape_s` seconds (a parameter of this router). In
    SGLang a rank reports at every prefill and every 15th decode step, and the balancer reads the
    reports again after 20 ms at the earliest: the default of `scrape_s`.
    Source: SGLang 0.5.23, srt/managers/data_parallel_controller.py (DPBudget, total_requests).
    """

    name = "sglang-dp@0.5"
    aliases = ("sglang-dp", "total-requests")
    summary = "fewest requests, as ranks last told"
    source = "SGLang 0.5.23, total_requests"
    sees = "load"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("scrape_s", 0.02, "how often ranks tell their load"),
    )

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the rank with the fewest requests: those reported, and those sent since."""
        best, fewest = 0, 0
        for rank in range(view.replicas):
            requests = _requests_of(view, rank)
            if rank == 0 or requests < fewest:
                best, fewest = rank, requests
        return best

    def flags(self) -> tuple[str, ...]:
        """Return the options of `sglang.launch_server`, with N as a placeholder for the ranks."""
        return ("--dp-size N", "--load-balance-method total_requests")


class SglangDpTokens(Router):
    """Send each request to the rank with the fewest tokens; of equals, the fewest requests.

    A rank's tokens are those in its pool that running requests use and those of waiting prompts,
    both at its last report (every `scrape_s` seconds), and those of the prompts sent since. Its
    requests are those running and waiting then, and those sent since.
    Source: SGLang 0.5.23, srt/managers/data_parallel_controller.py (DPBudget, total_tokens),
    scheduler_components/load_inquirer.py (num_total_tokens).
    """

    name = "sglang-dp-tokens@0.5"
    aliases = ("sglang-dp-tokens", "total-tokens")
    summary = "fewest tokens, as ranks last told"
    source = "SGLang 0.5.23, total_tokens"
    sees = "load"
    counts_blocks = True
    parameters = SglangDp.parameters

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Return the rank with the fewest tokens."""
        own, scraped = view.own, view.scraped
        best, fewest, fewest_tokens = 0, 0, 0
        for rank in range(view.replicas):
            tokens = scraped.used_blocks[rank] * view.block_size + scraped.waiting_tokens[rank]
            tokens += own.sent_tokens[rank] - scraped.sent_tokens[rank]
            requests = _requests_of(view, rank)
            fewer = tokens == fewest_tokens and requests < fewest
            if rank == 0 or tokens < fewest_tokens or fewer:
                best, fewest, fewest_tokens = rank, requests, tokens
        return best

    def flags(self) -> tuple[str, ...]:
        """Return the options of `sglang.launch_server`, with N as a placeholder for the ranks."""
        return ("--dp-size N", "--load-balance-method total_tokens")
