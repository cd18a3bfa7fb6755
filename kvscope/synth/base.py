"""Parts of traffic profiles: distributions, records, conversations, and order of arrival."""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from numpy.random import Generator

from kvscope.core.errors import UsageError


class Counts(Protocol):
    """A distribution of counts."""

    def draw(self, rng: Generator) -> int:
        """Return one count."""
        ...


class Skewed(Struct, frozen=True):
    """A lognormal distribution of counts, typical of prompt and answer lengths.

    `sigma` is the standard deviation of ln(count); `mean` is that before the limit, `maximum`.
    """

    mean: float
    sigma: float = 0.8
    maximum: int = 32_768

    def draw(self, rng: Generator) -> int:
        """Return one count in [1, maximum]."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        return max(1, min(self.maximum, round(rng.lognormal(mu, self.sigma))))


class Geometric(Struct, frozen=True):
    """A geometric distribution of mean `mean`: each item is the last with probability 1/mean."""

    mean: float

    def draw(self, rng: Generator) -> int:
        """Return one count of at least 1."""
        return int(rng.geometric(1 / self.mean))


class Fixed(Struct, frozen=True):
    """A constant count, for traces whose figures can be computed by hand."""

    value: int

    def draw(self, rng: Generator) -> int:
        """Return the count."""
        return self.value


BAILIAN_BLOCK_TOKENS = 16
"""Block size that the Qwen-Bailian format implies."""

ROOT = -1
"""Parent id of a conversation's first request, as the Qwen-Bailian traces write it."""


class Record(msgspec.Struct, frozen=True):
    """One request, in the field names and order of the Qwen-Bailian JSONL traces.

    `timestamp` is in seconds from the trace's start, rounded to milliseconds; `turn` counts from 1,
    whose parent is -1; `hash_ids` has ceil(input_length / block size) entries, of which the last
    may stand for a partial block. `block_size` is written only if not the format's 16.

    Source: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon
    """

    chat_id: int
    parent_chat_id: int
    user_id: int
    timestamp: float
    input_length: int
    output_length: int
    type: str
    turn: int
    hash_ids: list[int]
    block_size: int | UnsetType = UNSET


@dataclass(frozen=True)
class Profile(ABC):
    """A kind of traffic: parameters that can produce a trace of any length.

    The same parameters, `requests` and `seed` give the same records (for one NumPy release:
    its generators may change between releases, see NEP 19).

    The unit in a parameter's name bounds it: shares and swings lie in 0-1, seconds are at least 0,
    rates are above 0, counts at least 1. Raises ValueError for any other value.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Raise ValueError for a parameter out of range."""
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if not isinstance(value, int | float):
                continue
            if name.endswith(("_share", "_swing")):
                allowed, fits = "between 0 and 1", 0 <= value <= 1
            elif name.endswith("_per_s"):
                allowed, fits = "above 0", value > 0
            elif name.endswith("_s"):
                allowed, fits = "at least 0", value >= 0
            else:
                allowed, fits = "at least 1", value >= 1
            if not (fits and math.isfinite(value)):
                raise ValueError(f"{name} is {value}; it has to be {allowed}")

    @abstractmethod
    def generate(self, *, requests: int, seed: int) -> Iterator[Record]:
        """Yield `requests` records in arrival order, without keeping them in memory.

        Raises UsageError, at the first record, if `requests` is negative.
        """


class Ids:
    """Source of chat ids (from 1) and block ids (from 0), consecutive in order of creation."""

    def __init__(self) -> None:
        self._chats = 0
        self._blocks = 0

    def chat(self) -> int:
        """Return the next chat id."""
        self._chats += 1
        return self._chats

    def blocks(self, count: int) -> range:
        """Return the next `count` block ids, consecutive so that a compressed trace is small."""
        first = self._blocks
        self._blocks += count
        return range(first, self._blocks)


class Thread(Struct):
    """An open conversation: the history that its next prompt repeats, and its state.

    `history_tokens` counts the parent's prompt and output, which begin with the full blocks
    `blocks`. Tokens beyond `blocks` get block ids only when a prompt carries them.
    """

    user_id: int
    type: str
    block_size: int
    blocks: list[int]
    history_tokens: int
    turn: int = 0
    chat_id: int = ROOT

    def request(self, ids: Ids, time_s: float, new_tokens: int, output_tokens: int) -> Record:
        """Return the next turn's record, with history and `new_tokens` as prompt; advance to it."""
        input_tokens = self.history_tokens + new_tokens
        missing = -(-input_tokens // self.block_size) - len(self.blocks)
        hash_ids = [*self.blocks, *ids.blocks(missing)]
        parent, self.chat_id = self.chat_id, ids.chat()
        self.turn += 1
        # A partial last block hashes differently once it is full, so it is not inherited.
        self.blocks = hash_ids[: input_tokens // self.block_size]
        self.history_tokens = input_tokens + output_tokens
        return Record(
            chat_id=self.chat_id,
            parent_chat_id=parent,
            user_id=self.user_id,
            timestamp=round(time_s, 3),
            input_length=input_tokens,
            output_length=output_tokens,
            type=self.type,
            turn=self.turn,
            hash_ids=hash_ids,
            block_size=UNSET if self.block_size == BAILIAN_BLOCK_TOKENS else self.block_size,
        )

    def take_turn(
        self, ids: Ids, time_s: float, new_tokens: int, output_tokens: int
    ) -> Record | None:
        """Return the next turn as `request` does; before time 0 advance and return None.

        A turn before time 0 advances only history length, turn and chat id: a trace can begin in
        the middle of a conversation, as a window of real traffic does.
        """
        if time_s >= 0:
            return self.request(ids, time_s, new_tokens, output_tokens)
        self.history_tokens += new_tokens + output_tokens
        self.chat_id = ids.chat()
        self.turn += 1
        return None

    def restart(self, prefix: Sequence[int]) -> None:
        """Replace the history by a shared prefix of full blocks (context compaction)."""
        self.blocks = list(prefix)
        self.history_tokens = len(prefix) * self.block_size


State = TypeVar("State")
Serve = Callable[[float, State], tuple[Record | None, Iterable[tuple[float, State]]]]
"""Takes an arrival (time in s, state); returns its record (None before the trace begins, and if the
arrival is no request), and the later arrivals (time in s, state) that follow from it."""

DAY_S = 86_400.0


def arrivals(
    rng: Generator, rate_per_s: float, *, start_s: float = 0.0, daily_swing: float = 0.0
) -> Iterator[float]:
    """Yield Poisson arrival times in s from `start_s` on, at a mean of `rate_per_s`.

    The rate follows a sine with a period of one day, up to a share `daily_swing` (0-1) above and
    below the mean; at time 0 it is at the mean and rises.
    """
    time_s = start_s
    peak_per_s = rate_per_s * (1 + daily_swing)
    while True:
        time_s += rng.exponential(1 / peak_per_s)
        rate_now = rate_per_s * (1 + daily_swing * math.sin(2 * math.pi * time_s / DAY_S))
        # Thinning: candidates at the peak rate, kept in proportion to the rate at their time.
        if daily_swing == 0 or rng.random() * peak_per_s < rate_now:
            yield time_s


def in_order(
    births: Iterator[tuple[float, State]], serve: Serve[State], requests: int
) -> Iterator[Record]:
    """Yield the first `requests` records of all conversations, by time.

    `births` are the first arrivals (time in s, state) of conversations, in order of time; they are
    merged with the later ones, which `serve` returns. It is called with the time and state of each
    arrival, in order, and returns the arrival's record (None: none) and the later arrivals that
    follow from it. Raises UsageError, at the first record, if `requests` is negative.
    """
    if requests < 0:
        raise UsageError(f"requests {requests} is negative", remedy="ask for 0 or more")
    waiting: list[tuple[float, int, State]] = []
    order = 0
    birth = next(births, None)
    while requests:
        if birth is not None and (not waiting or birth[0] <= waiting[0][0]):
            time_s, state = birth
            birth = next(births, None)
        elif waiting:
            time_s, _order, state = heapq.heappop(waiting)
        else:
            return
        record, later = serve(time_s, state)
        if record is not None:
            requests -= 1
            yield record
        for next_s, next_state in later:
            # The running number breaks ties in time, so that states are never compared.
            heapq.heappush(waiting, (next_s, order, next_state))
            order += 1
