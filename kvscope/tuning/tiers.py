"""Memory below the pool of every replica: candidate sizes, and which become options of the plan.

Each offload method is replayed at each size over the validation window, and its parameters, one
after the other, over the training window. The tiers that no tier beats in both price and latency
remain, and the one with the largest net saving. The plan judges them on the later requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.units import format_size
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.base import Policy
from kvscope.policies.lru import RETENTION, LruRetention, retained_by
from kvscope.replay.policy_options import Variant
from kvscope.replay.tier_spec import READS, WRITES, Read, SharedPool, Tier
from kvscope.replay.workload import Workload
from kvscope.tuning.trial import Advance, EngineTier, Evaluator, Trial
from kvscope.tuning.tuner import Tuner
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import EngineSettings

TierKind = Literal["dram", "ssd", "shared"]
Price = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
STATED = "stated"
"""The source of a price that the user states."""
_GIB, _DAY_S = 2**30, 86_400.0
_DEFAULT_INTERVAL = 0.0  # vLLM's, as `kvscope.policies.lru` counts them


class TierPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a GiB of memory for an hour, and rated writes (capacities a day; None: any)."""

    gib_hour: Price
    source: str
    writes_per_day: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def hour(self, size_bytes: int, written_bytes_s: float = 0.0) -> float:
        """Return the price of `size_bytes` for an hour, times its wear by writes if above 1."""
        return size_bytes / _GIB * self.gib_hour * max(1.0, self.wear(size_bytes, written_bytes_s))

    def wear(self, size_bytes: int, written_bytes_s: float) -> float:
        """Return the writes relative to the memory's rated ones; 0 for memory without a rating."""
        if self.writes_per_day is None or not size_bytes:
            return 0.0
        return written_bytes_s * _DAY_S / size_bytes / self.writes_per_day


class TierPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory prices, and the date on which their sources were read."""

    schema: int
    currency: str
    date: str
    dram: TierPrice
    ssd: TierPrice


@cache
def tier_prices() -> TierPrices:
    """Return the prices in `tier_prices.toml`."""
    path = Path(__file__).with_name("tier_prices.toml")
    return msgspec.toml.decode(path.read_bytes(), type=TierPrices)


ALIKE = 0.02
"""A difference, as a share of a figure, that does not matter."""
_OUTPUTS = "offload_prompt_only"
Options = tuple[tuple[str, tuple[object, ...]], ...]
E = TypeVar("E")


class OnGroups(Struct, frozen=True):
    """Checks of offloading against a hybrid model's layer groups; without groups all is allowed.

    Each check builds `EngineSettings`, which refuses what vLLM or the simulation does not support.
    """

    groups: KvGroups | None

    def page_bytes(self, block_bytes: int, trace_block: int) -> int:
        """Return the bytes of a pool block; `block_bytes` are those of `trace_block` tokens."""
        if self.groups is None:
            return block_bytes
        return block_bytes * max(1, self.groups.block_tokens // trace_block)

    def require(self, spec: OffloadSpec) -> None:
        """Raise UsageError if vLLM or the simulation does not support the offload method."""
        error = self._refusal(spec)
        if error is None:
            return
        where, remedy = f"--offload {spec.text}", error.remedy
        if spec.files and self._refusal(replace(spec, files=False)) is None:
            where = "--tier-size"
        elif self._refusal(OffloadSpec(spec.release)):
            where = "--compare-tiers"
            remedy = (error.remedy or "").replace("--offload", where)
        raise UsageError(error.what, where=where, remedy=remedy) from error

    def intervals(
        self, ways: Iterable[OffloadSpec], variants: Iterable[Variant]
    ) -> tuple[float, ...]:
        """Return the retention intervals to try, except vLLM's default; () where they do nothing.

        They are those that `variants` state, else all to search that no offload method in `ways`
        refuses. Raises UsageError for a stated interval that is refused.
        """
        if self.groups is None or not self.groups.sparse:
            return ()
        intervals: set[float] = set()
        for variant in variants:
            named = RETENTION in variant.given
            usual = next(each for each in LruRetention.parameters if each.name == RETENTION)
            for value in (variant.given[RETENTION],) if named else usual.search:
                tokens = self.groups.retaining(value).retention_tokens
                interval = math.inf if tokens is None else float(tokens)
                errors = filter(None, (self._refusal(way, interval) for way in ways))
                if (error := next(errors, None)) is None:
                    intervals.add(interval)
                elif named:
                    raise error
        return tuple(sorted(intervals - {_DEFAULT_INTERVAL}))

    def _refusal(self, spec: OffloadSpec, interval: float = _DEFAULT_INTERVAL) -> UsageError | None:
        """Return the error of an engine with these groups and offload method; None if it runs."""
        if self.groups is None:
            return None
        try:
            EngineSettings(1, groups=self.groups.retaining(interval), offload=spec.settings(1))
        except UsageError as error:
            return error
        return None


HICACHE = "hicache"
"""SGLang's offload method, with its defaults: computed blocks are written through to the host."""


class TierCandidate(Struct, frozen=True):
    """CPU memory of `size_bytes` below a pool.

    `offload` is the method: `vllm@0.33:store_threshold=2`, or `hicache` for SGLang. `files_bytes`
    is the size of a replica's SSD below, where vLLM keeps files; 0 without. With a `pool`, all
    replicas share the files over a network, and `files_bytes` is their total size.
    """

    DOCUMENT: ClassVar[str] = "offload gib files_gib"
    offload: str
    size_bytes: int
    files_bytes: int = 0
    pool: SharedPool | None = None

    def require_chunk(self, page_bytes: int, where: str) -> None:
        """Raise UsageError if the tier is smaller than one chunk; pool blocks have `page_bytes`."""
        chunk_bytes = self.spec.blocks_per_chunk * page_bytes
        least = min(size for _, size in self.tiers)
        if least < chunk_bytes:
            raise UsageError(
                f"{format_size(least)} holds not one chunk of {self.offload}",
                where=where,
                remedy=f"a chunk takes {format_size(chunk_bytes)}",
            )

    def below(self, block_bytes: int, gpus: int, copies: float = 1.0) -> EngineTier:
        """Return the tiers below a replica's pool, with copies that take `copies` times as long.

        `block_bytes` is a block over all `gpus`, each of which has its own link.
        """
        tiers = []
        for kind, size_bytes in self.tiers:
            pool = self.pool if kind == "shared" else None
            name, links = "remote" if pool else kind, gpus if kind == "dram" else 1
            read = Read(READS[name].latency_s, READS[name].bytes_per_s * links / copies)
            blocks = max(1, size_bytes // block_bytes)
            writes = WRITES[name] * links / copies
            tiers.append(Tier(name, blocks, read, writes, pool))
        return EngineTier(self.offload, block_bytes, tuple(tiers))

    @property
    def spec(self) -> OffloadSpec:
        """The offload method, with files if there are any below."""
        return OffloadSpec.parse(self.offload, files=self.files_bytes > 0)

    @property
    def shares_files(self) -> bool:
        """Whether all replicas share the files."""
        return self.pool is not None

    @property
    def keeps_files(self) -> bool:
        """Whether files stay until their disk is full: vLLM deletes none."""
        return self.files_bytes > 0 and not (self.pool and self.pool.evicts)

    @property
    def in_words(self) -> str:
        """The memory in words: `64 GiB CPU tier`, for SGLang `64 GiB HiCache`."""
        name = "HiCache" if self.offload == HICACHE else "CPU tier"
        return f"{format_size(self.size_bytes)} {name}"

    @property
    def gib(self) -> float:
        """The CPU memory in GiB."""
        return self.size_bytes / 2**30

    @property
    def files_gib(self) -> float:
        """The size of the files in GiB, 0 without."""
        return self.files_bytes / 2**30

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes of CPU memory and files (bytes), as a sort key."""
        return self.size_bytes, self.files_bytes

    @property
    def tiers(self) -> tuple[tuple[TierKind, int], ...]:
        """The kind and the size (bytes) of each tier, that next to the pool first."""
        files: TierKind = "shared" if self.pool else "ssd"
        below: tuple[tuple[TierKind, int], ...] = ((files, self.files_bytes),)
        return ("dram", self.size_bytes), *(below if self.files_bytes else ())

    def shared_by(self, replicas: int) -> Iterator[tuple[TierKind, int, int]]:
        """Yield kind, size (bytes) and number of sharing replicas of each tier."""
        for kind, size in self.tiers:
            yield kind, size, replicas if kind == "shared" else 1


class TierRejection(Struct, frozen=True):
    """A tier with which some requests of a window never start, and the reason."""

    DOCUMENT: ClassVar[str] = "*candidate reason"
    candidate: TierCandidate
    reason: str


class TierOffer(Struct, frozen=True, kw_only=True):
    """Memory that may be added below the pool of every replica, with prices.

    `block_bytes` is a block over all `gpus` of a replica. `replica_hour` is the price of another
    replica, None if unknown. `options` has the parameters of each offload method and their values
    to search, `policies` a hybrid model's retention intervals to search. Up to `rows` of the
    `candidates` become options of the plan; with `chooses`, the plan recommends one or none.
    """

    candidates: tuple[TierCandidate, ...]
    block_bytes: int
    gpus: int
    prices: Mapping[TierKind, TierPrice]
    replica_hour: float | None = None
    options: Mapping[str, Options] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()
    groups: KvGroups | None = None
    rows: int = 1
    chooses: bool = False

    @property
    def currency(self) -> str:
        """The currency of the price list; empty if all prices were stated."""
        kinds = {kind for each in self.candidates for kind, _ in each.tiers}
        stated = all(self.prices[kind].source == STATED for kind in kinds)
        return "" if stated else tier_prices().currency

    def below(self, candidate: TierCandidate, copies: float = 1.0) -> EngineTier:
        """Return a candidate's tiers, with copies that take `copies` times as long."""
        return candidate.below(self.block_bytes, self.gpus, copies)

    def runs(self, candidate: TierCandidate, policy: Policy) -> bool:
        """Return whether an engine with this policy and tier loads only the right blocks.

        With all windows kept and outputs stored, vLLM may load another request's blocks if a hybrid
        model's window blocks are smaller than those of full attention (docs/offload.md).
        """
        smaller = self.groups is not None and self.groups.smaller_windows
        keeps_all = smaller and math.isinf(retained_by(policy))
        return not keeps_all or candidate.spec.offload_prompt_only

    def written_bytes_s(self, trial: Trial, workload: Workload) -> float:
        """Return the bytes per second that all replicas together write, each to all its tiers."""
        arrival_s = workload.prompts.arrival_s
        span_s = max(float(arrival_s[-1] - arrival_s[0]), 1e-9)
        return trial.stored_blocks * self.block_bytes / span_s

    def price_hour(
        self, candidate: TierCandidate, replicas: int, written_bytes_s: float = 0.0
    ) -> float:
        """Return the price of one replica's tiers for an hour, including wear by its writes.

        Of a pool that all `replicas` share, it includes one replica's part.
        """
        return sum(
            self.prices[kind].hour(size, sharing * written_bytes_s) / sharing
            for kind, size, sharing in candidate.shared_by(replicas)
        )

    def wear(self, candidate: TierCandidate, replicas: int, written_bytes_s: float) -> float:
        """Return writes / rated writes of the most worn tier, at `written_bytes_s` of a replica."""
        return max(
            self.prices[kind].wear(size, sharing * written_bytes_s)
            for kind, size, sharing in candidate.shared_by(replicas)
        )


TierAt = tuple[TierCandidate, Policy]
"""A tier and the policy in the pool above it."""


class _Replayed(Struct, frozen=True):
    """A tier's trial on one window with a policy, and one replica's price of it for an hour."""

    candidate: TierCandidate
    policy: Policy
    trial: Trial
    cost_hour: float


class TierSearch:
    """Replays candidates below a tuner's pools over the training and the validation window."""

    def __init__(self, offer: TierOffer, tuner: Tuner) -> None:
        self.offer, self._target, self._replicas = offer, tuner.target, tuner.options.replicas
        self._training, self._validation = tuner.training, tuner.validation.evaluator
        self._capacity_blocks = tuner.capacity
        self.rejected: dict[TierCandidate, TierRejection] = {}

    def worth_an_option(self, policy: Policy, alone: Trial, advance: Advance) -> list[TierAt]:
        """Return the tiers to judge with a policy; `alone` is its trial without a tier.

        The first is the cheapest that meets the SLO; if none does, the cheapest near the lowest
        percentile. Empty if the offer has 1 row and the first lowers the percentile by 2 % or less.
        """
        known: list[_Replayed] = []
        ways: dict[str, list[TierCandidate]] = {}
        for candidate in self.offer.candidates:
            if self.offer.runs(candidate, policy):
                ways.setdefault(candidate.offload, []).append(candidate)
        for sizes in ways.values():
            known += self._searched(
                sorted(sizes, key=lambda each: each.sizes), policy, alone, advance
            )
        best = self._nearest(alone, known) if known else None
        if best is None or (
            self.offer.rows == 1 and not best.trial.target_s < alone.target_s * (1 - ALIKE)
        ):
            return []
        front = _front(known)
        shown = [best, max(known, key=lambda each: self._net_hour(alone, each)), *_spread(front)]
        chosen = dict.fromkeys((each.candidate, each.policy) for each in shown)
        return list(chosen)[: self.offer.rows]

    def _searched(
        self, sizes: Sequence[TierCandidate], policy: Policy, alone: Trial, advance: Advance
    ) -> list[_Replayed]:
        """Return one offload method's tiers, replayed in validation: sizes, then other parameters.

        If `rows` of the offer is 1, sizes are tried in turn until one meets the SLO. Parameters are
        searched at the size that would be chosen and the next smaller one; for a hybrid model that
        misses the SLO at all sizes, at the largest too: longer retention needs room.
        """
        tried: list[_Replayed] = []
        at_once = len(sizes) if self.offer.rows > 1 else 1
        for first in range(0, len(sizes), at_once):
            some = [(size, policy) for size in sizes[first : first + at_once]]
            tried += self._replay(self._validation, some, advance)
            if tried and tried[-1].trial.meets(self._target):
                break
        if not tried or not (self.offer.options.get(sizes[0].offload) or self.offer.policies):
            return tried
        nearest = self._nearest(alone, tried)
        at = tried.index(nearest)
        searched = tried[max(at - 1, 0) : at + 1]
        if self.offer.policies and not nearest.trial.meets(self._target):
            searched += [each for each in tried[-1:] if each not in searched]
        for each in searched:
            tried += self._varied(each, advance)
        return tried

    def _nearest(self, alone: Trial, known: Sequence[_Replayed]) -> _Replayed:
        """Return the cheapest of the tiers that `nearest` selects; `alone`: trial without one."""
        front = nearest(
            known,
            lambda each: each.trial.meets(self._target),
            lambda each: self._net_hour(alone, each) > 0,
            lambda each: each.trial.target_s,
        )
        return min(front, key=lambda each: (each.cost_hour, each.candidate.sizes))

    def _net_hour(self, alone: Trial, replayed: _Replayed) -> float:
        """Return a tier's net saving per hour and replica; minus its price without a GPU price."""
        if self.offer.replica_hour is None:
            return -replayed.cost_hour
        freed = alone.utilization - replayed.trial.utilization
        return freed * self.offer.replica_hour - replayed.cost_hour

    def _varied(self, plain: _Replayed, advance: Advance) -> list[_Replayed]:
        """Return the tier `plain` with parameters that gain in training, replayed in validation.

        Empty if none gains on both windows. Parameters are searched one after the other, retention
        intervals first. Each interval is tried with the tier's own method and, where the method has
        that option, with outputs stored: outputs hit only where an interval keeps windows.
        """
        if not (own := self._replay(self._training, [(plain.candidate, plain.policy)], advance)):
            return []
        (chosen,) = own
        options = self.offer.options.get(plain.candidate.offload, ())
        stored = [
            each
            for name, values in options
            if name == _OUTPUTS
            for each in _with(plain.candidate, name, values)
        ]
        intervals = [
            (each, policy) for policy in self.offer.policies for each in (plain.candidate, *stored)
        ]
        chosen = self._better(chosen, intervals, advance)
        for name, values in options:
            others = _with(chosen.candidate, name, values)
            chosen = self._better(chosen, [(each, chosen.policy) for each in others], advance)
        if chosen is own[0]:
            return []
        varied = self._replay(self._validation, [(chosen.candidate, chosen.policy)], advance)
        return [each for each in varied if _gains(each, plain)]

    def _better(self, chosen: _Replayed, pairs: Sequence[TierAt], advance: Advance) -> _Replayed:
        """Return `chosen`, replaced in turn by each of `pairs` (`TierAt`) better in training."""
        able = [pair for pair in pairs if self.offer.runs(*pair)]
        for replayed in self._replay(self._training, able, advance):
            if _gains(replayed, chosen):
                chosen = replayed
        return chosen

    def _replay(
        self, evaluator: Evaluator, pairs: Sequence[TierAt], advance: Advance
    ) -> list[_Replayed]:
        """Return tiers replayed on all cores, without those with which requests never start.

        The attribute `rejected` of the search collects the reasons.
        """
        evaluator.prepare([policy for _, policy in pairs])
        before = map(evaluator.executor.shared, (self.offer, evaluator))
        point = self._capacity_blocks, self._replicas
        replayed = []
        done = evaluator.each(_trial_of, pairs, *before, point, advance=advance)
        for (candidate, policy), trial in zip(pairs, done, strict=True):
            if isinstance(trial, TierRejection):
                self.rejected[candidate] = trial
                continue
            written = self.offer.written_bytes_s(trial, evaluator.workload) / self._replicas
            cost_hour = self.offer.price_hour(candidate, self._replicas, written)
            replayed.append(_Replayed(candidate, policy, trial, cost_hour))
        return replayed


def nearest(
    known: Sequence[E],
    meets: Callable[[E], bool],
    pays: Callable[[E], bool],
    target_s: Callable[[E], float],
) -> list[E]:
    """Return the entries that meet the SLO; if none does, those near the lowest percentile.

    Near: `target_s` within 2 % of the least. Only entries that save more than their price (`pays`)
    count, if there are any: where memory cannot meet the SLO, it is worth only its savings.
    """
    if meeting := [each for each in known if meets(each)]:
        return meeting
    paying = [each for each in known if pays(each)] or known
    most_s = min(map(target_s, paying)) * (1 + ALIKE)
    return [each for each in paying if not target_s(each) > most_s]


def _trial_of(
    offer: TierOffer, evaluator: Evaluator, point: tuple[int, int], tier: TierAt
) -> Trial | TierRejection:
    """Return a tier's trial at `point` (blocks, replicas), or the rejection of a tier with files.

    Only files can keep requests from starting; other errors are raised.
    """
    (candidate, policy), (capacity_blocks, replicas) = tier, point
    try:
        below = evaluator.over(replicas=replicas, tier=offer.below(candidate))
        return below.trial_at(policy, capacity_blocks)
    except UsageError as error:
        if not candidate.files_bytes:
            raise
        return TierRejection(candidate, error.what)


def _gains(replayed: _Replayed, other: _Replayed) -> bool:
    """Return whether `replayed` beats `other` by more than 2 % (ALIKE).

    They are compared by the target's percentile, if that is within 2 % by GPU time, then by price.
    """
    figures = (
        (replayed.trial.target_s, other.trial.target_s),
        (replayed.trial.utilization, other.trial.utilization),
        (replayed.cost_hour, other.cost_hour),
    )
    for own, its in figures:
        if own < its * (1 - ALIKE):
            return True
        if own > its * (1 + ALIKE):
            return False
    return False


def _front(known: Sequence[_Replayed]) -> list[_Replayed]:
    """Return the tiers that are faster than all cheaper ones (cost-latency front), by price."""
    front: list[_Replayed] = []
    for each in sorted(known, key=lambda replayed: (replayed.cost_hour, replayed.trial.target_s)):
        if not front or each.trial.target_s < front[-1].trial.target_s:
            front.append(each)
    return front


def _spread(front: Sequence[_Replayed]) -> list[_Replayed]:
    """Return the front reordered so that its first entries span it, dearest and cheapest first.

    `front` is by ascending price; its ends are taken in turn, inwards.
    """
    order = sorted(range(len(front)), key=lambda at: (min(at, len(front) - 1 - at), -at))
    return [front[at] for at in order]


def _with(candidate: TierCandidate, name: str, values: Sequence[Any]) -> list[TierCandidate]:
    """Return the candidate with each other value of a parameter; [] if that is not applicable.

    vLLM takes no `store_threshold` with files below.
    """
    if candidate.files_bytes and name == "store_threshold":
        return []
    offloads = (replace(candidate.spec, **{name: value}).text for value in values)
    return [replace(candidate, offload=each) for each in offloads if each != candidate.offload]


def sizes_to_compare(pool_bytes: int, most_bytes: int, times: Sequence[float]) -> list[int]:
    """Return the multiples `times` of a pool (bytes), up to the first of at least `most_bytes`.

    From 1 GiB on they are rounded up to whole GiB.
    """
    gib, sizes = 1 << 30, []
    for factor in times:
        size = int(pool_bytes * factor)
        sizes.append(-(-size // gib) * gib if size >= gib else size)
        if sizes[-1] >= most_bytes:
            break
    return sizes
