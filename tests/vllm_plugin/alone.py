"""vLLM's cache manager as far as the plugin meets it, without vLLM: one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvscope.learning.learners import FittedTable
from kvscope.policies.base import LanePolicy
from kvscope.replay.traffic import Traffic
from kvscope.vllm_plugin.eviction_controller import EvictionController
from tests.vllm_plugin.fakes import FakeBlock, FakeRequest, LruQueue, asked_in


class Alone:
    """A pool of blocks whose free ones the plugin orders; prompts and outputs are cached.

    Source: vLLM 0.32.0, vllm/v1/core/kv_cache_manager.py and block_pool.py. `hits` has the leading
    blocks that each request found; `left`, in order, (the request then served, how many tokens end
    with it) of each cached block that left.
    """

    def __init__(
        self, policy: LanePolicy, block_size: int, blocks: int, fitted: FittedTable | None = None
    ) -> None:
        self.now_s = 0.0
        self.steering = EvictionController(
            policy, block_size, clock=lambda: self.now_s, fitted=fitted
        )
        self._size, self._number = block_size, 0
        self._cached: dict[Any, list[FakeBlock]] = {}
        self._of: dict[str, list[FakeBlock]] = {}
        self.hits: list[int] = []
        self.left: list[tuple[int, int]] = []
        pool = [FakeBlock(number) for number in range(blocks)]
        self.free = self.steering.attach(pool, pool, self._forget, self._of.__getitem__, LruQueue)

    def _forget(self, block: FakeBlock) -> None:
        """Drop a block's content."""
        self.left.append((self._number, block.block_hash_num_tokens or 0))
        alike = self._cached[block.block_hash]
        alike.remove(block)
        if not alike:
            del self._cached[block.block_hash]
        key, block.block_hash = block.block_hash, None
        self.steering.tell("uncached", [key])

    def arrive(self, request: FakeRequest, arrival_s: float) -> None:
        """Take in a request."""
        self.now_s = arrival_s
        self.steering.tell("arrived", request)

    def run(self, request: FakeRequest) -> None:
        """Admit it with the blocks of its prompt and of all its output."""
        self.steering.tell("stepping")
        look = (request.num_prompt_tokens - 1) // self._size
        found = []
        for key in request.block_hashes[:look]:
            if key not in self._cached:
                break
            found.append(self._cached[key][0])
        for block in found:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1
        self.hits.append(len(found))
        self.steering.tell("admitted", request.request_id, len(found) * self._size)
        self._of[request.request_id] = found
        self._grow(request, request.num_prompt_tokens)
        for tokens in range(request.num_prompt_tokens + 1, request.num_tokens):
            self._grow(request, tokens)
        self._number += 1

    def _grow(self, request: FakeRequest, tokens: int) -> None:
        """So many tokens of a request are computed."""
        blocks = self._of[request.request_id]
        before, full = len(blocks), tokens // self._size
        more = -(-tokens // self._size) - before
        for block in self.free.popleft_n(more) if more > 0 else ():
            if block.block_hash is not None:
                self._forget(block)
            block.ref_cnt = 1
            blocks.append(block)
        start = next((at for at, one in enumerate(blocks) if one.block_hash is None), full)
        for at in range(start, full):
            key = request.block_hashes[at]
            blocks[at].hold(key, (at + 1) * self._size)
            self._cached.setdefault(key, []).append(blocks[at])
        if start < full:
            self.steering.tell("cached", blocks, start, full)

    def end(self, request: FakeRequest) -> None:
        """Free its blocks, the last one first."""
        self.steering.tell("updating")
        self.steering.tell("releasing", request)
        free = []
        for block in reversed(self._of.pop(request.request_id)):
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                free.append(block)
        self.free.prepend_n([block for block in free if block.block_hash is None])
        self.free.append_n([block for block in free if block.block_hash is not None])
        self.steering.tell("released")

    def serve(self, of: Traffic, types: Sequence[int] | None = None) -> Alone:
        """Serve a whole trace, each request at its time and alone; they may say their `types`."""
        for number, (request, arrival_s) in enumerate(asked_in(of)):
            if types is not None:
                request.extra_args = {"kvscope_type": str(types[number]), "kvscope_turn": 1}
            self.arrive(request, arrival_s)
            self.run(request)
            self.end(request)
        return self
