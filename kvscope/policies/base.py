"""The contract of a policy: what one file in this folder has to provide.

A policy says which block leaves first, in one of four shapes. A `LanePolicy` sorts blocks into a
few queues by recency and says which queue gives next; a `NextUsePolicy` does so by the future; a
`KeyPolicy` gives every block a number; a `QueuePolicy` is an algorithm of its own. Their methods
are plain functions of numbers and arrays: the simulator compiles them, tests run them as they are,
and an engine calls them one by one. So they use what numba can compile, and nothing here imports
numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import UsageError

Leaves = Literal["leaf", "any"]
TableKind = Literal["reuse", "next-prompts", "returns", "ends"]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int32]

NEVER = 2**31 - 1  # stands for "no later request" where a request's number is expected
RECENT = 1024  # requests that an adaptive policy looks back on
ADAPT_EVERY = 256
ENDS = -1  # stands for "no next turn" where the tokens of a next prompt are expected


class Turn(NamedTuple):
    """One served request, as a policy may see it.

    `history_tokens` is L: input and output. `category` counts from 0. `next_prompt_tokens` is the
    truth about the next turn, or ENDS: for hindsight policies alone.
    """

    request: int
    arrival_s: float
    history_tokens: int
    category: int
    next_prompt_tokens: int


class Block(NamedTuple):
    """One cached block, as a policy may see it.

    `uses` counts touches since it was inserted, `clock` is the key of the block evicted last when
    this one was touched.
    """

    depth: int
    uses: int
    clock: float


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that tunes a policy; its name carries its unit.

    Values lie within [low, high]. `search` are the values that a search may start from.
    """

    name: str
    default: float
    help: str
    low: float = 0.0
    high: float = float("inf")
    search: tuple[float, ...] = ()


class Policy:
    """What every policy declares, and how it is bound to parameter values.

    `leaves` tells which blocks may leave: "leaf" only those without a cached child, so that no
    block is kept that no look-up can reach; "any" as published. `offers` lists both where both make
    sense. `hindsight` marks those that know the future: ceilings, never a recommendation.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str]
    source: ClassVar[str]
    leaves: ClassVar[Leaves] = "any"
    offers: ClassVar[tuple[Leaves, ...]] = ()
    hindsight: ClassVar[bool] = False
    table: ClassVar[TableKind | None] = None
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def __init__(
        self, values: Mapping[str, float] | None = None, leaves: Leaves | None = None
    ) -> None:
        known = {parameter.name: parameter for parameter in self.parameters}
        for name, value in (values or {}).items():
            _check(self, known, name, value)
        self.values = {name: one.default for name, one in known.items()} | dict(values or {})
        if leaves is not None and leaves not in (self.leaves, *self.offers):
            raise UsageError(
                f"{self.name} cannot evict {leaves!r} blocks",
                where=f"{self.name}.leaves",
                remedy="take " + " or ".join(dict.fromkeys((self.leaves, *self.offers))),
            )
        self.evicts: Leaves = leaves or self.leaves

    def settings(self) -> Floats:
        """The parameter values in the order of `parameters`: the array `p` of every method."""
        return np.array([self.values[one.name] for one in self.parameters], dtype=np.float64)


def _check(policy: Policy, known: Mapping[str, Parameter], name: str, value: float) -> None:
    where = f"{policy.name}.{name}"
    if name not in known:
        raise UsageError(
            f"{policy.name} has no parameter {name!r}",
            where=where,
            remedy="it has " + ", ".join(known) if known else "it has none",
        )
    parameter = known[name]
    if not parameter.low <= value <= parameter.high:
        raise UsageError(
            f"{value:g} is outside [{parameter.low:g}, {parameter.high:g}]",
            where=where,
            remedy=parameter.help,
        )


TTL = Parameter(
    "ttl_s",
    float("inf"),
    "seconds that a block may stay untouched before it is dropped, full or not",
    search=(),
)

REFIT_S = 600.0
REFIT = Parameter(
    "refit_s",
    REFIT_S,
    "seconds between two fits of the policy's table, each to six times as long before it",
    low=60.0,
    high=1e9,
)


class PathPolicy(Policy):
    """A policy under which the blocks that one request touched last leave from the deep end.

    Everything but the queue algorithms is one, and all of them can have a time to live.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (TTL,)

    @staticmethod
    def admits(turn: Turn, p: Floats) -> bool:
        """Whether a request's new blocks enter the cache at all."""
        return True


class LanePolicy(PathPolicy):
    """A policy of recency queues: the one whose oldest block scores lowest gives it up.

    Within a lane blocks leave by (request that touched them last, deepest first).
    """

    lanes: ClassVar[int] = 1
    by_category: ClassVar[bool] = False  # a lane for each row of its table instead
    in_plugin: ClassVar[bool] = True  # whether an engine's plugin can tell it what it asks for
    adaptive: ClassVar[bool] = False
    stepwise: ClassVar[bool] = False  # scores change with time at the steps of `next_step_s` alone

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """(depth, lane, lane): the first takes blocks from that depth on, the second others.

        The scores must not rank a request's shallow blocks below its deep ones.
        """
        return 0, 0, 0

    @staticmethod
    def score(lane: int, idle_s: float, p: Floats, table: Floats) -> float:
        """What a lane's oldest block is worth, untouched for `idle_s`; equal scores: the older."""
        return 0.0

    @staticmethod
    def next_step_s(idle_s: float) -> float:
        """The idle time at which the score changes next, for `stepwise` policies."""
        return idle_s

    @staticmethod
    def adapts(p: Floats) -> bool:
        """Whether these parameters ask an `adaptive` policy to adapt; told before the replay."""
        return True

    @staticmethod
    def adapt(uncached_tokens: NDArray[np.int64], p: Floats) -> None:
        """Change `p` by what recent requests computed (ascending); for `adaptive` policies."""


class NextUsePolicy(PathPolicy):
    """A policy that knows the future: of the lowest lane, what is hit last or never leaves first.

    Among what is never hit, the older request's blocks do. Only leaves leave, and everything is
    admitted: what nobody needs leaves at once.
    """

    hindsight = True
    leaves = "leaf"
    lanes: ClassVar[int] = 1

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """(depth, lane, lane): the first takes blocks from that depth on, the second others.

        The first must not be the higher one.
        """
        return 0, 0, 0


class KeyPolicy(PathPolicy):
    """A policy that gives every block a number; the lowest leaves first, then the older request's.

    `rising` policies have keys that depend on the present time and never fall as it passes.
    """

    rising: ClassVar[bool] = False
    counts_uses: ClassVar[bool] = False  # without it `Block.uses` is always 1

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Floats, table: Floats
    ) -> float:
        """What a block that `turn` touched last is worth; along a path it must not grow."""
        raise NotImplementedError


class QueuePolicy(Policy):
    """A published algorithm on lists of blocks; it knows nothing of prefixes.

    A request's blocks are given to `hit` or `insert` from head to tail; after that, `evict` is
    called until the cache is small enough. `links` holds so many `lists` of blocks
    (kvscope/policies/lists.py), or `rings` where a policy takes blocks from old ends alone
    (kvscope/policies/rings.py); `numbers` whatever else it remembers, at first 0.
    """

    lists: ClassVar[int] = 1
    rings: ClassVar[int] = 0
    numbers: ClassVar[int] = 0

    @staticmethod
    def hit(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """A cached block is touched."""
        raise NotImplementedError

    @staticmethod
    def insert(block: int, links: Ints, numbers: Floats, capacity: int, p: Floats) -> None:
        """A block enters the cache."""
        raise NotImplementedError

    @staticmethod
    def evict(links: Ints, numbers: Floats, capacity: int, p: Floats) -> int:
        """The block that leaves."""
        raise NotImplementedError
