"""Whatever vLLM forgets or frees, every block of the plugin's queue is used again.

vLLM's own scheduler runs with each policy; between its steps blocks lose their hashes or requests
end, in every way that vLLM has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import Gittins
from kvscope.policies.lru import ThresholdLru, Ttl
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.vllm_plugin.guarded_queue import GuardedQueue
from tests.conformance.conversations import TokenRequest
from tests.conformance.stepping import SLOTS, fitting
from tests.conformance.vllm_side import VllmScheduler
from tests.long import long

pytest.importorskip("vllm", reason="no vLLM here: make test-engine brings its own")
from vllm.v1.request import RequestStatus

pytestmark = pytest.mark.engine

BLOCKS, SIZE = 120, 16
XI = {"xi_tokens": 200.0, "next_prompt_tokens": 60.0}
GUARD = {"guard": 1.0}
POLICIES: dict[str, LanePolicy] = {
    "tlru": TLru(XI),
    "tlru any": TLru(XI, leaves="any"),
    "tlru guard": TLru(XI | GUARD),
    "tlru adaptive": TLru({"xi_percentile": 0.8, "next_prompt_tokens": 60}),
    "threshold-lru": ThresholdLru({"threshold_tokens": 150}),
    "threshold-lru guard": ThresholdLru({"threshold_tokens": 150} | GUARD),
    "ttl": Ttl({"ttl_s": 40}),
    "wa": Wa({"refit_s": 60}),
    "wa guard": Wa({"refit_s": 60} | GUARD),
    "gittins": Gittins({"xi_tokens": 200, "refit_requests": 16}),
}
FIXED = ("tlru", "tlru any", "threshold-lru")
"""Policies that have learned nothing by the time of a reset."""


def reset(vllm: VllmScheduler, _: np.random.Generator) -> None:
    """Forget everything, once nothing runs."""
    if not vllm.scheduler.running:
        assert vllm.scheduler.reset_prefix_cache()


def update_weights(vllm: VllmScheduler, _: np.random.Generator) -> None:
    """Preempt what runs, and forget everything: as a weight update that keeps its requests."""
    if not vllm.in_progress:
        assert vllm.scheduler.reset_prefix_cache(reset_running_requests=True)


def sleep(vllm: VllmScheduler, rng: np.random.Generator) -> None:
    """Abort all requests, and forget everything: as `sleep` at level 1 and 2."""
    vllm.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    update_weights(vllm, rng)


def abort(vllm: VllmScheduler, rng: np.random.Generator) -> None:
    """End some requests early, those that wait included."""
    names = [name for name in vllm.scheduler.requests if rng.random() < 0.4]
    vllm.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)


def evict(vllm: VllmScheduler, rng: np.random.Generator) -> None:
    """Forget single blocks, in use and free: as after a failed transfer."""
    chosen = {int(number) for number in rng.integers(1, BLOCKS + 1, 20)}
    vllm.scheduler.kv_cache_manager.evict_blocks(chosen)


def nothing(_: VllmScheduler, __: np.random.Generator) -> None:
    """Leave all to the traffic, which preempts."""


EVENTS = (reset, update_weights, sleep, abort, evict, nothing)


class Watched:
    """vLLM's scheduler with the plugin; each call to its queue of free blocks is checked."""

    def __init__(
        self, folder: Path, policy: LanePolicy, trace: list[TokenRequest], overlapped: bool = False
    ) -> None:
        self.vllm = VllmScheduler(
            folder,
            trace,
            SIZE,
            BLOCKS,
            overlapped,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=256,
            policy=policy,
        )
        self.pool = self.vllm.scheduler.kv_cache_manager.block_pool
        self.queue: Any = self.pool.free_block_queue
        assert isinstance(self.queue, GuardedQueue)
        self.taken: list[int] = []
        self._take = self.queue.popleft_n
        self.queue.popleft_n = self.take

    def take(self, count: int) -> list[Any]:
        """Take blocks; those without a hash come first."""
        free = self.queue.get_all_free_blocks()
        empty = sum(block.block_hash is None for block in free)
        hashed = {block.block_id for block in free if block.block_hash is not None}
        taken: list[Any] = self._take(count)
        numbers = [block.block_id for block in taken]
        assert sum(number not in hashed for number in numbers) == min(count, empty)
        self.taken += numbers
        return taken

    def check(self) -> None:
        """Check that exactly those blocks are free that no request has."""
        free = sorted(block.block_id for block in self.queue.get_all_free_blocks())
        unused = [x.block_id for x in self.pool.blocks if not x.ref_cnt and not x.is_null]
        assert free == unused
        assert self.queue.num_free_blocks == len(free)
        assert not self.vllm.steering.broken

    def run(self, event: Callable[..., None], every: int, seed: int = 1) -> None:
        """Step to the end of the trace, with the event after each so many steps."""
        rng, steps = np.random.default_rng(seed), 0
        while self.vllm.step():
            steps += 1
            if steps % every == 0:
                event(self.vllm, rng)
                self.check()
        self.check()
        assert self.queue.num_free_blocks == BLOCKS

    def use_all(self) -> None:
        """Serve prompts as many as fill the cache, and check that they take each block once."""
        self.taken.clear()
        start = self.vllm.now_s + 1
        self.vllm.trace = self.vllm.trace + [
            TokenRequest(tuple(range(at * 1000, at * 1000 + 10 * SIZE)), (1,), None, start)
            for at in range(BLOCKS // 10)
        ]
        self.run(nothing, math.inf)  # type: ignore[arg-type]
        assert sorted(self.taken) == list(range(1, BLOCKS + 1))
        assert all(block.block_hash for block in self.pool.blocks[1:])


@pytest.mark.parametrize(
    ("name", "event", "deferred"),
    [
        (name, event, deferred) if (i + j) % 2 == deferred else long(name, event, deferred)
        for (i, name), (j, event) in product(enumerate(POLICIES), enumerate(EVENTS))
        for deferred in (False, True)
    ],
)
def test_every_block_is_free_in_the_end_and_used_again(
    tmp_path: Path, name: str, event: Callable[..., None], deferred: bool
) -> None:
    """With blocks freed at once, and as steps that overlap with a connector defer it."""
    trace = fitting(150, 3, "rush", SIZE, BLOCKS)
    watched = Watched(tmp_path, POLICIES[name], trace, overlapped=deferred)
    watched.vllm.scheduler.defer_block_free = deferred
    watched.run(event, every=7)
    if event is nothing:
        assert sum(request.num_preemptions for request in watched.vllm.requests) > 0
    assert watched.vllm.scheduler.reset_prefix_cache()
    watched.use_all()


@pytest.mark.parametrize("name", FIXED)
def test_a_reset_cache_is_as_good_as_a_new_one(tmp_path: Path, name: str) -> None:
    """The same requests hit as many tokens as with a new scheduler."""
    long_chats = fitting(150, 3, "long prompts", SIZE, BLOCKS)
    new = Watched(tmp_path, POLICIES[name], long_chats)
    new.run(nothing, 100)
    hits = [new.vllm.hit_tokens[number] for number in range(len(long_chats))]
    assert sum(hits) > 0
    watched = Watched(tmp_path, POLICIES[name], fitting(150, 4, "long prompts", SIZE, BLOCKS))
    watched.run(nothing, 100)
    assert watched.vllm.scheduler.reset_prefix_cache()
    before, start = len(watched.vllm.trace), watched.vllm.now_s
    watched.vllm.trace += [
        TokenRequest(x.prompt, x.output, x.salt, x.arrival_s + start) for x in long_chats
    ]
    watched.run(nothing, 100)
    again = [watched.vllm.hit_tokens[before + number] for number in range(len(long_chats))]
    assert again == hits
