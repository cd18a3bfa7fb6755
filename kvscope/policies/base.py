"""The contract of a policy: the attributes and methods that a file in this folder provides.

A policy decides which block is evicted first, in one of four shapes. A `LanePolicy` sorts blocks
into a few queues by recency and scores their heads; a `NextUsePolicy` knows which blocks the next
request needs; a `KeyPolicy` gives every block a number; a `QueuePolicy` is an algorithm of its own.
Their methods are plain functions of numbers and arrays: the simulator compiles them, tests run them
as they are, and an engine calls them one by one. So they use only code that numba can compile, and
nothing here imports numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import UsageError
from kvscope.core.parameters import Parameter, bound_values

Leaves = Literal["leaf", "any"]
Table: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float64]]

NEVER = 2**31 - 1  # stands for "no later request" where a request's number is expected
RECENT = 1024  # requests that an adaptive policy looks back on
ADAPT_EVERY = 256
EARLY = 1.0 - 1e-9  # times `LanePolicy.next_step_s`, which may be a rounding off
MOST_TOKENS = 1e15  # any number of tokens; kernels count in 64 bits
ENDS = -1  # stands for "no next turn" where the tokens of a next prompt are expected


class Turn(NamedTuple):
    """One served request, as far as a policy may see it.

    `request` is its number, from 0 in order of arrival. `history_tokens` is L: input and output.
    `category` counts from 0; where learned tables tell more classes apart, it is the class.
    `next_prompt_tokens` is for hindsight policies alone: the tokens that the next turn really
    adds, or -1 (`ENDS`) if there is none.
    """

    request: int
    arrival_s: float
    history_tokens: int
    category: int
    next_prompt_tokens: int


class Block(NamedTuple):
    """One cached block, as far as a policy may see it.

    `depth` counts from 0. `uses` counts touches since the block was inserted, that one included.
    `clock` is the key of the block that had been evicted last when this block was last touched.
    """

    depth: int
    uses: int
    clock: float


class Policy:
    """Declarations of a policy (class attributes), and its parameter values (`values`, by name).

    `leaves` names the blocks that may be evicted: "leaf" only those without a cached child, so that
    look-ups can reach every cached block; "any" all. `offers` has the other value of the two if a
    user may choose it; `evicts` is the value chosen. `makes_room` policies evict other blocks
    before a request's own, as an engine that makes room before it inserts; under other policies a
    request's new blocks may be evicted at once. `hindsight` marks oracles, which know the future
    and are never recommended, optimal or not. `scales`: a sample of the trace in a smaller cache
    behaves like the whole. `learner` names the folder of kvscope/learning that fits the policy's
    table, None without a table. `parameters` are those that the policy has; `refit` is the one of
    them that sets the interval between fits.
    """

    DOCUMENT: ClassVar[str] = "name summary source aliases hindsight leaves"
    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str]
    source: ClassVar[str]
    leaves: ClassVar[Leaves] = "any"
    offers: ClassVar[tuple[Leaves, ...]] = ()
    makes_room: ClassVar[bool] = False
    hindsight: ClassVar[bool] = False
    scales: ClassVar[bool] = True
    learner: ClassVar[str | None] = None
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    refit: ClassVar[Parameter | None] = None
    values: dict[str, float]

    def __init__(
        self, values: Mapping[str, float] | None = None, leaves: Leaves | None = None
    ) -> None:
        self.values = bound_values(self.name, self.parameters, values or {})
        if leaves is not None and leaves not in (self.leaves, *self.offers):
            raise UsageError(
                f"{self.name} cannot evict {leaves!r} blocks",
                where=f"{self.name}.leaves",
                remedy="take " + " or ".join(dict.fromkeys((self.leaves, *self.offers))),
            )
        self.evicts: Leaves = leaves or self.leaves

    @classmethod
    def runs_in_plugin(cls) -> bool:
        """Return whether kvscope's plugin for vLLM can run the policy."""
        return issubclass(cls, LanePolicy) and not cls.hindsight

    @property
    def guarded(self) -> bool:
        """Whether a guard reverts to LRU where the policy does worse."""
        return bool(self.values.get(GUARD.name))

    @property
    def reads_table(self) -> bool:
        """Whether the policy, with these values, reads a table that its learner fits."""
        return self.guarded if self.learner == REVERTING else self.learner is not None

    def settings(self) -> Float64s:
        """Return the parameter values as the array `p` of every method, in order of `parameters`.

        `parameters` is the class attribute that declares them.
        """
        return np.array([self.values[known.name] for known in self.parameters], dtype=np.float64)

    @property
    def refit_every(self) -> float:
        """The value of `refit` (seconds or requests); infinite for a policy without `refit`."""
        return self.values[self.refit.name] if self.refit else float("inf")


TTL = Parameter(
    "ttl_s",
    float("inf"),
    "seconds that a block may stay untouched before it is dropped, full or not",
)

GUARD = Parameter(
    "guard",
    0.0,
    "1: LRU rules until shadow caches show a sure gain, and again once it is gone; 0: no guard",
    high=1.0,
)

SLO_TOKENS = Parameter(
    "slo_tokens",
    0.0,
    "for the guard: tokens that a request can compute and wait for within the SLO, so that no more"
    " requests exceed them than under LRU; a policy without a xi gains by tokens beyond half of"
    " them; 0: not judged",
    high=MOST_TOKENS,
)
TOKENS_PER_S = Parameter(
    "tokens_per_s",
    0.0,
    "for the guard: tokens of prompts that the engine computes in a second, for how long requests"
    " wait; 0: not at all",
    high=MOST_TOKENS,
)
JUDGED = (SLO_TOKENS, TOKENS_PER_S)

REVERTING = "reverting"  # the learner whose table is one cell: the order in force
OWN_ORDER, LRU_ORDER = 0.0, 1.0

REFIT_S = 600.0
REFIT = Parameter(
    "refit_s",
    REFIT_S,
    "seconds between two fits of the policy's table, each to six times as long before it",
    low=60.0,
    high=1e9,
)


class PathPolicy(Policy):
    """A policy under which blocks last touched by the same request are evicted deepest first.

    All policies but queue algorithms are path policies, and can have a time to live.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (TTL,)

    @staticmethod
    def admits(turn: Turn, p: Float64s, table: Table) -> bool:
        """Return whether the new blocks of a request, `turn`, enter the cache."""
        return True


class LanePolicy(PathPolicy):
    """A policy of recency queues (lanes): evicts from the lane whose oldest block scores lowest.

    Within a lane, the blocks of the oldest request are evicted first, deepest first.
    """

    lanes: ClassVar[int] = 1
    by_category: ClassVar[bool] = False  # `lanes` for each category, each with a row of its table
    adaptive: ClassVar[bool] = False
    timeless: ClassVar[bool] = False  # scores depend on the lane and the table alone
    stepwise: ClassVar[bool] = False  # scores change with time at the steps of `next_step_s` alone

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (begin, lane): blocks of a path from depth `begin` to before `end` have this lane.

        The path is that of the prompt and output of `turn`. The scores must not rank a request's
        shallow blocks below its deep ones.
        """
        return 0, 0

    @staticmethod
    def score(lane: int, idle_s: float, p: Float64s, table: Table) -> float:
        """Return the score of a lane's oldest block, idle for `idle_s`; ties evict the older block.

        `table` is what the policy's learner has fitted. Each learner defines its rows and columns.
        """
        return 0.0

    @staticmethod
    def next_step_s(idle_s: float) -> float:
        """Return the idle time at which the score of a block idle for `idle_s` changes next.

        It is only called for policies with the class attribute `stepwise`; scores of the others may
        change at any time.
        """
        return idle_s

    @staticmethod
    def adapts(p: Float64s) -> bool:
        """Return whether the policy adapts with these parameter values.

        It is only called for policies with the class attribute `adaptive`. If it is True, the
        caller collects the uncached tokens of recent requests, and calls `adapt` with them.
        """
        return True

    @staticmethod
    def adapt(uncached_tokens: NDArray[np.int64], p: Float64s) -> None:
        """Change `p` of an `adaptive` policy by the uncached tokens of recent requests, ascending.

        It is called after every 256 requests (`ADAPT_EVERY`), with up to 1,024 (`RECENT`).
        """


class NextUsePolicy(PathPolicy):
    """An oracle: evicts blocks that are never hit, then those that the next hit does not need.

    Among needed and among unneeded blocks, the one with the latest next hit goes first; among
    blocks never hit, the older request's. A touch that cannot hit, as of a block that the
    last-token rule computes again, is no reason to keep a block: the request inserts it again
    anyway. Only leaves are evicted, and everything is admitted: blocks that no request hits are
    evicted at once. `needed` returns which blocks a request needs: here all that it can hit.
    """

    hindsight = True
    leaves = "leaf"

    def needed(self, input_tokens: Int32s, look: Int32s, block_size: int) -> Int32s:
        """Return how many leading blocks each of R requests needs to find cached.

        `look` (R) has the number of leading blocks that each can hit, and so the most that it can
        need. Needed blocks are evicted after those that the next hit does not need.
        """
        return look


class KeyPolicy(PathPolicy):
    """A policy that scores every block; the lowest goes first, of equals the older request's.

    `rising` policies have keys that depend on the present time and never fall as it passes.
    """

    rising: ClassVar[bool] = False
    counts_uses: ClassVar[bool] = False  # without it `Block.uses` is always 1

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Float64s, table: Table
    ) -> float:
        """Return the score of a block that `turn` touched last; it must not grow with depth."""
        raise NotImplementedError


class QueuePolicy(Policy):
    """A published algorithm on queues of blocks, without knowledge of prefixes.

    A request's blocks are passed to `hit` or `insert` from head to tail; after that, `evict` is
    called until the cache is small enough. `links` holds the queues of blocks as described in
    kvscope/core/block_queues.py: as many ring buffers as the class attribute `rings` says, or if
    that is 0 as many linked lists as `lists` says. `numbers` holds other state: as many numbers as
    the class attribute of that name says, at first 0.
    """

    lists: ClassVar[int] = 1
    rings: ClassVar[int] = 0
    numbers: ClassVar[int] = 0

    @staticmethod
    def hit(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Touch a cached block."""
        raise NotImplementedError

    @staticmethod
    def insert(block: int, links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> None:
        """Put a block into the cache."""
        raise NotImplementedError

    @staticmethod
    def evict(links: Int32s, numbers: Float64s, capacity: int, p: Float64s) -> int:
        """Evict a block and return it."""
        raise NotImplementedError
