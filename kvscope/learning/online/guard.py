"""Which candidate a policy goes by in an engine: shadows of the requests that it serves say.

An engine serves many requests at a time, a shadow one after the other, at once and in the order in
which they came. So requests wait here until they have ended, and those that came before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kvscope.learning.guard import Guard, Rule
from kvscope.learning.online.lane_heap import Scores
from kvscope.learning.online.recent_blocks import MOST_REQUESTS, Seen, Stretches
from kvscope.learning.online.shadow_cache import Shadows, Visit
from kvscope.policies.base import LanePolicy

MOST_WAITING = 1024
AT_ONCE = 4  # requests that one event may serve: an engine's step must not wait for a crowd

Tables = Sequence[Scores]


class _Waiting:
    """A request that no shadow has served yet."""

    __slots__ = (
        "arrival_s",
        "blocks",
        "ended",
        "forgotten_s",
        "output_tokens",
        "prompt_tokens",
        "seen",
        "served",
        "stretches",
        "tables",
    )

    def __init__(self, seen: Seen, prompt_tokens: int, arrival_s: float, tables: Tables) -> None:
        self.seen, self.prompt_tokens, self.arrival_s = seen, prompt_tokens, arrival_s
        self.tables, self.forgotten_s = tables, 0.0
        self.stretches = _placed(seen.stretches, 0)
        self.blocks, self.output_tokens = seen.followed, 0
        self.ended, self.served = False, True


class Watch:
    """Replays what an engine serves for every candidate, and goes by the one that `rule` takes.

    `kinds_of` (what is known of a request, prompt and output tokens) is its class for each
    candidate. `tables` are theirs, until `use`. Time is judged by stretches of `look_s`. The first
    of more than 1,024 requests at a time, and one that has been served for longer than from one
    refit to the next, is taken to have no output: others must not wait for it.
    """

    def __init__(
        self,
        policy: LanePolicy,
        block_size: int,
        capacity_blocks: int,
        tables: Tables,
        kinds_of: Callable[[Seen, int, int], Sequence[int]],
        rule: Rule,
        look_s: float,
        *,
        slots: int = MOST_REQUESTS,
    ) -> None:
        self.capacity_blocks, self.every = capacity_blocks, 1
        self.guard, self.look_s = Guard(len(tables), rule), look_s
        self._policy, self._block_size, self._slots = policy, block_size, slots
        self._xi_tokens = policy.values.get("xi_tokens", 0.0)
        self._tables, self._kinds_of = tables, kinds_of
        self._patience_s = rule.looks * look_s
        self._stretch: int | None = None
        self._next, self._now_s = 0, 0.0
        self._queue: deque[_Waiting] = deque()
        self._waiting: dict[int, _Waiting] = {}
        self._begin(0)

    @property
    def now(self) -> int:
        """The candidate in force."""
        return self.guard.now

    def use(self, tables: Tables) -> None:
        """Requests that come from now on are served by these tables."""
        self._tables = tables

    def at(self, now_s: float) -> bool:
        """It is now so late; whether another candidate is in force from now on."""
        stretch, before = int(now_s // self.look_s), self.guard.now
        if self._stretch is not None and stretch <= self._stretch:
            return False
        self._stretch = stretch
        return self.guard.decide(stretch) != before

    def arrive(
        self, seen: Seen, prompt_tokens: int, arrival_s: float, every: int, forgotten_s: float
    ) -> None:
        """A request is new; the rest as `Familiar` tells it."""
        self._next, self._now_s = seen.number + 1, arrival_s
        if every != self.every:  # it follows fewer blocks now, so all that was counted is void
            self.every = every
            self.guard.forget()
            self.clear()
            return
        one = _Waiting(seen, prompt_tokens, arrival_s, self._tables)
        one.forgotten_s = forgotten_s
        self._queue.append(one)
        self._waiting[seen.number] = one
        self._serve()

    def end(self, number: int, output_tokens: int, blocks: int, stretches: Stretches) -> None:
        """A request has been served, and touched so many blocks more."""
        one = self._waiting.get(number)
        if one is None:
            return
        one.stretches += _placed(stretches, one.blocks)
        one.blocks += blocks
        one.output_tokens, one.ended = output_tokens, True
        self._serve()

    def forget(self, number: int) -> None:
        """A request ends without having been served: what it names is touched, none of it new."""
        one = self._waiting.get(number)
        if one is not None:
            one.ended, one.served = True, False
            self._serve()

    def clear(self) -> None:
        """Nothing is cached any more; who is being served now leaves nothing either."""
        self._begin(self._next)

    def _begin(self, first: int) -> None:
        self._queue.clear()
        self._waiting.clear()
        self.shadows = Shadows(
            len(self._tables),
            self._policy,
            self._block_size,
            self.capacity_blocks,
            every=self.every,
            first=first,
            slots=self._slots,
        )

    def _serve(self) -> None:
        """Serve some that have ended, as long as nobody before them has not."""
        queue, late_s = self._queue, self._now_s - self._patience_s
        for _ in range(AT_ONCE):
            if not queue or not (
                queue[0].ended or len(queue) > MOST_WAITING or queue[0].arrival_s < late_s
            ):
                break
            one = queue.popleft()
            del self._waiting[one.seen.number]
            self.shadows.use(one.tables)
            visit = Visit(
                one.seen.number,
                one.arrival_s,
                one.stretches,
                one.blocks,
                one.prompt_tokens + one.output_tokens,
                self._kinds_of(one.seen, one.prompt_tokens, one.output_tokens),
                one.served,
                one.forgotten_s,
            )
            found = self.shadows.serve(visit)
            if one.served:
                cost = [self._beyond(one.prompt_tokens, leading) for leading in found]
                self.guard.computed(int(one.arrival_s // self.look_s), cost)

    def _beyond(self, prompt_tokens: int, leading: int) -> float:
        """Tokens beyond xi that a request computes where so many blocks are found."""
        look = max(prompt_tokens - 1, 0) // self._block_size  # one token at least is computed
        hit_tokens = min(leading * self.every, look) * self._block_size
        return max(prompt_tokens - hit_tokens - self._xi_tokens, 0.0)


def _placed(stretches: Stretches, start: int) -> list[tuple[int, int, int]]:
    """The same with their places on a path, from `start` on."""
    found = []
    for giver, blocks in stretches:
        found.append((start, start + blocks, giver))
        start += blocks
    return found
