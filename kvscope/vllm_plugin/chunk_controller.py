"""A policy that orders the chunks of vLLM's CPU tier, driven by scheduler and tier.

The tier knows chunks by key alone. What a policy needs besides, the length of a conversation, its
class and the time, comes from the scheduler's requests in the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

from kvscope.learning.lane_plan import LanePlan, lane_at, lane_plan
from kvscope.learning.observer import Request
from kvscope.vllm_plugin.chunk_lanes import RUNNING, ChunkLanes, Key
from kvscope.vllm_plugin.policy_controller import PolicyController

GROUP_BYTES = 4  # of a key, behind the hash of the chunk's last block
MOST_ENDED = 65_536
Position = Callable[[Key], int | None]  # the token at which a chunk of a request ends


class _Ended(NamedTuple):
    """The hashes of a request's blocks, and where its chunks go."""

    hashes: Sequence[bytes]
    plan: LanePlan


class ChunkController(PolicyController):
    """Chooses the lane of each chunk, and the score of lanes; `attach` comes first.

    A chunk has `blocks_per_chunk` blocks of `block_size` tokens.
    """

    reverts = "vLLM's CPU tier evicts by LRU again"

    def __init__(self, *args: Any, blocks_per_chunk: int, **more: Any) -> None:
        self.chunks: ChunkLanes | None = None
        super().__init__(*args, **more)
        self.blocks_per_chunk = blocks_per_chunk
        self.chunk_tokens = self.block_size * blocks_per_chunk
        self._in_flight: dict[str, Request] = {}
        self._ended: dict[str, _Ended] = {}
        self._offered: dict[str, list[Key]] = {}  # by requests that have not left the tier
        self._above: dict[Key, Key | None] = {}  # of what they offered
        self._offers: dict[Key, int] = {}  # and how many of them did

    def attach(self, ranks: Mapping[Key, Any], evictable: Container[Key], capacity: int) -> None:
        """Begin with an empty tier of so many chunks; `ranks` and `evictable` are vLLM's own."""
        if self.learner is not None:
            self.learner.guard(capacity * self.blocks_per_chunk)
        self.chunks = ChunkLanes(
            ranks,
            evictable,
            lambda lane, idle_s: self.policy.score(lane, idle_s, self.p, self.table),
            self.policy.next_step_s if self.policy.stepwise else None,
            leaf=self.policy.evicts == "leaf",
        )
        if self.learner is not None:
            self.use(self.learner.table)
        self.score_anew()

    def score_anew(self) -> None:
        """Drop all scores: the table has changed."""
        if self.chunks is None:
            return
        lanes = self.policy.lanes
        if self.policy.by_category and self.learner is not None:
            lanes = len(self.learner.table)
        worths = [self.policy.score(lane, 0.0, self.p, self.table) for lane in range(lanes)]
        self.chunks.score_anew(min(worths), max(worths))

    def give_up(self) -> None:
        """Drop everything: the tier goes by vLLM's own LRU from now on."""
        self._requests.clear()
        self._in_flight.clear()
        self._forget_offers()
        self.chunks = None

    def arrived(self, request: Request) -> None:
        """Note the arrival, as other policies do."""
        super().arrived(request)
        self._in_flight[request.request_id] = request

    def stepping(self) -> None:
        """Advance the clock."""
        self._lanes.at(self.clock())

    def releasing(self, request: Request) -> None:
        """Plan the lanes of a request's chunks, which it leaves in the next step."""
        state = self._requests.get(request.request_id)
        if not request.is_finished():
            return
        self._in_flight.pop(request.request_id, None)
        if state is None:
            return
        turn, cuts = self.turn(request, state)
        chunk_cuts = [cut // self.blocks_per_chunk for cut in cuts]
        plan = lane_plan(self.policy, turn, chunk_cuts, self.chunk_tokens, self.p)
        self._ended[request.request_id] = _Ended(request.block_hashes, plan)
        if len(self._ended) > MOST_ENDED:  # the tier never heard of these
            del self._ended[next(iter(self._ended))]
        self.end(request, state)

    @property
    def _lanes(self) -> ChunkLanes:
        if self.chunks is None:
            raise RuntimeError("no tier is attached")
        return self.chunks

    # What the tier notes, after its own LRU has.

    def offered(self, keys: Sequence[Key], request_id: str, position: Position) -> None:
        """Note which chunks those are continued from that a request is about to write."""
        request = self._in_flight.get(request_id)
        hashes = request.block_hashes if request is not None else ()
        if request_id in self._ended:
            hashes = self._ended[request_id].hashes
        for key in keys:
            end, above = position(key), None
            block = (end or 0) // self.block_size - self.blocks_per_chunk
            if 0 < block <= len(hashes):
                above = hashes[block - 1] + key[-GROUP_BYTES:]
            self._above[key] = above
            self._offers[key] = self._offers.get(key, 0) + 1
        self._offered.setdefault(request_id, []).extend(keys)

    def inserted(self, key: Key) -> None:
        """Note a chunk that a running request writes."""
        self._lanes.gain(key, self._above.get(key))

    def accessed(self, keys: Sequence[Key]) -> None:
        """Note chunks that a running request found, and that got another rank by it."""
        for key in keys:
            self._lanes.move(key, RUNNING)

    def removed(self, key: Key) -> None:
        """Note that a store has failed."""
        self._lanes.lose(key)

    def finished(self, keys: Sequence[Key], request_id: str, position: Position) -> None:
        """Put the chunks that a request accessed into its lanes; the tier holds some of them.

        Those of a request that the scheduler did not announce stay where they are.
        """
        ended, lanes = self._ended.pop(request_id, None), self._lanes
        for key in self._offered.pop(request_id, ()):
            self._offers[key] -= 1
            if self._offers[key] == 0:
                del self._offers[key], self._above[key]
        for key in keys:
            place = None
            if ended is not None:
                chunk = (position(key) or self.chunk_tokens) // self.chunk_tokens
                place = lane_at(ended.plan, chunk)[1] + 1
            if key in lanes:
                lanes.move(key, place)

    def touched(self, keys: Sequence[Key]) -> None:
        """Note chunks that have got another rank, for whatever reason."""
        for key in keys:
            if key in self._lanes:
                self._lanes.move(key)

    def evictable(self, key: Key) -> None:
        """Note that nothing reads or writes a chunk any more."""
        self._lanes.offer(key)

    def pinned(self, key: Key) -> None:
        """Note that a chunk is being read."""
        self._lanes.keep(key)

    def emptied(self) -> None:
        """Note that the tier holds nothing any more."""
        self._lanes.clear()
        self._forget_offers()
        if self.learner is not None:
            self.learner.cleared()

    def choose(self, count: int, protected: Collection[Key]) -> list[Key] | None:
        """Return the next `count` chunks to evict, which are gone then; None without as many."""
        return self._lanes.choose(count, protected)

    def _forget_offers(self) -> None:
        self._ended.clear()
        self._offered.clear()
        self._above.clear()
        self._offers.clear()
